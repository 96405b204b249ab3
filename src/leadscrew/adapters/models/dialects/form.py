"""What every dialect offers, and the checks that their requests have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from leadscrew.core.call import Pin
from leadscrew.core.canonical import json_fault
from leadscrew.errors import UsageError

_HALF = re.compile("[\ud800-\udfff]")
PIECE = 80
"""Characters per event when a whole reply is sent as a stream."""


class BadRequest(UsageError):
    """A request that no upstream can be asked as it stands. The text is meant for the program that wrote it."""


class Gatherer(Protocol):
    """Puts the events of a streamed reply together again."""

    @property
    def ended(self) -> bool:
        """Whether the mark of the end has come. Without it the reply is cut."""

    def feed(self, event: bytes) -> None:
        """Take one event block. What cannot be read makes the reply one with an `error`; nothing is raised."""

    def reply(self) -> dict[str, Any]:
        """Return the reply so far, in the unstreamed form."""


class Dialect(Protocol):
    """How requests and replies of one kind of model service look. Pure: no network, no clock, no randomness."""

    @property
    def name(self) -> str:
        """`openai` or `anthropic`."""

    def kept(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check a request and return a copy with nothing but known fields, the model's name not among them.

        Raises `BadRequest` for wrong shapes, more than one reply at a time, and whatever would make the service fetch
        something.
        """

    def pinned(self, body: Mapping[str, Any], pin: Pin) -> dict[str, Any]:
        """Return `kept(body)` with the model, the temperature and everything else that is pinned. Raises `BadRequest`."""

    def prompt(self, body: Mapping[str, Any]) -> str:
        """Return everything textual that the model will read, tool definitions included."""

    def max_tokens(self, body: Mapping[str, Any]) -> int:
        """Return the most tokens that the reply may have; 0 if the request does not say."""

    def usage(self, reply: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Return the tokens of prompt and reply as the upstream counts them; None for what it does not tell."""

    def text(self, reply: Mapping[str, Any]) -> str:
        """Return the text of a reply, its tool calls included."""

    def finish(self, reply: Mapping[str, Any]) -> str:
        """Return why the reply ended, in the words of the dialect; empty if it does not say."""

    def fault(self, reply: Mapping[str, Any]) -> str:
        """Say what is wrong with a reply; empty for a whole one. One that the token limit stopped is whole."""

    def error(self, message: str, kind: str, status: int) -> dict[str, Any]:
        """Return an error in the dialect's form. `kind` is our own word for the reason, `status` the HTTP status."""

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """Return the event that ends a stream with such an error."""

    def events(self, reply: Mapping[str, Any], *, include_usage: bool = False) -> Iterator[bytes]:
        """Yield a whole reply as the events of a stream. `include_usage` matters to the OpenAI dialect only."""

    def gather(self) -> Gatherer:
        """Return a new gatherer."""

    def is_final(self, event: bytes) -> bool:
        """Whether an event belongs to the end of a stream, so that a client may take the reply for whole after it."""

    def with_model(self, event: bytes, name: str) -> bytes:
        """Return an event with the model's name replaced, where it has one."""


def checked(body: Any) -> Mapping[str, Any]:
    """Return `body` if it is a JSON object that can be recorded and sent; raises `BadRequest` otherwise."""
    if not isinstance(body, Mapping):
        raise BadRequest(f"the body is {kind_of(body)}; it must be a JSON object with 'messages'.")
    fault = json_fault(dict(body))
    if fault:
        raise BadRequest(f"the body holds {fault}, which cannot be sent; leave it out.")
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        raise BadRequest("'messages' must be a list with at least one message.")
    if holds_half(body):
        raise BadRequest("a text holds half of a character (a surrogate without its pair); send whole Unicode.")
    return body


def holds_half(value: Any) -> bool:
    """Whether a text anywhere in a JSON value holds half of a surrogate pair, which cannot be written as UTF-8.

    >>> holds_half({"a": ["\\ud83d"]}), holds_half({"a": ["\\U0001f600"]})
    (True, False)
    """
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, str) and _HALF.search(item):
            return True
    return False


def mended(text: str) -> str:
    """Return a text put together from pieces, surrogate pairs that were cut apart made whole and lone halves replaced.

    >>> mended("\\ud83d" + "\\ude00") == "\\U0001f600"
    True
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _HALF.search(text) else text


def kind_of(value: Any) -> str:
    """Name the JSON type of a value.

    >>> kind_of([]), kind_of(True), kind_of(1.5)
    ('a list', 'a boolean', 'a number')
    """
    if value is None:
        return "null"
    names = ((bool, "a boolean"), (int | float, "a number"), (str, "a text"), (list, "a list"), (Mapping, "an object"))
    return next((name for kind, name in names if isinstance(value, kind)), f"a {type(value).__name__}")


def wrong(where: str, value: Any, wanted: str) -> BadRequest:
    """Return the error for a value of the wrong shape."""
    return BadRequest(f"{where} is {kind_of(value)}; it must be {wanted}.")


def text_of(value: Any, where: str) -> str:
    """Return a text; raises `BadRequest` for anything else."""
    if not isinstance(value, str):
        raise wrong(where, value, "a text")
    return value


def name_of(value: Any, where: str) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(where, value, "a text that is not empty")
    return value


def texts_of(value: Any, where: str) -> list[str]:
    """Return a list of texts."""
    if not isinstance(value, list):
        raise wrong(where, value, "a list of texts")
    return [text_of(item, f"{where}[{i}]") for i, item in enumerate(value)]


def object_of(value: Any, where: str) -> dict[str, Any]:
    """Return a copy of an object."""
    if not isinstance(value, Mapping):
        raise wrong(where, value, "an object")
    return dict(value)


def flag_of(value: Any, where: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise wrong(where, value, "true or false")
    return value


def number_of(value: Any, where: str) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong(where, value, "a number")
    return value


def whole_of(value: Any, where: str) -> int:
    """Return a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(where, value, "a whole number")
    return value


def count_of(value: Any, where: str) -> int:
    """Return a whole number of at least 1."""
    if whole_of(value, where) < 1:
        raise BadRequest(f"{where} is {value}; it must be at least 1.")
    return int(value)


def objects_of(value: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place and the value of every object of a list."""
    if not isinstance(value, list):
        raise wrong(where, value, "a list of objects")
    for i, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise wrong(f"{where}[{i}]", item, "an object")
        yield f"{where}[{i}]", item


def some(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without the entries that are None.

    >>> some({"a": None, "b": 0})
    {'b': 0}
    """
    return {key: value for key, value in values.items() if value is not None}


def pinned_name(pin: Pin) -> str:
    """Return the model's name as its provider knows it.

    >>> pinned_name(Pin("solver", "openrouter/qwen/qwen3-8b"))
    'qwen/qwen3-8b'
    """
    return pin.model.partition("/")[2] or pin.model


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Yield a text in pieces of at most `size` characters.

    >>> list(pieces("abcde", 2))
    ['ab', 'cd', 'e']
    """
    for start in range(0, len(text), size):
        yield text[start : start + size]


def counted(value: Any) -> int | None:
    """Return a count of tokens, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def joined(parts: Iterable[str]) -> str:
    """Join the parts of a rendered text that are not empty."""
    return "\n\n".join(part for part in parts if part)


def error_text(reply: Mapping[str, Any]) -> str:
    """Return the message of a reply that is an error; empty if it is none.

    >>> error_text({"error": {"message": "overloaded"}}), error_text({"choices": []})
    ('overloaded', '')
    """
    error = reply.get("error")
    if not error:
        return ""
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or error)
