"""What the run has used, what it may still use, and the clock of its running time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from leadscrew.core.budget import Account, Caps, Spend
from leadscrew.errors import BudgetReached

FINAL_PLAN = -1
"""The number under which the model calls of `finalize` are recorded: no plan has it."""


class Meter:
    """The accounts of a run: one for the run, one per role below it, one per plan below that.

    `before` is what earlier sittings spent; `seconds_before` their running time; `calls_before` what model calls cost by role
    and plan (part of `before`). The caps bound the search; what `finalize` calls is bounded by `final_caps` alone.
    `clock` is monotonic seconds.
    """

    def __init__(
        self,
        caps: Caps,
        *,
        before: Spend | None = None,
        seconds_before: float = 0.0,
        calls_before: Mapping[tuple[str, int], Spend] | None = None,
        role_caps: Mapping[str, Caps] | None = None,
        final_caps: Caps | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = Account(caps)
        self.run.spent = before or Spend()
        self.final = Account(final_caps)
        self._roles: dict[str, Account] = {}
        self._calls: dict[tuple[str, int], Account] = {}
        self._role_caps = role_caps or {}
        for (role, plan), spent in (calls_before or {}).items():
            account = self.calls(role, plan)
            account.spent = spent
            scope = account.parent
            while scope is not None and scope is not self.run:
                scope.spent = scope.spent + spent
                scope = scope.parent
            if plan == FINAL_PLAN:
                self.run.spent = _less(self.run.spent, spent)
        self._clock = clock
        self._started = clock()
        self._seconds_before = seconds_before

    def plan(self, role: str) -> Account:
        """Return a new account for the trials of one plan."""
        return Account(None, self._role(role))

    def calls(self, role: str, plan: int) -> Account:
        """Return the account of the model calls of one role in one plan: always the same one."""
        known = self._calls.get((role, plan))
        if known is None:
            parent = self.final if plan == FINAL_PLAN else self._role(role)
            known = self._calls[role, plan] = Account(None, parent)
        return known

    def _role(self, role: str) -> Account:
        if role not in self._roles:
            self._roles[role] = Account(self._role_caps.get(role), self.run)
        return self._roles[role]

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


def _less(whole: Spend, part: Spend) -> Spend:
    money = None if whole.micro_usd is None or part.micro_usd is None else whole.micro_usd - part.micro_usd
    return replace(
        whole,
        calls=whole.calls - part.calls,
        tokens_in=whole.tokens_in - part.tokens_in,
        tokens_out=whole.tokens_out - part.tokens_out,
        micro_usd=money,
    )


def raise_text(resource: str) -> str:
    """Return how a cap on model calls is raised, wherever it was met."""
    return (
        f"To go on, raise it: 'leadscrew resume RUN --{resource} N' for the whole run, with '--role ROLE' for one model, "
        f"'leadscrew finalize RUN --{resource} N' in the final test."
    )


def reached(resource: str, cap: float | None) -> BudgetReached:
    """Return the error that stops a run at a cap."""
    return BudgetReached(
        f"the cap of {cap:g} {resource} is reached; everything finished is stored. "
        f"Raise it with 'leadscrew resume RUN --{resource} N' to go on."
        if cap is not None
        else f"the allowance of {resource} is used up; raise it to go on.",
        resource=resource,
    )
