"""A visit from the inside: its allowance, its occurrences, its entries for the trace, and its clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from leadscrew.core.budget import Account, Resource, Spend
from leadscrew.ports import Visit, Visited

ENTRY_CHARS = 16_384
"""The most characters of a prompt or a response that an entry for the trace keeps."""
VISIT_CHARS = 2_000_000
"""Once the entries of a visit hold so many characters, later ones keep only the beginning of their texts."""
SHORT_CHARS = 256


class OpenVisit:
    """What happens between `enter` and `leave`. `own` is the account of the allowance, in logical numbers.

    The allowance has no parent: a reply from the record or the cache uses it up like a paid one, so that a resumed trial
    meets its allowance at the same place as an undisturbed one, while nobody pays twice.
    """

    def __init__(self, visit: Visit, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.visit = visit
        self.own = Account(visit.access.allowance)
        self.closed = False
        self.void = ""
        self.cap = ""
        self.exhausted = ""
        self.refusals = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._seen: dict[str, int] = {}
        self._entries: list[dict[str, Any]] = []
        self._costs = dict.fromkeys(
            ("model_calls", "prompt_chars", "prompt_tokens", "reply_tokens", "context_chars"), 0
        )
        self._kept = 0
        self._clock = clock
        self._pending = 0
        self._since = 0.0
        self._busy = 0.0

    def occurrence(self, request: str) -> int:
        """Return how many calls with this digest this visit has seen before this one."""
        seen = self._seen.get(request, 0)
        self._seen[request] = seen + 1
        return seen

    def started(self, role: str, model: str, prompt: str) -> dict[str, Any]:
        """Open an entry for the trace; entries stand in the order of their beginnings."""
        entry: dict[str, Any] = {"role": role, "model": model, "prompt": self._cut(prompt)}
        self._entries.append(entry)
        return entry

    def answered(self, entry: dict[str, Any], response: str, finish: str) -> None:
        """Complete the entry of a call that got its reply."""
        entry.update(response=self._cut(response), finish=finish)

    def used(self, entry: dict[str, Any], chars: int, spend: Spend) -> None:
        """Count one call: the characters of its prompt and its logical tokens."""
        entry.update(tokens_in=spend.tokens_in, tokens_out=spend.tokens_out)
        counted = {
            "model_calls": spend.calls,
            "prompt_chars": chars,
            "prompt_tokens": spend.tokens_in,
            "reply_tokens": spend.tokens_out,
            "context_chars": max(0, chars - self.visit.input_chars),
        }
        for name, value in counted.items():
            self._costs[name] += value

    def failed(self, entry: dict[str, Any], message: str) -> None:
        """Complete the entry of a call without a reply."""
        self.refusals += 1
        entry.update(response="", error=self._cut(message), finish="error")

    def spoil(self, message: str, cap: Resource | None = None) -> None:
        """Make the visit void; the first reason stays."""
        if not self.void:
            self.void = message
            self.cap = cap or ""

    def exhaust(self, message: str) -> None:
        """Note that the program wanted more than its allowance; the first time stays."""
        self.exhausted = self.exhausted or message

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Stop the program's clock while a call is being answered; overlapping calls stop it once."""
        if self._pending == 0:
            self._since = self._clock()
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1
            if self._pending == 0:
                self._busy += self._clock() - self._since

    @property
    def called(self) -> bool:
        """Whether there was any call, answered or not."""
        return bool(self._entries)

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one call was being answered."""
        return self._busy + (self._clock() - self._since if self._pending else 0.0)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Let `cut` end this task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Admit no more calls. Those that run go on; `settled` waits for them."""
        self.closed = True

    def cut(self) -> None:
        """Cut off the calls that run; `settled` waits until their spend is written."""
        for task in tuple(self._tasks):
            task.cancel()

    async def settled(self) -> None:
        """Wait for the calls that still run, or were cut off."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def result(self) -> Visited:
        """Return what happened, in logical numbers."""
        costs: Mapping[str, float] = {name: float(value) for name, value in self._costs.items()}
        return Visited(self.own.spent, costs, tuple(self._entries), self.void, self.cap, self.exhausted)

    def _cut(self, text: str) -> str:
        limit = ENTRY_CHARS if self._kept < VISIT_CHARS else SHORT_CHARS
        if len(text) > limit:
            half = limit // 2
            text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
        self._kept += len(text)
        return text
