"""Server-sent events as bytes: cut a stream into event blocks, read a block, write one.

The format: the section on server-sent events of the HTML standard. Every block in this package ends with an empty line and has
LF line ends, so it can be passed on as it is.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, overload


class Splitter:
    """Takes the bytes of a stream as they come and gives back whole event blocks. Comments are left out.

    >>> s = Splitter()
    >>> s.feed(b": hello\\r\\ndata: 1\\r"), s.feed(b"\\n\\r\\ndata: 2\\n"), s.close()
    ([], [b'data: 1\\n\\n'], [b'data: 2\\n\\n'])
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._rest: list[bytes] = []
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the blocks that end in `chunk`."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        *whole, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        blocks: list[bytes] = []
        for line in whole:
            self._rest.append(line)
            line = b"".join(self._rest)
            self._rest.clear()
            blocks.extend(self._take(line))
        if rest:
            self._rest.append(rest)
        return blocks

    def close(self) -> list[bytes]:
        """Return a last block that lacks nothing but its empty line; a line that was cut is dropped, and its block too."""
        cut = bool(self._rest)
        self._rest.clear()
        blocks = list(self._take(b""))
        return [] if cut else blocks

    def _take(self, line: bytes) -> Iterator[bytes]:
        if self._first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        if line:
            if not line.startswith(b":"):
                self._lines.append(line)
        elif self._lines:
            block = b"\n".join(self._lines) + b"\n\n"
            self._lines.clear()
            yield block


@overload
def split(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]: ...
@overload
def split(chunks: Iterable[bytes]) -> Iterator[bytes]: ...
def split(chunks: Iterable[bytes] | AsyncIterable[bytes]) -> Iterator[bytes] | AsyncIterator[bytes]:
    """Yield the event blocks of a stream, however its bytes are cut into chunks.

    >>> list(split([b"data: a\\nda", b"ta: b\\n\\n: ping\\n\\n"]))
    [b'data: a\\ndata: b\\n\\n']
    """
    return _split_later(chunks) if isinstance(chunks, AsyncIterable) else _split_now(chunks)


def _split_now(chunks: Iterable[bytes]) -> Iterator[bytes]:
    splitter = Splitter()
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.close()


async def _split_later(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    splitter = Splitter()
    async for chunk in chunks:
        for block in splitter.feed(chunk):
            yield block
    for block in splitter.close():
        yield block


def parse(event: bytes) -> tuple[str, str]:
    """Return the name and the data of an event block; several lines of data are joined by line ends.

    >>> parse(b"event: ping\\ndata: {\\ndata: }\\n\\n")
    ('ping', '{\\n}')
    """
    name, data = "", []
    for line in event.replace(b"\r\n", b"\n").split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value.decode("utf-8", "replace"))
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return name, "\n".join(data)


def payload(event: bytes) -> dict[str, Any] | None:
    """Return the JSON object that an event carries, or None if it carries none.

    >>> payload(b'data: {"a": 1}\\n\\n'), payload(b"data: [DONE]\\n\\n")
    ({'a': 1}, None)
    """
    try:
        value = json.loads(parse(event)[1])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def block(value: Any, name: str = "") -> bytes:
    """Return an event block that carries `value` as JSON.

    >>> block({"a": 1}, "ping")
    b'event: ping\\ndata: {"a":1}\\n\\n'
    """
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
