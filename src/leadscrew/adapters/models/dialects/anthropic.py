"""The Anthropic messages dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from leadscrew.adapters.models.dialects import anthropic_request, anthropic_stream, sse
from leadscrew.adapters.models.dialects.form import (
    count_of,
    counted,
    error_text,
    holds_half,
    joined,
    kind_of,
    pinned_name,
)
from leadscrew.core.call import Pin

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicDialect:
    """Anthropic messages; every method is described at `Dialect`."""

    name = "anthropic"

    def kept(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check a request and keep what is known."""
        return anthropic_request.kept(body)

    def pinned(self, body: Mapping[str, Any], pin: Pin) -> dict[str, Any]:
        """Pin a request. Thinking gets what room the pinned `max_tokens` leaves; if that is too little, it is switched off.

        >>> ANTHROPIC.pinned({"messages": [{"role": "user", "content": "hi"}], "metadata": {}}, Pin("meta", "anthropic/m"))
        {'messages': [{'role': 'user', 'content': 'hi'}], 'max_tokens': 1024, 'model': 'm'}
        """
        out = anthropic_request.kept(body)
        if pin.temperature is not None:
            out["temperature"] = pin.temperature
        out.update(pin.extra)
        out["max_tokens"] = min(count_of(out.get("max_tokens", pin.max_tokens), "max_tokens"), pin.max_tokens)
        thinking = out.get("thinking")
        if isinstance(thinking, Mapping) and thinking.get("type") == "enabled" and "thinking" not in pin.extra:
            room = min(thinking["budget_tokens"], out["max_tokens"] - 1)
            enough = room >= anthropic_request.LEAST_THINKING
            out["thinking"] = {**thinking, "budget_tokens": room} if enough else {"type": "disabled"}
        for field in ("stream", "n"):
            out.pop(field, None)
        out["model"] = pinned_name(pin)
        return out

    def prompt(self, body: Mapping[str, Any]) -> str:
        """Render what the model reads."""
        return anthropic_request.prompt(body)

    def max_tokens(self, body: Mapping[str, Any]) -> int:
        """Return the limit of the reply."""
        return int(body.get("max_tokens") or 0)

    def usage(self, reply: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Return the tokens of prompt and reply; those written to and read from the provider's cache are the prompt's.

        >>> ANTHROPIC.usage({"usage": {"input_tokens": 3, "cache_read_input_tokens": 40, "output_tokens": 7}})
        (43, 7)
        """
        usage = reply.get("usage")
        if not isinstance(usage, Mapping):
            return None, None
        parts = [usage.get("input_tokens")]
        parts += [usage.get(f) or 0 for f in ("cache_creation_input_tokens", "cache_read_input_tokens")]
        counts = [counted(part) for part in parts]
        known = [count for count in counts if count is not None]
        return (sum(known) if len(known) == len(counts) else None), counted(usage.get("output_tokens"))

    def text(self, reply: Mapping[str, Any]) -> str:
        """Return the text of a reply.

        >>> ANTHROPIC.text({"content": [{"type": "text", "text": "four"}]})
        'four'
        """
        content = reply.get("content")
        lines = []
        for block in content if isinstance(content, list) else ():
            if isinstance(block, Mapping) and block.get("type") == "text":
                lines.append(str(block.get("text", "")))
            elif isinstance(block, Mapping) and block.get("type") == "tool_use":
                lines.append(f"[call {block.get('name', '')}] {json.dumps(block.get('input'), ensure_ascii=False)}")
        return joined(lines)

    def finish(self, reply: Mapping[str, Any]) -> str:
        """Return the stop reason."""
        reason = reply.get("stop_reason")
        return reason if isinstance(reason, str) else ""

    def fault(self, reply: Mapping[str, Any]) -> str:
        """Say what is wrong with a reply.

        >>> ANTHROPIC.fault({"content": [{"type": "text", "text": "fo"}]})
        'it does not say why it ended: it may be cut'
        """
        if not isinstance(reply, Mapping):
            return f"it is {kind_of(reply)}, no object"
        if error_text(reply):
            return f"it is an error: {error_text(reply)}"
        content = reply.get("content")
        if not isinstance(content, list):
            return "it has no content"
        for block in content:
            fault = _fault_of(block)
            if fault:
                return fault
        if holds_half(reply):
            return "a text of it holds half of a character"
        return "" if self.finish(reply) else "it does not say why it ended: it may be cut"

    def error(self, message: str, kind: str, status: int) -> dict[str, Any]:
        """Return an error.

        >>> ANTHROPIC.error("no visit", "permission", 403)["error"]["type"]
        'permission_error'
        """
        name = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": name, "message": message, "code": kind}}

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """Return the event for an error."""
        return sse.block(error, "error")

    def events(self, reply: Mapping[str, Any], *, include_usage: bool = False) -> Iterator[bytes]:
        """Yield a reply as a stream; the usage is always part of it."""
        return anthropic_stream.events(reply)

    def gather(self) -> anthropic_stream.AnthropicGatherer:
        """Return a new gatherer."""
        return anthropic_stream.AnthropicGatherer()

    def is_final(self, event: bytes) -> bool:
        """Whether an event has the stop reason, an error, or the mark of the end."""
        return anthropic_stream.is_final(event)

    def with_model(self, event: bytes, name: str) -> bytes:
        """Replace the model's name, which only the first event has."""
        start = sse.payload(event)
        message = None if start is None else start.get("message")
        if start is None or not isinstance(message, Mapping) or "model" not in message:
            return event
        return sse.block({**start, "message": {**message, "model": name}}, sse.parse(event)[0])


def _fault_of(block: Any) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str):
        return "a block of its content has no type"
    wanted: tuple[tuple[str, type], ...] = {
        "text": (("text", str),),
        "thinking": (("thinking", str),),
        "tool_use": (("id", str), ("name", str), ("input", Mapping)),
    }.get(kind, ())
    for field, type_ in wanted:
        if not isinstance(block.get(field), type_):
            return f"the {field} of a block of the type {kind} is {kind_of(block.get(field))}"
    return ""


ANTHROPIC = AnthropicDialect()
"""The dialect itself; it has no state."""
