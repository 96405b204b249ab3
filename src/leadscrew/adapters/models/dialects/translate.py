"""Requests and replies of one dialect in the form of the other.

What the other dialect cannot say raises `BadRequest`. Left out, because it only steers how a service works and not what is
said, are: thinking (its blocks and its budget), `cache_control`, the `detail` of images, the file names of documents, and
`strict` where it is false. A tool result marked as an error begins with `[error]` in the OpenAI form, which has no such mark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leadscrew.adapters.models.dialects.form import BadRequest, Dialect, counted, some

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SAME = ("temperature", "top_p")
_ERROR = "[error] "


def translate_request(body: Mapping[str, Any], source: Dialect, target: Dialect) -> dict[str, Any]:
    """Return a request of the dialect `source` in the dialect `target`, checked, unknown fields and the model left out.

    Raises `BadRequest` for what `target` cannot say.

    >>> from leadscrew.adapters.models.dialects import ANTHROPIC, OPENAI
    >>> body = {"system": "Be brief.", "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 9}
    >>> translate_request(body, ANTHROPIC, OPENAI)["messages"][0]
    {'role': 'system', 'content': 'Be brief.'}
    """
    kept = source.kept(body)
    if source.name == target.name:
        return kept
    return _to_openai(kept) if target.name == "openai" else _to_anthropic(kept)


def translate_reply(reply: Mapping[str, Any], source: Dialect, target: Dialect) -> dict[str, Any]:
    """Return a whole reply (`source.fault(reply)` is empty) of the dialect `source` in the dialect `target`.

    A tool call whose arguments the token limit cut is left out in the Anthropic form, which has only whole ones.

    >>> from leadscrew.adapters.models.dialects import ANTHROPIC, OPENAI
    >>> reply = {"choices": [{"message": {"content": "4"}, "finish_reason": "length"}]}
    >>> translate_reply(reply, OPENAI, ANTHROPIC)["stop_reason"]
    'max_tokens'
    """
    if source.name == target.name:
        return dict(reply)
    return _reply_to_openai(reply) if target.name == "openai" else _reply_to_anthropic(reply)


# Anthropic to OpenAI


def _to_openai(body: Mapping[str, Any]) -> dict[str, Any]:
    if "top_k" in body:
        raise BadRequest(
            "'top_k' is not known to the model behind this address, which speaks the OpenAI form; leave it out."
        )
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _parts(body["system"])})
    for message in body["messages"]:
        messages.extend(_assistant(message) if message["role"] == "assistant" else _user(message))
    out: dict[str, Any] = {"messages": messages, **{key: body[key] for key in (*_SAME, "max_tokens") if key in body}}
    if body.get("stop_sequences"):
        out["stop"] = body["stop_sequences"]
    if body.get("tools"):
        out["tools"] = [_function(tool) for tool in body["tools"]]
    choice = body.get("tool_choice")
    if choice:
        named = {"type": "function", "function": {"name": choice.get("name")}}
        out["tool_choice"] = named if choice["type"] == "tool" else _CHOICES[choice["type"]]
        if choice.get("disable_parallel_tool_use"):
            out["parallel_tool_calls"] = False
    return out


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:
        raise BadRequest(
            f"the tool {tool['name']!r} is one that only Anthropic's models know; define it with an input_schema."
        )
    strict = True if tool.get("strict") else None
    function = {"name": tool["name"], "description": tool.get("description"), "parameters": tool["input_schema"]}
    return {"type": "function", "function": some({**function, "strict": strict})}


def _assistant(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message["content"]
    if isinstance(content, str):
        yield {"role": "assistant", "content": content}
        return
    texts = [{"type": "text", "text": block["text"]} for block in content if block["type"] == "text"]
    calls = [
        {"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": _json(b["input"])}}
        for b in content
        if b["type"] == "tool_use"
    ]
    if texts or calls:
        yield {"role": "assistant", "content": texts or None, **({"tool_calls": calls} if calls else {})}


def _user(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message["content"]
    if isinstance(content, str):
        yield {"role": "user", "content": content}
        return
    rest = []
    for block in content:
        if block["type"] != "tool_result":
            rest.append(block)
        elif rest:
            raise BadRequest("a tool result stands behind other content; the results of tools come first in a message.")
        else:
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block)}
    if rest or not content:
        yield {"role": "user", "content": _parts(rest)}


def _result(block: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    content = block.get("content") or ""
    if not isinstance(content, str) and any(part["type"] != "text" for part in content):
        raise BadRequest(
            "a tool result holds more than text, which the model behind this address cannot take; send text."
        )
    if block.get("is_error"):
        return _ERROR + content if isinstance(content, str) else [{"type": "text", "text": _ERROR}, *_parts(content)]
    return _parts(content)


def _parts(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_part(block) for block in content]


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    source = block["source"]
    if source["type"] == "base64":
        url = f"data:{source['media_type']};base64,{source['data']}"
        if block["type"] == "image":
            return {"type": "image_url", "image_url": {"url": url}}
        if "title" not in block and "context" not in block and not (block.get("citations") or {}).get("enabled"):
            return {"type": "file", "file": {"file_data": url, "filename": "document"}}
    raise BadRequest(
        "a document with text, title, context or citations has no OpenAI form; send its text as a text block."
    )


def _reply_to_openai(reply: Mapping[str, Any]) -> dict[str, Any]:
    content = reply["content"]
    text = "".join(block["text"] for block in content if block["type"] == "text")
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    calls = [block for block in content if block["type"] == "tool_use"]
    if calls:
        message["tool_calls"] = [
            {"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": _json(b["input"])}}
            for b in calls
        ]
    elif not text:
        message["content"] = ""
    finish = _FINISH.get(reply["stop_reason"], "stop")
    out: dict[str, Any] = {
        "id": reply.get("id") or "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": reply.get("model") or "",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
    }
    usage = reply.get("usage")
    if isinstance(usage, Mapping):
        read = counted(usage.get("cache_read_input_tokens")) or 0
        fresh = [counted(usage.get(field)) or 0 for field in ("input_tokens", "cache_creation_input_tokens")]
        prompt = sum(fresh) + read
        completion = counted(usage.get("output_tokens")) or 0
        figures = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        out["usage"] = {**figures, **({"prompt_tokens_details": {"cached_tokens": read}} if read else {})}
    return out


# OpenAI to Anthropic

_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "seed": lambda value: False,
    "response_format": lambda value: bool(value["type"] == "text"),
    "logprobs": lambda value: not value,
    "top_logprobs": lambda value: not value,
    "presence_penalty": lambda value: not value,
    "frequency_penalty": lambda value: not value,
    "reasoning_effort": lambda value: value == "none",
    "logit_bias": lambda value: not value,
    "labels": lambda value: False,
    "grammar": lambda value: not value,
}
"""Fields without an Anthropic form, and the values that ask for nothing."""


def _to_anthropic(body: Mapping[str, Any]) -> dict[str, Any]:
    for field, asks_nothing in _NEUTRAL.items():
        if field in body and not asks_nothing(body[field]):
            raise BadRequest(
                f"'{field}' is not known to the model behind this address, which speaks the Anthropic form; leave it out."
            )
    if body.get("temperature", 0) > 1:
        raise BadRequest("'temperature' is above 1, the most that the model behind this address takes.")
    messages = list(body["messages"])
    system: list[Mapping[str, Any]] = []
    while messages and messages[0]["role"] in ("system", "developer"):
        system.append(messages.pop(0))
    out: dict[str, Any] = {"messages": list(_turns(messages)), **{key: body[key] for key in _SAME if key in body}}
    if not messages:
        raise BadRequest("there are only system messages; the model behind this address needs one of the user.")
    if len(system) == 1 and isinstance(system[0]["content"], str):
        out["system"] = system[0]["content"]
    elif system:
        out["system"] = [block for message in system for block in _blocks(message["content"])]
    limits = [body[key] for key in ("max_tokens", "max_completion_tokens") if key in body]
    if limits:
        out["max_tokens"] = min(limits)
    if body.get("stop"):
        out["stop_sequences"] = [body["stop"]] if isinstance(body["stop"], str) else body["stop"]
    if body.get("tools"):
        out["tools"] = [_tool(tool["function"]) for tool in body["tools"]]
        choice = _choice(body)
        if choice:
            out["tool_choice"] = choice
    return out


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    strict = True if function.get("strict") else None
    tool = {
        "name": function["name"],
        "description": function.get("description"),
        "input_schema": schema,
        "strict": strict,
    }
    return some(tool)


def _choice(body: Mapping[str, Any]) -> dict[str, Any]:
    given = body.get("tool_choice")
    out: dict[str, Any] = {}
    if isinstance(given, Mapping):
        out = {"type": "tool", "name": given["function"]["name"]}
    elif given:
        out = {"type": {"auto": "auto", "required": "any", "none": "none"}[given]}
    if body.get("parallel_tool_calls") is False and out.get("type") != "none":
        out = {**(out or {"type": "auto"}), "disable_parallel_tool_use": True}
    return out


def _turns(messages: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for message in messages:
        if message.get("name"):
            raise BadRequest(
                "a message has a 'name', which the model behind this address cannot read; put it into the text."
            )
        if message["role"] == "tool":
            content = message["content"] if isinstance(message["content"], str) else _blocks(message["content"])
            results.append({"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content})
            continue
        # The results of all calls of one turn go back in one message.
        if results:
            yield {"role": "user", "content": results}
            results = []
        if message["role"] == "assistant":
            yield {"role": "assistant", "content": _said(message)}
        elif message["role"] == "user":
            content = message["content"]
            yield {"role": "user", "content": content if isinstance(content, str) else _blocks(content)}
        else:
            raise BadRequest(
                "a system message stands among the others; the model behind this address takes them at the start only."
            )
    if results:
        yield {"role": "user", "content": results}


def _said(message: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    content, calls = message.get("content"), message.get("tool_calls") or ()
    if isinstance(content, str) and not calls and not message.get("refusal"):
        return content
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) and content else []
    blocks += _blocks(content) if isinstance(content, list) else []
    if message.get("refusal"):
        blocks.append({"type": "text", "text": message["refusal"]})
    return blocks + [_use(call) for call in calls]


def _use(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _object(call["function"]["arguments"])
    if arguments is None:
        raise BadRequest(
            f"the arguments of the call {call['id']!r} are no JSON object, as the model behind this address wants them."
        )
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments}


def _object(arguments: str) -> dict[str, Any] | None:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _blocks(parts: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": parts}] if isinstance(parts, str) else [_block(part) for part in parts]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind in ("text", "refusal"):
        return {"type": "text", "text": part[kind]}
    url = {"image_url": lambda: part["image_url"]["url"], "file": lambda: part["file"]["file_data"]}.get(kind)
    media, mark, data = (url() if url else "").removeprefix("data:").partition(";base64,")
    if mark and (media == "application/pdf") == (kind == "file"):
        return {"type": "image" if kind == "image_url" else "document", "source": _source(media, data)}
    raise BadRequest(
        f"a part of the type {kind!r} has no Anthropic form; send text, an image or a PDF, both as base64."
    )


def _source(media: str, data: str) -> dict[str, Any]:
    return {"type": "base64", "media_type": media, "data": data}


def _reply_to_anthropic(reply: Mapping[str, Any]) -> dict[str, Any]:
    choice = reply["choices"][0]
    message = choice["message"]
    texts = [message.get("content"), message.get("refusal")]
    content: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts if text]
    for place, call in enumerate(message.get("tool_calls") or ()):
        given, name = _object(call["function"]["arguments"]), call["function"]["name"]
        if given is None:
            if choice["finish_reason"] != "length":
                said = call["function"]["arguments"]
                content.append(
                    {"type": "text", "text": f"[a call of {name} whose arguments are no JSON object: {said}]"}
                )
        else:
            content.append({"type": "tool_use", "id": call.get("id") or f"toolu_{place}", "name": name, "input": given})
    stop = "refusal" if message.get("refusal") else _STOP.get(choice["finish_reason"], "end_turn")
    if stop == "end_turn" and any(block["type"] == "tool_use" for block in content):
        stop = "tool_use"  # some servers call tools and yet say that they just stopped
    out: dict[str, Any] = {
        "id": reply.get("id") or "msg_0",
        "type": "message",
        "role": "assistant",
        "model": reply.get("model") or "",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
    }
    usage = reply.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    details = usage.get("prompt_tokens_details")
    cached = counted(details.get("cached_tokens") if isinstance(details, Mapping) else 0) or 0
    # The official client insists on figures. These zeros are only shown; what is metered is read before translation.
    figures = {"input_tokens": max(0, (counted(usage.get("prompt_tokens")) or 0) - cached)}
    figures["output_tokens"] = counted(usage.get("completion_tokens")) or 0
    out["usage"] = {**figures, **({"cache_read_input_tokens": cached} if cached else {})}
    return out


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
