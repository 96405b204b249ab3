"""The red team: hostile programs, each with a positive control, that try the sandbox of this machine.

An attack is carried out twice. With the defences up it must fail; with its one defence off (the positive control) it must
succeed, which shows that the attack is real and that it was that defence which held. `run` tries them all.
"""

from __future__ import annotations

from importlib import import_module

from leadscrew.testing.redteam.attack import Attack, Report, Row, Sighting
from leadscrew.testing.redteam.runner import attacks, run, select

FAMILIES = (
    "lookups",
    "secrets",
    "protocol",
    "state",
    "resources",
    "survival",
    "network",
    "neighbours",
    "trees",
    "answers",
    "grading",
)
"""The files of this folder that hold attacks."""


def family(name: str) -> tuple[Attack, ...]:
    """Return the attacks of one file."""
    found: tuple[Attack, ...] = import_module(f"{__name__}.{name}").ATTACKS
    return found


__all__ = ["FAMILIES", "Attack", "Report", "Row", "Sighting", "attacks", "family", "run", "select"]
