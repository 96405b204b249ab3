"""The window: what is sent never has more tokens than the model can see, by our own count.

What is old is shortened first: results, then the long arguments of calls, then whole exchanges. The task and the last turns
stay as they are. When something has to go, enough goes for a while, so that what a provider has cached stays valid.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coder.ends import WINDOW_TOO_SMALL, End
from coder.talk import Result, Turn

FIRST_GUESS = 3.0
"""Bytes per token before a model has said better."""
KEPT_TURNS = 4
"""Turns at the end that are left alone: two calls with their results."""
LONG = 240
"""Characters from which on something is worth shortening."""
EASE = 0.75


class Context:
    """Counts tokens and keeps a conversation below `limit`, the window less the room for a reply."""

    def __init__(self, window: int, reply: int) -> None:
        self.limit = window - reply
        self.bytes_per_token = FIRST_GUESS

    def tokens(self, body: object) -> int:
        """Return the tokens of a request, as far as we know."""
        return int(size_of(body) / self.bytes_per_token) + 1

    def learn(self, body: object, prompt_tokens: int) -> None:
        """Take a model's own count of a request into account; one that cannot be true is bounded."""
        if prompt_tokens > 0:
            self.bytes_per_token = min(4.5, max(1.0, 0.95 * size_of(body) / prompt_tokens))

    def too_much(self) -> bool:
        """Count more tokens from now on, for the model's side says that a request was too long; False if we cannot."""
        self.bytes_per_token = max(1.0, 0.8 * self.bytes_per_token)
        return self.bytes_per_token > 1.0

    def fit(self, turns: list[Turn], write: Callable[[list[Turn]], dict[str, Any]]) -> tuple[list[Turn], list[str]]:
        """Return turns whose request fits, and what was shortened; `write` makes the request. Raises `End` if none fits."""
        if self.tokens(write(turns)) <= self.limit:
            return turns, []
        done: list[str] = []
        turns = list(turns)
        for kept in (KEPT_TURNS, KEPT_TURNS // 2):
            for shorten in (_shorten_results, _shorten_words):
                for at in range(1, len(turns) - kept):
                    if self.tokens(write(turns)) <= EASE * self.limit:
                        return turns, done
                    shorter = shorten(turns[at])
                    if shorter is not turns[at]:
                        turns[at] = shorter
                        done.append(f"{shorter.role} in turn {at}")
                if self.tokens(write(turns)) <= self.limit:
                    return turns, done
            while self.tokens(write(turns)) > self.limit and _drop_oldest(turns, kept):
                done.append("the oldest exchange")
            if self.tokens(write(turns)) <= self.limit:
                return turns, done
        raise End(WINDOW_TOO_SMALL, f"{self.tokens(write(turns))} tokens at the least, room for {self.limit}")


def size_of(body: object) -> int:
    """Return the bytes of a request."""
    return len(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _shorten_results(turn: Turn) -> Turn:
    """Return a results turn with stubs instead of long results."""
    if turn.role != "results" or all(len(r.text) <= LONG for r in turn.results):
        return turn
    return replace(turn, results=tuple(_stub(r) if len(r.text) > LONG else r for r in turn.results))


def _stub(result: Result) -> Result:
    text = (
        f"[result of {result.tool}: {len(result.text)} characters, left out to save room; call again if you need them]"
    )
    return replace(result, text=text)


def _shorten_words(turn: Turn) -> Turn:
    """Return a turn of the model, or an old hint to it, with its long texts and arguments shortened."""
    if turn.role == "results":
        return turn
    calls = tuple(
        replace(call, arguments={name: _brief(value) for name, value in call.arguments.items()}) for call in turn.calls
    )
    # With tags, the text repeats the calls: the prose before them is kept.
    text = _brief(turn.text.split("<call", 1)[0] if calls else turn.text)
    if calls == turn.calls and len(turn.text) <= LONG and not turn.thinking:
        return turn
    return replace(turn, calls=calls, text=str(text), thinking=(), shortened=True)


def _brief(value: object) -> object:
    if not isinstance(value, str) or len(value) <= LONG:
        return value
    return f"{value[: LONG // 3]} [... {len(value) - LONG // 3} characters left out to save room]"


NOTE = "[older calls and results were left out here to save room]"


def _drop_oldest(turns: list[Turn], kept: int) -> bool:
    """Take away the oldest turn of the model with its results, and leave a note; False if nothing may go."""
    noted = len(turns) > 1 and turns[1].text == NOTE
    first = 2 if noted else 1
    if len(turns) - first - 2 < kept:
        return False
    last = first + 1
    while last < len(turns) and turns[last].role != "assistant":
        last += 1
    del turns[first:last]
    if not noted:
        turns.insert(1, Turn("user", NOTE))
    return True
