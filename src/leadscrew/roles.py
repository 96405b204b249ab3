"""Which model answers which role: from the configuration to the gateway, checked before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadscrew.config import Config
from leadscrew.config.sections import ModelCaps, ModelSection
from leadscrew.core.budget import Account, Caps
from leadscrew.core.call import Pin
from leadscrew.core.canonical import digest_of
from leadscrew.engine.commit import Committer
from leadscrew.errors import ConfigError
from leadscrew.ports import Access, Observer

if TYPE_CHECKING:
    from leadscrew.adapters.models.gateway import ModelGateway
    from leadscrew.adapters.stores.sqlite import SQLiteStore

SOLVER = "solver"
SCORING = (SOLVER, "judge")
"""Roles whose model can change a score: their pins are part of the key of every trial."""
CALLS_PER_TRIAL = 64
"""What a program may call in one trial where the configuration does not say."""


def pins(config: Config) -> dict[str, Pin]:
    """Return the pinned model and parameters of each role.

    >>> from leadscrew.config import config_from
    >>> pins(config_from({"domain": {"name": "docstrings"}, "models": {"solver": "local/smollm2"}}))["solver"].model
    'local/smollm2'
    """
    return {
        role: Pin(role, section.model, section.temperature, section.max_tokens, section.extra)
        for role, section in config.models.items()
    }


def scoring_digest(config: Config) -> str:
    """Return the digest of the pins that can change a score; empty without a model."""
    known = pins(config)
    chosen = {role: known[role].digest for role in SCORING if role in known}
    return digest_of(chosen) if chosen else ""


def solver_access(config: Config) -> Access | None:
    """Return the right of evaluated programs to call the solver model; None if the run gives them none."""
    return access(config, SOLVER) if SOLVER in config.models else None


def access(config: Config, role: str) -> Access:
    """Return the right to call the model of a role, with the allowance of one trial or errand."""
    section = config.models[role]
    calls = section.calls_per_trial
    if calls is None and role == SOLVER:
        calls = CALLS_PER_TRIAL
    return Access(role, allowance=Caps(calls=calls, tokens=section.tokens_per_trial))


def role_caps(config: Config) -> dict[str, Caps]:
    """Return the caps of each role over the whole search."""
    return {role: _caps(section.budget) for role, section in config.models.items()}


def final_caps(config: Config) -> Caps:
    """Return the caps of the model calls of the final test."""
    return _caps(config.budget.final)


def _caps(section: ModelCaps) -> Caps:
    return Caps(calls=section.calls, tokens=section.tokens, usd=section.usd)


def price(config: Config, role: str) -> Price | None:
    """Return what a role's model costs, None where nobody knows."""
    from leadscrew.adapters.models.prices import price_of
    from leadscrew.adapters.models.providers import find

    section = config.models[role]
    provider, name = find(section.model, providers(config))
    return price_of(provider, name, input_price=section.input_price, output_price=section.output_price)
