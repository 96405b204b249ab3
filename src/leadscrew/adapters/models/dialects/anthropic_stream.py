"""Streams of the Anthropic dialect: a whole reply as events, and events as a whole reply."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from leadscrew.adapters.models.dialects import sse
from leadscrew.adapters.models.dialects.form import mended, pieces

_LATE = ("stop_reason", "stop_sequence", "stop_details")
"""Fields of a message that are only known at its end."""
_GROWING = {"text_delta": "text", "thinking_delta": "thinking"}


def events(reply: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a whole reply as the events of a stream.

    >>> reply = {"content": [{"type": "text", "text": "four"}], "stop_reason": "end_turn", "usage": {"output_tokens": 2}}
    >>> [sse.parse(e)[0].removeprefix("content_block_") for e in events(reply)]
    ['message_start', 'start', 'delta', 'stop', 'message_delta', 'message_stop']
    """
    usage = reply.get("usage")
    usage = usage if isinstance(usage, Mapping) else {"input_tokens": 0, "output_tokens": 0}
    start = {"type": "message", "role": "assistant", **reply, "content": []}
    start.update({field: None for field in _LATE if field in reply or field != "stop_details"})
    # The count of output is not yet known at the start; the end repeats all figures.
    start["usage"] = {**usage, "output_tokens": 0}
    yield _event("message_start", message=start)
    for index, block in enumerate(reply["content"]):
        yield from _block(index, block)
    late = {field: reply.get(field) for field in _LATE if field in reply or field != "stop_details"}
    yield _event("message_delta", delta=late, usage=usage)
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return sse.block({"type": kind, **fields}, kind)


def _block(index: int, block: Mapping[str, Any]) -> Iterator[bytes]:
    kind = block["type"]
    start = dict(block)
    deltas: list[dict[str, Any]] = []
    if kind in ("text", "thinking"):
        start[kind] = ""
        deltas += [{"type": f"{kind}_delta", kind: piece} for piece in pieces(block[kind])]
        signature = block.get("signature")
        if kind == "thinking" and isinstance(signature, str) and signature:
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": signature})
    elif isinstance(block.get("input"), Mapping):
        start["input"] = {}
        whole = json.dumps(block["input"], separators=(",", ":"))
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(whole)]
    yield _event("content_block_start", index=index, content_block=start)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


class AnthropicGatherer:
    """Puts the events of a message together; see `Gatherer`.

    >>> g = AnthropicGatherer()
    >>> for event in events({"content": [{"type": "text", "text": "four"}], "stop_reason": "end_turn", "usage": {}}):
    ...     g.feed(event)
    >>> g.ended, g.reply()["content"], g.reply()["stop_reason"]
    (True, [{'type': 'text', 'text': 'four'}], 'end_turn')
    """

    def __init__(self) -> None:
        self.ended = False
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}
        self._error: Any = None

    def feed(self, event: bytes) -> None:
        """Take one event block."""
        if not sse.parse(event)[1]:
            return
        data = sse.payload(event)
        if data is None:
            self._spoil("an event of the stream is no JSON object")
            return
        kind = data.get("type")
        if kind == "error" or data.get("error"):
            self._error = self._error or data.get("error") or "an error without a text"
        elif kind == "message_stop":
            self.ended = True
        elif kind == "message_start":
            self._start(data.get("message"))
        elif kind == "message_delta":
            self._end(data)
        elif kind in ("content_block_start", "content_block_delta"):
            self._grow(data)

    def _spoil(self, message: str) -> None:
        self._error = self._error or {"type": "broken_stream", "message": message}

    def _start(self, message: Any) -> None:
        if not isinstance(message, Mapping):
            self._spoil("the stream starts without a message")
            return
        self._message = {key: value for key, value in message.items() if key != "content"}

    def _end(self, data: Mapping[str, Any]) -> None:
        delta, usage = data.get("delta") or {}, data.get("usage") or {}
        if not isinstance(delta, Mapping) or not isinstance(usage, Mapping):
            self._spoil("the end of the message is no object")
            return
        self._message.update(delta)
        before = self._message.get("usage")
        known = {key: value for key, value in usage.items() if value is not None}
        self._message["usage"] = {**(before if isinstance(before, Mapping) else {}), **known}

    def _grow(self, data: Mapping[str, Any]) -> None:
        index = data.get("index")
        if not isinstance(index, int):
            self._spoil("a block of the stream has no index")
        elif data["type"] == "content_block_start":
            if isinstance(data.get("content_block"), Mapping):
                self._blocks[index] = _Block(data["content_block"])
            else:
                self._spoil("a block of the stream is no object")
        elif index not in self._blocks or not isinstance(data.get("delta"), Mapping):
            self._spoil("a piece of the stream belongs to no block")
        elif not self._blocks[index].feed(data["delta"]):
            self._spoil("a piece of the stream is no text")

    def reply(self) -> dict[str, Any]:
        """Return the reply so far. The input of a tool call that the token limit cut is empty."""
        content = [block.whole() for _, block in sorted(self._blocks.items())]
        out = {**self._message, "content": [block for block in content if block is not None]}
        if None in content and self._message.get("stop_reason") != "max_tokens":
            out["error"] = {"type": "broken_stream", "message": "the input of a tool call is no JSON object"}
        elif None in content:
            out["content"] = [
                block.whole() or {**block.start, "input": {}} for _, block in sorted(self._blocks.items())
            ]
        if self._error is not None:
            out["error"] = self._error
        return out


class _Block:
    def __init__(self, start: Mapping[str, Any]) -> None:
        self.start = dict(start)
        self._pieces: dict[str, list[str]] = {}
        self._citations: list[Any] = []

    def feed(self, delta: Mapping[str, Any]) -> bool:
        """Take a piece; False if it is not what its type says."""
        kind = delta.get("type")
        if kind == "citations_delta":
            self._citations.append(delta.get("citation"))
            return True
        field = {"input_json_delta": "partial_json", "signature_delta": "signature", **_GROWING}.get(str(kind))
        if field is None:
            return True  # a kind of piece that came later than this program
        if not isinstance(delta.get(field), str):
            return False
        self._pieces.setdefault(field, []).append(delta[field])
        return True

    def whole(self) -> dict[str, Any] | None:
        """Return the block, or None if its input is no JSON object."""
        out = dict(self.start)
        if self._citations:
            out["citations"] = [*(out.get("citations") or ()), *self._citations]
        for field, parts in self._pieces.items():
            text = mended("".join(parts))
            if field != "partial_json":
                out[field] = str(out.get(field) or "") + text
            elif text:
                try:
                    out["input"] = json.loads(text)
                except (ValueError, RecursionError):
                    return None
                if not isinstance(out["input"], dict):
                    return None
        return out


def is_final(event: bytes) -> bool:
    """Whether an event belongs to the end of a stream.

    >>> is_final(b'event: message_stop\\ndata: {"type":"message_stop"}\\n\\n')
    True
    """
    if not sse.parse(event)[1]:
        return False
    data = sse.payload(event)
    return data is None or data.get("type") in ("message_delta", "message_stop", "error")
