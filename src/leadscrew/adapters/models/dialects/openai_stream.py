"""Streams of the OpenAI dialect: a whole reply as events, and events as a whole reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leadscrew.adapters.models.dialects import sse
from leadscrew.adapters.models.dialects.form import mended, pieces

DONE = b"data: [DONE]\n\n"
GROWING = ("content", "refusal", "reasoning_content", "reasoning")
"""Fields of a message that come in pieces."""


def events(reply: Mapping[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    """Yield a whole reply as the events of a stream.

    >>> reply = {"id": "1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "four"},
    ...                                  "finish_reason": "stop"}]}
    >>> [sse.payload(e)["choices"][0]["delta"] for e in list(events(reply, include_usage=False))[:-1]]
    [{'role': 'assistant', 'content': ''}, {'content': 'four'}, {}]
    """
    head = {key: value for key, value in reply.items() if key not in ("choices", "usage", "object")}
    head = {"object": "chat.completion.chunk", **head}

    def chunk(index: int, delta: Mapping[str, Any], **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": None, **more}
        return sse.block({**head, "choices": [choice]})

    for place, choice in enumerate(reply["choices"]):
        index = place if not isinstance(choice.get("index"), int) else choice["index"]
        yield from _deltas(choice, lambda delta, index=index: chunk(index, delta))
        more = {key: value for key, value in choice.items() if key not in ("index", "message")}
        if more.get("logprobs") is not None:
            yield chunk(index, {}, logprobs=more.pop("logprobs"))
        yield chunk(index, {}, **more)
    if include_usage and reply.get("usage") is not None:
        yield sse.block({**head, "choices": [], "usage": reply["usage"]})
    yield DONE


def _deltas(choice: Mapping[str, Any], chunk: Any) -> Iterator[bytes]:
    message = choice["message"]
    first = {key: value for key, value in message.items() if key != "tool_calls"}
    first.update({key: "" for key in GROWING if isinstance(first.get(key), str)})
    yield chunk(first)
    for key in ("reasoning_content", "reasoning", "content", "refusal"):
        for piece in pieces(message[key] if isinstance(message.get(key), str) else ""):
            yield chunk({key: piece})
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = {**call["function"], "arguments": ""}
        yield chunk({"tool_calls": [{**call, "index": place, "function": function}]})
        for piece in pieces(call["function"].get("arguments", "")):
            yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})


class OpenAIGatherer:
    """Puts chunks together; see `Gatherer`.

    >>> g = OpenAIGatherer()
    >>> g.feed(b'data: {"choices":[{"index":0,"delta":{"content":"fo"}}]}\\n\\n')
    >>> g.feed(b'data: {"choices":[{"index":0,"delta":{"content":"ur"},"finish_reason":"stop"}]}\\n\\n')
    >>> g.ended, g.reply()["choices"][0]["message"]["content"]
    (False, 'four')
    """

    def __init__(self) -> None:
        self.ended = False
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._usage: Any = None
        self._error: Any = None

    def feed(self, event: bytes) -> None:
        """Take one event block."""
        data = sse.parse(event)[1]
        if not data:
            return
        if data.strip() == "[DONE]":
            self.ended = True
            return
        chunk = sse.payload(event)
        if chunk is None:
            self._spoil("an event of the stream is no JSON object")
            return
        if chunk.get("error"):
            self._error = self._error or chunk["error"]
            return
        for key, value in chunk.items():
            if key not in ("choices", "usage", "object"):
                self._head.setdefault(key, value)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choices = chunk.get("choices") or []
        if not isinstance(choices, list):
            self._spoil("the choices of the stream are no list")
            return
        for choice in choices:
            if not isinstance(choice, Mapping) or not isinstance(choice.get("index", 0), int):
                self._spoil("a choice of the stream is no object with an index")
            else:
                fault = self._choices.setdefault(choice.get("index", 0), _Choice()).feed(choice)
                if fault:
                    self._spoil(fault)

    def _spoil(self, message: str) -> None:
        self._error = self._error or {"message": message, "type": "broken_stream", "param": None, "code": None}

    def reply(self) -> dict[str, Any]:
        """Return the reply so far."""
        out: dict[str, Any] = {**self._head, "object": "chat.completion"}
        out["choices"] = [{"index": index, **choice.whole()} for index, choice in sorted(self._choices.items())]
        if self._usage is not None:
            out["usage"] = self._usage
        if self._error is not None:
            out["error"] = self._error
        return out


class _Choice:
    def __init__(self) -> None:
        self._fields: dict[str, Any] = {"finish_reason": None}
        self._logprobs: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._pieces: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}

    def feed(self, choice: Mapping[str, Any]) -> str:
        """Take one choice of a chunk and return what is wrong with it."""
        for key, value in choice.items():
            if key == "logprobs" and isinstance(value, Mapping):
                for name, entries in value.items():
                    if isinstance(entries, list):
                        if self._logprobs.get(name) is None:
                            self._logprobs[name] = []
                        self._logprobs[name] += entries
                    else:
                        self._logprobs.setdefault(name, entries)
            elif key not in ("index", "delta") and (value is not None or key not in self._fields):
                self._fields[key] = value
        delta = choice.get("delta")
        if delta is None:
            return ""
        if not isinstance(delta, Mapping):
            return "a delta of the stream is no object"
        for key, value in delta.items():
            if key == "tool_calls":
                if value is not None and not isinstance(value, list):
                    return "the tool calls of a delta are no list"
                for call in value or ():
                    fault = self._call(call)
                    if fault:
                        return fault
            elif key in GROWING and value is not None:
                if not isinstance(value, str):
                    return f"the {key} of a delta is no text"
                self._pieces.setdefault(key, []).append(value)
            elif value is not None or key not in self._message:
                self._message[key] = value
        return ""

    def _call(self, delta: Any) -> str:
        function = delta.get("function") if isinstance(delta, Mapping) else None
        if not isinstance(function, Mapping | None) or not isinstance(delta, Mapping):
            return "a tool call of a delta is no object"
        index = delta.get("index")
        if not isinstance(index, int):
            # Some servers leave the index out: a new identity is a new call.
            known = [i for i, call in self._calls.items() if call.get("id") == delta.get("id")]
            last = max(self._calls, default=-1)
            index = (known[0] if known else last + 1) if delta.get("id") else max(last, 0)
        call = self._calls.setdefault(index, {})
        call.update({k: v for k, v in delta.items() if k not in ("index", "function") and v is not None})
        for key, value in (function or {}).items():
            if key != "arguments":
                call.setdefault("function", {})[key] = value
            elif isinstance(value, str):
                self._arguments.setdefault(index, []).append(value)
            elif value is not None:
                return "the arguments of a tool call are no text"
        return ""

    def whole(self) -> dict[str, Any]:
        message = {**self._message, **{key: mended("".join(parts)) for key, parts in self._pieces.items()}}
        if self._calls:
            message["tool_calls"] = [
                {
                    **call,
                    "function": {
                        **call.get("function", {}),
                        "arguments": mended("".join(self._arguments.get(index, ()))),
                    },
                }
                for index, call in sorted(self._calls.items())
            ]
        out = {**self._fields, "message": message}
        if self._logprobs:
            out["logprobs"] = self._logprobs
        return out


def is_final(event: bytes) -> bool:
    """Whether an event belongs to the end of a stream.

    >>> is_final(DONE), is_final(b'data: {"choices":[{"delta":{"content":"four"},"finish_reason":null}]}\\n\\n')
    (True, False)
    """
    data = sse.parse(event)[1]
    if not data:
        return False
    chunk = sse.payload(event)
    if chunk is None or chunk.get("error"):
        return True
    choices = chunk.get("choices")
    if not choices or not isinstance(choices, list):
        return chunk.get("usage") is not None
    return any(isinstance(choice, Mapping) and choice.get("finish_reason") for choice in choices)
