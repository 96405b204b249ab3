"""Requests of the Anthropic messages form: what is kept of them, and what the model reads of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leadscrew.adapters.models.dialects.form import (
    BadRequest,
    checked,
    count_of,
    flag_of,
    joined,
    name_of,
    number_of,
    object_of,
    objects_of,
    text_of,
    texts_of,
    whole_of,
    wrong,
)

CLIENT_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
"""Tools that Anthropic defines and the program runs. All others run at Anthropic, some of them on the open network."""
CLIENT_TOOL_FIELDS = ("max_characters", "display_width_px", "display_height_px", "display_number")
LEAST_THINKING = 1024
"""The least budget of thinking that Anthropic accepts."""


def kept(body: Any) -> dict[str, Any]:
    """Check a request and return a copy with nothing but known fields; see `Dialect.kept`."""
    body = checked(body)
    if body.get("n") not in (None, 1):
        raise BadRequest(f"'n' is {body['n']!r}; one reply at a time is all there is: leave it out.")
    out: dict[str, Any] = {"messages": [_message(m, at) for at, m in objects_of(body["messages"], "messages")]}
    for field, read in _FIELDS.items():
        if body.get(field) is not None:
            out[field] = read(body[field], field)
    return out


def _message(message: Mapping[str, Any], at: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ("user", "assistant"):
        hint = " System text goes into the field 'system'." if role == "system" else ""
        raise BadRequest(f"{at}.role is {role!r}; it must be user or assistant.{hint}")
    readers = _ASSISTANT if role == "assistant" else _USER
    return {"role": role, "content": _content(message.get("content"), f"{at}.content", readers)}


Reader = Callable[[Mapping[str, Any], str], dict[str, Any]]


def _content(content: Any, at: str, readers: Mapping[str, Reader]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(at, content, "a text or a list of blocks")
    return [_block(block, place, readers) for place, block in objects_of(content, at)]


def _block(block: Mapping[str, Any], at: str, readers: Mapping[str, Reader]) -> dict[str, Any]:
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in readers:
        raise BadRequest(f"{at}.type is {kind!r}; it must be one of {', '.join(readers)}.")
    return {"type": kind, **readers[kind](block, at), **_cache(block, at)}


def _cache(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    if block.get("cache_control") is None:
        return {}
    control = object_of(block["cache_control"], f"{at}.cache_control")
    if control.get("type") != "ephemeral" or control.get("ttl") not in (None, "5m", "1h"):
        raise BadRequest(f"{at}.cache_control must have the type 'ephemeral' and, if any, the ttl '5m' or '1h'.")
    # Kept for minutes, whatever was asked for: an hour costs twice the input and is priced nowhere here.
    return {"cache_control": {"type": "ephemeral"}}


def _text(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    return {"text": text_of(block.get("text"), f"{at}.text")}


def _data(source: Mapping[str, Any], at: str) -> dict[str, Any]:
    return {field: text_of(source.get(field), f"{at}.source.{field}") for field in ("media_type", "data")}


def _image(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    source = object_of(block.get("source"), f"{at}.source")
    if source.get("type") != "base64":
        raise BadRequest(f"{at}.source.type is {source.get('type')!r}; send the image itself, as 'base64'.")
    return {"source": {"type": "base64", **_data(source, at)}}


def _document(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    source = object_of(block.get("source"), f"{at}.source")
    kind = source.get("type")
    if kind in ("base64", "text"):
        kept_source: dict[str, Any] = {"type": kind, **_data(source, at)}
    elif kind == "content":
        kept_source = {"type": kind, "content": _content(source.get("content"), f"{at}.source.content", _PLAIN)}
    else:
        raise BadRequest(f"{at}.source.type is {kind!r}; send the document itself, as 'base64', 'text' or 'content'.")
    out: dict[str, Any] = {"source": kept_source}
    for field in ("title", "context"):
        if block.get(field) is not None:
            out[field] = text_of(block[field], f"{at}.{field}")
    if block.get("citations") is not None:
        citations = object_of(block["citations"], f"{at}.citations")
        out["citations"] = {"enabled": flag_of(citations.get("enabled"), f"{at}.citations.enabled")}
    return out


def _tool_use(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    return {
        "id": name_of(block.get("id"), f"{at}.id"),
        "name": name_of(block.get("name"), f"{at}.name"),
        "input": object_of(block.get("input"), f"{at}.input"),
    }


def _tool_result(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    out: dict[str, Any] = {"tool_use_id": name_of(block.get("tool_use_id"), f"{at}.tool_use_id")}
    if block.get("content") is not None:
        out["content"] = _content(block["content"], f"{at}.content", _RESULT)
    if block.get("is_error") is not None:
        out["is_error"] = flag_of(block["is_error"], f"{at}.is_error")
    return out


def _thinking(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    return {field: text_of(block.get(field), f"{at}.{field}") for field in ("thinking", "signature")}


def _redacted(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    return {"data": text_of(block.get("data"), f"{at}.data")}


_SYSTEM: dict[str, Reader] = {"text": _text}
_PLAIN: dict[str, Reader] = {"text": _text, "image": _image}
_RESULT: dict[str, Reader] = {**_PLAIN, "document": _document}
_USER: dict[str, Reader] = {**_RESULT, "tool_result": _tool_result}
_ASSISTANT: dict[str, Reader] = {
    "text": _text,
    "tool_use": _tool_use,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
}


def _system(value: Any, at: str) -> str | list[dict[str, Any]]:
    return _content(value, at, _SYSTEM)


def _tools(value: Any, at: str) -> list[dict[str, Any]]:
    return [_tool(tool, place) for place, tool in objects_of(value, at)]


def _tool(tool: Mapping[str, Any], at: str) -> dict[str, Any]:
    kind = tool.get("type") or "custom"
    out: dict[str, Any] = {"name": name_of(tool.get("name"), f"{at}.name")}
    if kind == "custom":
        out["input_schema"] = object_of(tool.get("input_schema"), f"{at}.input_schema")
        for field, read in (("description", text_of), ("strict", flag_of)):
            if tool.get(field) is not None:
                out[field] = read(tool[field], f"{at}.{field}")
    elif isinstance(kind, str) and kind.startswith(CLIENT_TOOLS):
        out["type"] = kind
        out.update({f: whole_of(tool[f], f"{at}.{f}") for f in CLIENT_TOOL_FIELDS if tool.get(f) is not None})
    else:
        raise BadRequest(f"{at}.type is {kind!r}; only tools that the program itself runs are allowed.")
    return {**out, **_cache(tool, at)}


def _tool_choice(value: Any, at: str) -> dict[str, Any]:
    given = object_of(value, at)
    kind = given.get("type")
    if kind not in ("auto", "any", "tool", "none"):
        raise BadRequest(f"{at}.type is {kind!r}; it must be auto, any, tool or none.")
    out: dict[str, Any] = {"type": kind}
    if kind == "tool":
        out["name"] = name_of(given.get("name"), f"{at}.name")
    if given.get("disable_parallel_tool_use") is not None and kind != "none":
        out["disable_parallel_tool_use"] = flag_of(
            given["disable_parallel_tool_use"], f"{at}.disable_parallel_tool_use"
        )
    return out


def _thinks(value: Any, at: str) -> dict[str, Any]:
    given = object_of(value, at)
    kind = given.get("type")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise BadRequest(f"{at}.type is {kind!r}; it must be enabled, disabled or adaptive.")
    out: dict[str, Any] = {"type": kind}
    if kind == "enabled":
        out["budget_tokens"] = count_of(given.get("budget_tokens"), f"{at}.budget_tokens")
    if given.get("display") is not None and kind != "disabled":
        out["display"] = name_of(given["display"], f"{at}.display")
    return out


_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "system": _system,
    "max_tokens": count_of,
    "temperature": number_of,
    "top_p": number_of,
    "top_k": whole_of,
    "stop_sequences": texts_of,
    "tools": _tools,
    "tool_choice": _tool_choice,
    "thinking": _thinks,
}
"""Every field that is passed on besides `messages`, and how it is read."""


def prompt(body: Mapping[str, Any]) -> str:
    """Return what the model reads of a request; see `Dialect.prompt`."""
    parts = []
    if body.get("system"):
        parts.append(f"[system]\n{flat(body['system'])}")
    parts += [text for message in body["messages"] for text in _read(message)]
    for tool in body.get("tools") or ():
        head = f"[tool {tool['name']}] {tool.get('description', '')}".rstrip()
        parts.append(f"{head}\n{_json(tool.get('input_schema', {}))}")
    return joined(parts)


def _read(message: Mapping[str, Any]) -> Iterator[str]:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    said: list[str] = []
    for block in blocks:
        if block["type"] not in ("tool_use", "tool_result"):
            said.append(flat([block]))
            continue
        if said:
            yield f"[{message['role']}]\n" + "\n".join(said)
            said = []
        if block["type"] == "tool_use":
            yield f"[call {block['name']} {block['id']}] {_json(block['input'])}"
        else:
            failed = " (error)" if block.get("is_error") else ""
            yield f"[result {block['tool_use_id']}]{failed}\n{flat(block.get('content'))}"
    if said or not blocks:
        yield f"[{message['role']}]\n" + "\n".join(said)


def flat(content: Any) -> str:
    """Return the text of a content, with a note for everything that is no text.

    >>> flat([{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "base64", "data": "AA"}}])
    'a\\n[image]'
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_flat_block(block) for block in content)


def _flat_block(block: Mapping[str, Any]) -> str:
    if block["type"] in ("text", "thinking"):
        return str(block[block["type"]])
    if block["type"] == "document":
        source = block["source"]
        inside = {"text": source.get("data"), "content": source.get("content")}.get(source["type"])
        lines = [block.get("title"), block.get("context"), "[document]" if inside is None else flat(inside)]
        return "\n".join(str(line) for line in lines if line)
    return f"[{block['type']}]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
