"""What is left of the session's budgets: tool calls, tokens, seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coder.ends import CALLS_USED_UP, SECONDS_USED_UP, TOKENS_USED_UP, End

LEAST_REPLY = 200
"""Tokens below which a reply is not worth asking for."""


@dataclass
class Budget:
    """Counts down. `tokens` bounds prompt and reply together, over all requests."""

    calls: int
    tokens: int
    seconds: float
    clock: Callable[[], float] = time.monotonic
    calls_used: int = 0
    tokens_used: int = 0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def seconds_left(self) -> float:
        """Seconds until the end, not below 0."""
        return max(0.0, self.seconds - (self.clock() - self.started))

    def reply_room(self, prompt: int, wanted: int) -> int:
        """Return how many tokens a reply to a prompt of that size may have; raises `End` if nothing is left to go on."""
        if self.calls_used >= self.calls:
            raise End(CALLS_USED_UP)
        if self.seconds_left <= 0:
            raise End(SECONDS_USED_UP)
        room = min(wanted, self.tokens - self.tokens_used - prompt)
        if room < min(LEAST_REPLY, wanted):
            raise End(TOKENS_USED_UP)
        return room

    def line(self) -> str:
        """Return what a model reads under every result.

        Of time it says nothing before it is nearly up: a clock in the conversation would make every request a new one, so
        that no interrupted session could go on from its recorded replies, and no run be replayed.

        >>> Budget(calls=40, tokens=60_000, seconds=90.0, calls_used=9, clock=lambda: 0.0).line()
        'calls left 31 of 40, tokens left 60k'
        """
        left = self.calls - self.calls_used
        tokens = max(0, self.tokens - self.tokens_used)
        count = f"{tokens // 1000}k" if tokens >= 10_000 else str(tokens)
        text = f"calls left {left} of {self.calls}, tokens left {count}"
        late = self.seconds_left < self.seconds / 10
        if late:
            text += ", and nearly no time"
        if late or left <= max(2, self.calls // 10) or tokens < self.tokens // 10:
            text += ". Nearly used up: leave your work in a usable state now, then finish"
        return text
