"""The seams of the engine: what a method, proposer, domain, sandbox, executor, gateway, store and observer must offer.

The engine knows these and the core only. Each port has a conformance suite in `leadscrew.testing`.
"""

from __future__ import annotations

from leadscrew.ports.boxes import (
    Box,
    BoxPurpose,
    BoxReply,
    BoxSpec,
    BoxTrial,
    Executor,
    Item,
    Job,
    Mount,
    Sandbox,
    SandboxReport,
    Steps,
)
from leadscrew.ports.domains import JUDGE, BadAnswer, Domain, Environment, Grading, JudgeMissing, Scorer
from leadscrew.ports.errands import Errand, ErrandResult
from leadscrew.ports.methods import Bench, Evidence, Method, Proposer
from leadscrew.ports.models import Access, Door, Gateway, Model, Visit, Visited
from leadscrew.ports.stores import Event, Message, Observer, Store, StoredPlan

__all__ = [
    "JUDGE",
    "Access",
    "BadAnswer",
    "Bench",
    "Box",
    "BoxPurpose",
    "BoxReply",
    "BoxSpec",
    "BoxTrial",
    "Domain",
    "Door",
    "Environment",
    "Errand",
    "ErrandResult",
    "Event",
    "Evidence",
    "Executor",
    "Gateway",
    "Grading",
    "Item",
    "Job",
    "JudgeMissing",
    "Message",
    "Method",
    "Model",
    "Mount",
    "Observer",
    "Proposer",
    "Sandbox",
    "SandboxReport",
    "Scorer",
    "Steps",
    "Store",
    "StoredPlan",
    "Visit",
    "Visited",
]
