"""What the run has used, what it may still use, and the clock of its running time."""

from __future__ import annotations

import time
from collections.abc import Callable

from leadscrew.core.budget import Account, Caps, Spend
from leadscrew.errors import BudgetReached


class Meter:
    """The accounts of a run: one for the run, one per role below it, one per plan below that.

    `before` is what earlier sittings spent; `seconds_before` their running time. `clock` is monotonic seconds.
    """

    def __init__(
        self,
        caps: Caps,
        *,
        before: Spend | None = None,
        seconds_before: float = 0.0,
        role_caps: dict[str, Caps] | None = None,
        plan_caps: Caps | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = Account(caps)
        self.run.spent = before or Spend()
        self._roles: dict[str, Account] = {}
        self._role_caps = role_caps or {}
        self._plan_caps = plan_caps
        self._clock = clock
        self._started = clock()
        self._seconds_before = seconds_before

    def plan(self, role: str) -> Account:
        """Return a new account for one plan of a role."""
        if role not in self._roles:
            self._roles[role] = Account(self._role_caps.get(role), self.run)
        return Account(self._plan_caps, self._roles[role])

    @property
    def seconds(self) -> float:
        """Running time of the engine over all sittings, in seconds."""
        return self._seconds_before + self._clock() - self._started

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the cap, or None without one."""
        cap = self.run.caps.seconds
        return None if cap is None else cap - self.seconds

    def check_clock(self) -> None:
        """Raise `BudgetReached` once the running time is used up."""
        left = self.seconds_left
        if left is not None and left <= 0:
            raise reached("seconds", self.run.caps.seconds)


def reached(resource: str, cap: float | None) -> BudgetReached:
    """Return the error that stops a run at a cap."""
    return BudgetReached(
        f"the cap of {cap:g} {resource} is reached; everything finished is stored. "
        f"Raise it with 'leadscrew resume RUN --{resource} N' to go on."
        if cap is not None
        else f"the allowance of {resource} is used up; raise it to go on.",
        resource=resource,
    )
