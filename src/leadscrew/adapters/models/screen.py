"""Takes secrets out of a streamed reply while it passes, also where one is cut into the pieces of several events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leadscrew.adapters.models.dialects import sse
from leadscrew.adapters.models.redact import RedactingStream, Redactor

_FIXED = frozenset({"type", "role", "id", "name"})
"""Texts of a delta that come whole."""
_ENDS = frozenset({"content_block_stop", "message_delta", "message_stop", "error"})
_DEEPEST = 16

Path = tuple[Any, ...]


class Screen:
    """Passes the events of one stream on to `put`.

    Texts that grow from event to event are read as one: what may be the beginning of a secret waits for the next piece, and
    goes out at the latest with the end of its text.

    >>> out = []
    >>> screen = Screen(Redactor({"KEY": "sk-12345678"}), out.append)
    >>> for text in ("my key: sk-123", "45678!"):
    ...     screen.put(sse.block({"choices": [{"index": 0, "delta": {"content": text}}]}))
    >>> [sse.payload(event)["choices"][0]["delta"]["content"] for event in out]
    ['my key: ', '[redacted:KEY]!']
    """

    def __init__(self, redact: Redactor, put: Callable[[bytes], None]) -> None:
        self._redact, self._put = redact, put
        self._texts: dict[Path, RedactingStream] = {}
        self._last: dict[Path, tuple[str, dict[str, Any], Path]] = {}
        """By text: the event that brought its last piece, and where in it."""

    def put(self, event: bytes) -> None:
        """Take one event and pass on what can be."""
        value = sse.payload(event)
        if value is None:
            self._end({})
            self._put(self._redact.data(event))
            return
        name = sse.parse(event)[0]
        here: dict[Path, Path] = {}
        changed = False
        for text, path in list(_growing(value)):
            stream = self._texts.setdefault(text, self._redact.stream())
            said = _at(value, path)
            passed = _decoded(stream.feed(_encoded(said)))
            if passed != said:
                _set(value, path, passed)
                changed = True
            here[text] = path
            self._last[text] = (name, value, path)
        if _ends(value):
            for text, rest in self._end(here).items():
                _set(value, here[text], _at(value, here[text]) + rest)
                changed = True
        self._put(self._redact.data(sse.block(value, name) if changed else event))

    def _end(self, here: Mapping[Path, Path]) -> dict[Path, str]:
        """End all texts: send what still waits, but return it for those that have a place `here`."""
        back: dict[Path, str] = {}
        for text, stream in self._texts.items():
            rest = _decoded(stream.close())
            if rest and text in here:
                back[text] = rest
            elif rest:
                name, value, path = self._last[text]
                self._put(sse.block(_alone(value, path, rest), name))
        self._texts.clear()
        self._last.clear()
        return back


def _growing(value: Any, inside: bool = False, text: Path = (), path: Path = ()) -> Iterator[tuple[Path, Path]]:
    """Yield every text of a delta: which one it is, by names and indexes, and where it stands in this event."""
    if len(path) > _DEEPEST:
        return
    if isinstance(value, dict):
        index = value.get("index")
        text = (*text, index) if isinstance(index, int) else text
        for key, item in value.items():
            yield from _growing(item, inside or key == "delta", (*text, key), (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _growing(item, inside, text, (*path, place))
    elif isinstance(value, str) and inside and path[-1] not in _FIXED:
        yield text, path


def _ends(value: Mapping[str, Any]) -> bool:
    choices = value.get("choices")
    done = isinstance(choices, list) and any(isinstance(c, dict) and c.get("finish_reason") for c in choices)
    return done or value.get("type") in _ENDS or bool(value.get("error"))


def _at(value: Any, path: Path) -> str:
    for key in path:
        value = value[key]
    return str(value)


def _set(value: Any, path: Path, text: str) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = text


def _alone(value: Any, path: Path, text: str, inside: bool = False) -> Any:
    """Return an event with `text` as its only news: names and further texts came with the event itself."""
    if not path:
        return text
    key, rest = path[0], path[1:]
    if isinstance(value, list):
        return [_alone(value[key], rest, text, inside)]
    kept = {name: item for name, item in value.items() if not inside or name == "type" or isinstance(item, int)}
    return {**kept, key: _alone(value[key], rest, text, inside or key == "delta")}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
