"""The red team: hostile programs, each with a positive control, that try the sandbox of this machine.

An attack is carried out twice. With the defences up it must fail; with its one defence off (the positive control) it must
succeed, which shows that the attack is real and that it was that defence which held. `run` tries them all.
"""

from __future__ import annotations

from leadscrew.testing.redteam.attack import Attack, Report, Row, Sighting
from leadscrew.testing.redteam.runner import FAMILIES, attacks, family, run, select

__all__ = ["FAMILIES", "Attack", "Report", "Row", "Sighting", "attacks", "family", "run", "select"]
