"""Replay: every call is answered from the record of another run, and nothing is asked of anybody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

from leadscrew.core.call import Call, CallReply
from leadscrew.core.canonical import canonical_json
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Store

SHOWN_CHARS = 60


class ReplayMiss(InfrastructureError):
    """A call that the recorded run did not make. `call` is the one that was asked for."""

    def __init__(self, message: str, call: Call) -> None:
        super().__init__(message)
        self.call = call


class Replay:
    """The recorded calls of another run, found by scope, request and occurrence. `store` is only read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, call: Call) -> CallReply:
        """Return what the recorded run got for this very call: an ok reply, or else why it got none.

        Raises `ReplayMiss` with the nearest recorded call if it was never made.
        """
        reply = self._store.find_reply(call.scope, call.request, call.occurrence)
        if reply is not None:
            return reply
        for _, made, became in self._store.calls(call.scope):
            if (made.request, made.occurrence) == (call.request, call.occurrence) and became is not None:
                return became
        raise ReplayMiss(self._explain(call), call)

    def close(self) -> None:
        """Let go of the recorded run."""
        self._store.close()

    def _explain(self, call: Call) -> str:
        who = (
            f"role {call.role}, plan {call.plan}, candidate {call.candidate[:12] or '-'}, "
            f"instance {call.instance or '-'}, {_nth(call.occurrence)} call of this request"
        )
        same = [made for _, made, _ in self._store.calls(call.scope)]
        equal = sum(made.request == call.request for made in same)
        if equal:
            found = f"the record holds only {equal} equal calls here"
        else:
            near = same or self._neighbours(call)
            if near:
                where = "" if same else " of the same role elsewhere in the run"
                nearest = max(near, key=lambda made: _common(made.body, call.body))
                found = f"the nearest recorded call{where} differs: {difference(nearest.body, call.body)}"
            else:
                found = "the recorded run made no call of this role"
        return (
            f"replay: the recorded run did not make this call ({who}); {found}. "
            f"Replay needs the same seed, programs, prompts and models; start without 'run.replay' to ask the model."
        )

    def _neighbours(self, call: Call) -> list[Call]:
        role = [made for _, made, _ in self._store.calls() if made.role == call.role]
        for wanted in (
            lambda made: (made.plan, made.instance) == (call.plan, call.instance),
            lambda made: made.instance == call.instance,
        ):
            near = [made for made in role if wanted(made)]
            if near:
                return near
        return role


def difference(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Say where two requests differ first: which parameter, or which message and the first characters that differ.

    >>> old, new = ({"messages": [{"role": "user", "content": text}]} for text in ("2 + 2?", "2 + 3?"))
    >>> print(difference(old, new))
    message 1 (user), recorded '{"content":"2 + 2?","role":"user"}', now '{"content":"2 + 3?","role":"user"}'
    """
    pairs = zip_longest(_messages(recorded), _messages(asked))
    for number, (old, new) in enumerate(pairs, 1):
        if old != new:
            role = next((m["role"] for m in (new, old) if isinstance(m, Mapping) and "role" in m), "?")
            return f"message {number} ({role}), {_apart(old, new)}"
    for key in sorted({*recorded, *asked}):
        if recorded.get(key) != asked.get(key):
            return f"parameter {key!r}, {_apart(recorded.get(key), asked.get(key))}"
    return "only in what the record hides (secrets)"


def _messages(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages")
    system = body.get("system")
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *(messages if isinstance(messages, (list, tuple)) else ())]


def _apart(old: Any, new: Any) -> str:
    texts = ["nothing" if v is None else canonical_json(v).decode("utf-8", "replace") for v in (old, new)]
    start = max(0, _prefix(*texts) - SHOWN_CHARS // 2)
    shown = [
        ("..." if start else "")
        + text[start : start + SHOWN_CHARS]
        + ("..." if len(text) > start + SHOWN_CHARS else "")
        for text in texts
    ]
    return f"recorded {shown[0]!r}, now {shown[1]!r}"


def _common(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> int:
    return _prefix(*(canonical_json(_messages(body)).decode("utf-8", "replace") for body in (recorded, asked)))


def _prefix(a: Iterable[str], b: Iterable[str]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def _nth(occurrence: int) -> str:
    """Return 0 as `first`, 1 as `second`, and so on."""
    names = ("first", "second", "third")
    return names[occurrence] if occurrence < len(names) else f"{occurrence + 1}th"
