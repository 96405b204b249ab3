"""The OpenAI chat-completions dialect, which most providers and local servers speak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leadscrew.adapters.models.dialects import openai_request, openai_stream, sse
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
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class OpenAIDialect:
    """OpenAI chat completions; every method is described at `Dialect`."""

    name = "openai"

    def kept(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check a request and keep what is known."""
        return openai_request.kept(body)

    def pinned(self, body: Mapping[str, Any], pin: Pin) -> dict[str, Any]:
        """Pin a request. The limit is named `max_tokens`, which every server obeys.

        OpenAI's own reasoning models know only `max_completion_tokens`: that name is used for the provider `openai`, and
        for any other whose pinned `extra` has it.

        >>> OPENAI.pinned({"messages": [{"role": "user", "content": "hi"}], "user": "me"}, Pin("solver", "local/tiny"))
        {'messages': [{'role': 'user', 'content': 'hi'}], 'max_tokens': 1024, 'model': 'tiny'}
        """
        out = {**openai_request.kept(body)}
        asked = [out.pop(field) for field in ("max_tokens", "max_completion_tokens") if field in out]
        if pin.temperature is not None:
            out["temperature"] = pin.temperature
        limits = {k: count_of(v, k) for k, v in pin.extra.items() if k in ("max_tokens", "max_completion_tokens")}
        own = pin.model.startswith("openai/") or "max_completion_tokens" in limits
        out.update((key, value) for key, value in pin.extra.items() if key not in limits)
        # A pinned limit goes before the program's, and neither goes beyond the pin's own bound.
        out["max_completion_tokens" if own else "max_tokens"] = min([*(limits.values() or asked), pin.max_tokens])
        for field in ("stream", "stream_options", "n"):
            out.pop(field, None)
        out["model"] = pinned_name(pin)
        return out

    def prompt(self, body: Mapping[str, Any]) -> str:
        """Render what the model reads."""
        return openai_request.prompt(body)

    def max_tokens(self, body: Mapping[str, Any]) -> int:
        """Return the limit of the reply."""
        return int(body.get("max_completion_tokens") or body.get("max_tokens") or 0)

    def usage(self, reply: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Return the tokens of prompt and reply."""
        usage = reply.get("usage")
        if not isinstance(usage, Mapping):
            return None, None
        return counted(usage.get("prompt_tokens")), counted(usage.get("completion_tokens"))

    def text(self, reply: Mapping[str, Any]) -> str:
        """Return the text of a reply.

        >>> OPENAI.text({"choices": [{"message": {"content": "four"}}]})
        'four'
        """
        message = _message(reply)
        calls = message.get("tool_calls")
        lines = [str(message.get("content") or ""), str(message.get("refusal") or "")]
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                lines.append(f"[call {function.get('name', '')}] {function.get('arguments', '')}")
        return joined(lines)

    def finish(self, reply: Mapping[str, Any]) -> str:
        """Return the finish reason."""
        reason = _choice(reply).get("finish_reason")
        return reason if isinstance(reason, str) else ""

    def fault(self, reply: Mapping[str, Any]) -> str:
        """Say what is wrong with a reply.

        >>> OPENAI.fault({"choices": [{"message": {"content": "fo"}}]})
        'it does not say why it ended: it may be cut'
        """
        if not isinstance(reply, Mapping):
            return f"it is {kind_of(reply)}, no object"
        if error_text(reply):
            return f"it is an error: {error_text(reply)}"
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices:
            return "it has no choices"
        if len(choices) > 1:
            return f"it has {len(choices)} choices, though one was asked for"
        if not isinstance(choices[0], Mapping) or not isinstance(choices[0].get("message"), Mapping):
            return "its first choice has no message"
        for field in openai_stream.GROWING:
            if not isinstance(choices[0]["message"].get(field), str | None):
                return f"its {field} is {kind_of(choices[0]['message'][field])}, no text"
        finish = self.finish(reply)
        if not finish:
            return "it does not say why it ended: it may be cut"
        if finish == "error":
            return "it ended with an error"
        if holds_half(reply):
            return "a text of it holds half of a character"
        return _fault_of_calls(choices[0]["message"].get("tool_calls"))

    def error(self, message: str, kind: str, status: int) -> dict[str, Any]:
        """Return an error.

        >>> OPENAI.error("no visit", "permission", 403)["error"]["type"]
        'permission_error'
        """
        name = _ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": name, "param": None, "code": kind}}

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """Return the event for an error."""
        return sse.block(error)

    def events(self, reply: Mapping[str, Any], *, include_usage: bool = False) -> Iterator[bytes]:
        """Yield a reply as a stream; the usage only if it was asked for."""
        return openai_stream.events(reply, include_usage=include_usage)

    def gather(self) -> openai_stream.OpenAIGatherer:
        """Return a new gatherer."""
        return openai_stream.OpenAIGatherer()

    def is_final(self, event: bytes) -> bool:
        """Whether an event has the finish reason, the usage, an error, or the mark of the end."""
        return openai_stream.is_final(event)

    def with_model(self, event: bytes, name: str) -> bytes:
        """Replace the model's name."""
        chunk = sse.payload(event)
        return event if chunk is None or "model" not in chunk else sse.block({**chunk, "model": name})


def _choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = reply.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}


def _message(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    message = _choice(reply).get("message")
    return message if isinstance(message, Mapping) else {}


def _fault_of_calls(calls: Any) -> str:
    """Arguments that are no JSON are the model's mistake, for its caller to answer: the reply is whole all the same."""
    if calls is None:
        return ""
    if not isinstance(calls, list):
        return f"its tool calls are {kind_of(calls)}, no list"
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return "a tool call has no function"
        if not isinstance(call.get("id"), str | None):
            return f"the identity of a call of {function['name']!r} is {kind_of(call['id'])}, no text"
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            return f"the arguments of {function['name']!r} are {kind_of(arguments)}, no text"
    return ""


OPENAI = OpenAIDialect()
"""The dialect itself; it has no state."""
