"""Spend as exact small vectors, and caps that nest: run > role > plan > trial."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Resource = Literal["trials", "seconds", "calls", "tokens", "usd"]


@dataclass(frozen=True, slots=True)
class Spend:
    """What was used, in whole units so that sums are exact.

    `micro_usd` is None when a price is unknown: unknown plus anything stays unknown, and is never read as 0.

    >>> Spend(trials=1, cpu_ms=20) + Spend(trials=2)
    Spend(trials=3, cpu_ms=20, wall_ms=0, calls=0, tokens_in=0, tokens_out=0, micro_usd=0)
    """

    trials: int = 0
    cpu_ms: int = 0
    wall_ms: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    micro_usd: int | None = 0

    def __add__(self, other: Spend) -> Spend:
        money = None if self.micro_usd is None or other.micro_usd is None else self.micro_usd + other.micro_usd
        return Spend(
            self.trials + other.trials,
            self.cpu_ms + other.cpu_ms,
            self.wall_ms + other.wall_ms,
            self.calls + other.calls,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            money,
        )

    def to_json(self) -> dict[str, int | None]:
        """Return the vector as a mapping of its non-zero parts; unknown money is null."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != 0}

    @classmethod
    def from_json(cls, data: dict[str, int | None]) -> Spend:
        """Read what `to_json` wrote."""
        return cls(**data)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Caps:
    """The most a scope may use; None means no cap. Seconds are the engine's running time, summed over resumes."""

    trials: int | None = None
    seconds: float | None = None
    calls: int | None = None
    tokens: int | None = None
    usd: float | None = None


class Account:
    """A scope of spending inside a parent scope. A reservation must fit every scope above it, or nothing is taken.

    >>> run = Account(Caps(trials=3)); plan = Account(Caps(trials=2), parent=run)
    >>> plan.reserve(trials=2), plan.reserve(trials=1), run.reserve(trials=1), run.reserve(trials=1)
    (None, 'trials', None, 'trials')
    """

    def __init__(self, caps: Caps | None = None, parent: Account | None = None) -> None:
        self.caps = caps or Caps()
        self.parent = parent
        self.spent = Spend()
        self.held = Spend()

    def reserve(self, *, trials: int = 0, calls: int = 0, tokens: int = 0, micro_usd: int = 0) -> Resource | None:
        """Hold an amount in this scope and all above. Returns None, or the resource whose cap stands in the way."""
        want = Spend(trials=trials, calls=calls, tokens_out=tokens, micro_usd=micro_usd)
        scopes = list(self._chain())
        for scope in scopes:
            short = scope._short_of(want)
            if short is not None:
                return short
        for scope in scopes:
            scope.held = scope.held + want
        return None

    def settle(self, actual: Spend, *, trials: int = 0, calls: int = 0, tokens: int = 0, micro_usd: int = 0) -> None:
        """Replace a reservation (the same amounts as reserved) by what was really used."""
        back = Spend(trials=-trials, calls=-calls, tokens_out=-tokens, micro_usd=-micro_usd)
        for scope in self._chain():
            scope.held = scope.held + back
            scope.spent = scope.spent + actual

    def _chain(self) -> list[Account]:
        scope: Account | None = self
        out: list[Account] = []
        while scope is not None:
            out.append(scope)
            scope = scope.parent
        return out

    def _short_of(self, want: Spend) -> Resource | None:
        used, caps = self.spent + self.held, self.caps
        if want.trials and caps.trials is not None and used.trials + want.trials > caps.trials:
            return "trials"
        if want.calls and caps.calls is not None and used.calls + want.calls > caps.calls:
            return "calls"
        tokens = used.tokens_in + used.tokens_out
        if want.tokens_out and caps.tokens is not None and tokens + want.tokens_out > caps.tokens:
            return "tokens"
        if caps.usd is not None and (want.calls or want.micro_usd):
            if used.micro_usd is None or used.micro_usd + (want.micro_usd or 0) > caps.usd * 1_000_000:
                return "usd"
        return None
