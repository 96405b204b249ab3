"""The two dialects: a conversation as the body of a request, and the body of a reply as what it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coder.native import call_of
from coder.talk import Call, Reply, Turn, Usage
from coder.tools import as_json

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


class NoReply(Exception):
    """What came back is no reply of this dialect."""


def body(
    dialect: str, model: str, system: str, turns: list[Turn], tools: list[dict[str, Any]], most: int
) -> dict[str, Any]:
    """Return the request for at most `most` tokens of reply."""
    write = _anthropic_body if dialect == "anthropic" else _openai_body
    return write(model, system, _joined(turns), tools, most)


def parse(dialect: str, found: object) -> Reply:
    """Return what a reply says; raises `NoReply` if it is none."""
    if not isinstance(found, Mapping):
        raise NoReply("the reply is no JSON object")
    try:
        return _anthropic_reply(found) if dialect == "anthropic" else _openai_reply(found)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise NoReply(f"the reply lacks what the {dialect} dialect has: {type(error).__name__} {error}") from None


def _joined(turns: list[Turn]) -> list[Turn]:
    """Return turns with the texts of neighbouring user turns joined: many models want the roles to alternate."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and turn.role == "user" and joined[-1].role == "user":
            joined[-1] = Turn("user", f"{joined[-1].text}\n\n{turn.text}")
        else:
            joined.append(turn)
    return joined


def _openai_body(model: str, system: str, turns: list[Turn], tools: list[dict[str, Any]], most: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for turn in turns:
        if turn.role == "results":
            messages += [{"role": "tool", "tool_call_id": r.id, "content": r.text} for r in turn.results]
        elif turn.role == "assistant" and turn.calls and tools:
            thought = {name: value for fields in turn.thinking for name, value in fields.items()}
            messages.append({"role": "assistant", "content": turn.text or None, **thought})
            messages[-1]["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": _name(c.tool), "arguments": as_json(c.arguments)}}
                | dict(c.extra)
                for c in turn.calls
            ]
        else:
            messages.append({"role": turn.role, "content": turn.text})
    request: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": most}
    if tools:
        request["tools"] = [
            {
                "type": "function",
                "function": {"name": t["name"], "description": t["description"], "parameters": t["schema"]},
            }
            for t in tools
        ]
        request["parallel_tool_calls"] = False
    return request


def _openai_reply(found: Mapping[str, Any]) -> Reply:
    choice = found["choices"][0]
    message = choice["message"]
    calls = []
    for given in message.get("tool_calls") or ():
        call = call_of(str(given["function"]["name"]), given["function"].get("arguments", ""))
        extra = {"extra_content": given["extra_content"]} if given.get("extra_content") else {}
        calls.append(replace(call, extra=extra))
    text = _text(message.get("content"))
    thought = ({"reasoning_content": message["reasoning_content"]},) if message.get("reasoning_content") else ()
    reason = choice.get("finish_reason")
    stop = {"length": "length", "content_filter": "declined"}.get(reason, "calls" if calls else "end")
    if message.get("refusal") and not text and not calls:
        stop = "declined"
    usage = found.get("usage") or {}
    counts = Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))
    return Reply(text, tuple(calls), stop, counts, thought)


def _anthropic_body(
    model: str, system: str, turns: list[Turn], tools: list[dict[str, Any]], most: int
) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        blocks: list[dict[str, Any]] = [dict(block) for block in turn.thinking]
        if turn.role == "results":
            for r in turn.results:
                block = {"type": "tool_result", "tool_use_id": r.id, "content": r.text}
                blocks.append(block if r.ok else {**block, "is_error": True})
        elif turn.text.strip():
            blocks.append({"type": "text", "text": turn.text})
        if tools:
            blocks += [
                {"type": "tool_use", "id": c.id, "name": _name(c.tool), "input": dict(c.arguments)} for c in turn.calls
            ]
        role = "assistant" if turn.role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    request: dict[str, Any] = {"model": model, "system": system, "messages": messages, "max_tokens": most}
    if tools:
        request["tools"] = [
            {"name": t["name"], "description": t["description"], "input_schema": t["schema"]} for t in tools
        ]
        request["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    return request


def _anthropic_reply(found: Mapping[str, Any]) -> Reply:
    blocks = found["content"]
    calls: list[Call] = [call_of(str(b["name"]), b.get("input", {})) for b in blocks if b["type"] == "tool_use"]
    reason = found.get("stop_reason")
    stops = {"max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "declined"}
    stop = stops.get(str(reason), "calls" if calls else "end")
    usage = found.get("usage") or {}
    counts = [_count(usage.get(f"{kind}input_tokens")) for kind in ("", "cache_creation_", "cache_read_")]
    prompt = sum(count or 0 for count in counts) if counts[0] is not None else None
    return Reply(
        _text([b for b in blocks if b["type"] == "text"]),
        tuple(calls),
        stop,
        Usage(prompt, _count(usage.get("output_tokens"))),
        tuple(dict(b) for b in blocks if b["type"] in ("thinking", "redacted_thinking")),
    )


def _text(content: object) -> str:
    """Return the text of a content that may be a text, parts or nothing; half characters become question marks."""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    text = content if isinstance(content, str) else ""
    return text.encode("utf-8", "replace").decode("utf-8")


def _name(tool: str) -> str:
    """Return a tool's name as the dialects allow it, whatever the model called it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "nameless"


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
