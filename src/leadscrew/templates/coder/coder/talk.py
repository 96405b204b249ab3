"""The conversation in neutral form; `dialects` and `tags` write it as a model wants it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Call:
    """One tool call of the model. `problem` says why it cannot be run as it stands; then `arguments` may be empty.

    `extra` is what the OpenAI dialect of some providers wants back with the call (a signature).
    """

    id: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The answer to one call, as the model will read it: `text` is whole, with fence and notes."""

    id: str
    tool: str
    text: str
    ok: bool = True


@dataclass(frozen=True)
class Turn:
    """One turn: the user's text, the model's text and calls, or the results of calls.

    `thinking` is what a model thought before it called, which its side may want back unchanged: blocks in the Anthropic
    dialect, fields of the message in the OpenAI one. `shortened` says that the text as the model wrote it no longer
    counts; it is written anew from its parts.
    """

    role: Literal["user", "assistant", "results"]
    text: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    thinking: tuple[Mapping[str, Any], ...] = ()
    shortened: bool = False


@dataclass(frozen=True)
class Usage:
    """Tokens of one request, as the model's side counted them; None where it did not say."""

    prompt: int | None = None
    reply: int | None = None


@dataclass(frozen=True)
class Reply:
    """What came back: text, calls in the native form, and why it stopped.

    `stop` is `end`, `calls`, `length` (cut off in the middle) or `declined`.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    stop: str = "end"
    usage: Usage = Usage()
    thinking: tuple[Mapping[str, Any], ...] = ()
