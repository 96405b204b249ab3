"""What an attack is, what was seen of it, and the report on all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadscrew.testing.redteam.arena import Arena


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the host saw: whether the attack got what it wanted, and the evidence in a few words."""

    breached: bool
    seen: str


Strike = Callable[["Arena"], Awaitable[Sighting]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile program with a purpose, and the defence it tries.

    `strike` is called twice: in an arena whose defences are up, where it must fail, and in one where `defence` is off (the
    positive control), where it must succeed. It decides by what the host can see, not by what the program says.
    `obstacle` returns why the attack cannot exist on this machine (no such socket family, say), or an empty text.
    """

    name: str
    family: str
    about: str
    defence: str
    strike: Strike
    obstacle: Callable[[], str] = lambda: ""
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One attack as it went. `held` is false for a breach, `controlled` false where the control did not succeed."""

    name: str
    family: str
    about: str
    defence: str
    held: bool
    controlled: bool
    seen: str
    control_seen: str
    seconds: float
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Report:
    """All rows. `attempts` were made with the defences up, `controls` are those whose positive control succeeded.

    >>> Report((), sandbox="bubblewrap", user="root").passed
    False
    """

    rows: tuple[Row, ...]
    sandbox: str
    user: str
    seconds: float = 0.0

    @property
    def attempts(self) -> int:
        """How many attacks were tried."""
        return sum(not row.skipped for row in self.rows)

    @property
    def controls(self) -> int:
        """How many attacks succeeded once their defence was off, which shows that they are real."""
        return sum(row.controlled for row in self.rows if not row.skipped)

    @property
    def breaches(self) -> int:
        """How many attacks got through."""
        return sum(not row.held for row in self.rows if not row.skipped)

    @property
    def passed(self) -> bool:
        """Whether something was tried, every control succeeded and nothing got through."""
        return 0 < self.attempts == self.controls and self.breaches == 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "attempts": self.attempts,
            "controls": self.controls,
            "breaches": self.breaches,
            "skipped": len(self.rows) - self.attempts,
            "passed": self.passed,
            "sandbox": self.sandbox,
            "user": self.user,
            "seconds": round(self.seconds, 1),
            "attacks": [row.to_json() for row in self.rows],
        }
