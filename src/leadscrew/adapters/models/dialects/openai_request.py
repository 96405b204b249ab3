"""Requests of the OpenAI chat-completions form: what is kept of them, and what the model reads of them."""

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
    some,
    text_of,
    texts_of,
    whole_of,
    wrong,
)

ROLES = ("system", "developer", "user", "assistant", "tool")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def kept(body: Any) -> dict[str, Any]:
    """Check a request and return a copy with nothing but known fields; see `Dialect.kept`."""
    body = checked(body)
    if body.get("n") not in (None, 1):
        raise BadRequest(f"'n' is {body['n']!r}; one reply at a time is all there is: leave it out or write 1.")
    if body.get("functions"):
        raise BadRequest("'functions' is the old form, which is not understood; write them as 'tools'.")
    out: dict[str, Any] = {"messages": [_message(m, at) for at, m in objects_of(body["messages"], "messages")]}
    for field, read in _FIELDS.items():
        if body.get(field) is not None:
            out[field] = read(body[field], field)
    return out


def _message(message: Mapping[str, Any], at: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise BadRequest(f"{at}.role is {role!r}; it must be one of {', '.join(ROLES)}.")
    out: dict[str, Any] = {"role": role}
    content = message.get("content")
    if role == "assistant":
        out["content"] = None if content is None else _content(content, f"{at}.content", role)
        if message.get("tool_calls"):
            out["tool_calls"] = [_tool_call(c, p) for p, c in objects_of(message["tool_calls"], f"{at}.tool_calls")]
        for field in ("refusal", "reasoning_content"):
            if message.get(field) is not None:
                out[field] = text_of(message[field], f"{at}.{field}")
    else:
        out["content"] = _content(content, f"{at}.content", role)
    if role == "tool":
        out["tool_call_id"] = name_of(message.get("tool_call_id"), f"{at}.tool_call_id")
    elif message.get("name") is not None:
        out["name"] = name_of(message["name"], f"{at}.name")
    return out


def _content(content: Any, at: str, role: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(at, content, "a text or a list of parts")
    return [_part(part, place, role) for place, part in objects_of(content, at)]


def _part(part: Mapping[str, Any], at: str, role: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": text_of(part.get("text"), f"{at}.text")}
    if kind == "refusal" and role == "assistant":
        return {"type": "refusal", "refusal": text_of(part.get("refusal"), f"{at}.refusal")}
    if role == "user":
        if kind == "image_url":
            image = object_of(part.get("image_url"), f"{at}.image_url")
            url = text_of(image.get("url"), f"{at}.image_url.url")
            if not url.startswith("data:"):
                raise BadRequest(
                    f"{at}.image_url.url is an address; write the image itself as 'data:image/png;base64,...'."
                )
            return {"type": kind, "image_url": some({"url": url, "detail": _text_or_none(image, "detail", at)})}
        if kind == "input_audio":
            audio = object_of(part.get("input_audio"), f"{at}.input_audio")
            return {"type": kind, "input_audio": {f: text_of(audio.get(f), f"{at}.{f}") for f in ("data", "format")}}
        if kind == "file":
            file = object_of(part.get("file"), f"{at}.file")
            data = text_of(file.get("file_data"), f"{at}.file.file_data")
            if not data.startswith("data:"):
                raise BadRequest(f"{at}.file.file_data must be the file itself, as 'data:application/pdf;base64,...'.")
            return {"type": kind, "file": some({"file_data": data, "filename": _text_or_none(file, "filename", at)})}
    raise BadRequest(f"{at}.type is {kind!r}, which a message of the role {role} cannot hold here.")


def _text_or_none(value: Mapping[str, Any], field: str, at: str) -> str | None:
    return None if value.get(field) is None else text_of(value[field], f"{at}.{field}")


def _tool_call(call: Mapping[str, Any], at: str) -> dict[str, Any]:
    if call.get("type", "function") != "function":
        raise BadRequest(f"{at}.type is {call['type']!r}; only calls of functions are understood.")
    function = object_of(call.get("function"), f"{at}.function")
    out: dict[str, Any] = {
        "id": name_of(call.get("id"), f"{at}.id"),
        "type": "function",
        "function": {
            "name": name_of(function.get("name"), f"{at}.function.name"),
            "arguments": text_of(function.get("arguments"), f"{at}.function.arguments"),
        },
    }
    # Gemini turns a conversation down if the signature of a call does not come back with it.
    google = (call.get("extra_content") or {}).get("google") if isinstance(call.get("extra_content"), Mapping) else None
    if isinstance(google, Mapping) and isinstance(google.get("thought_signature"), str):
        out["extra_content"] = {"google": {"thought_signature": google["thought_signature"]}}
    return out


def _tools(value: Any, at: str) -> list[dict[str, Any]]:
    out = []
    for place, tool in objects_of(value, at):
        if tool.get("type", "function") != "function":
            raise BadRequest(
                f"{place}.type is {tool['type']!r}; only functions that the program itself runs are allowed."
            )
        given = object_of(tool.get("function"), f"{place}.function")
        function: dict[str, Any] = {"name": name_of(given.get("name"), f"{place}.function.name")}
        for field, read in (("description", text_of), ("parameters", object_of), ("strict", flag_of)):
            if given.get(field) is not None:
                function[field] = read(given[field], f"{place}.function.{field}")
        out.append({"type": "function", "function": function})
    return out


def _tool_choice(value: Any, at: str) -> str | dict[str, Any]:
    if value in ("auto", "none", "required"):
        return str(value)
    if not isinstance(value, Mapping) or value.get("type") != "function":
        raise BadRequest(f"{at} must be auto, none, required, or an object of the type 'function'.")
    function = object_of(value.get("function"), f"{at}.function")
    return {"type": "function", "function": {"name": name_of(function.get("name"), f"{at}.function.name")}}


def _stop(value: Any, at: str) -> str | list[str]:
    return value if isinstance(value, str) else texts_of(value, at)


def _response_format(value: Any, at: str) -> dict[str, Any]:
    given = object_of(value, at)
    kind = given.get("type")
    if kind in ("text", "json_object"):
        return {"type": kind}
    if kind != "json_schema":
        raise BadRequest(f"{at}.type is {kind!r}; it must be text, json_object or json_schema.")
    schema = object_of(given.get("json_schema"), f"{at}.json_schema")
    out: dict[str, Any] = {"name": name_of(schema.get("name"), f"{at}.json_schema.name")}
    for field, read in (("description", text_of), ("schema", object_of), ("strict", flag_of)):
        if schema.get(field) is not None:
            out[field] = read(schema[field], f"{at}.json_schema.{field}")
    return {"type": kind, "json_schema": out}


def _effort(value: Any, at: str) -> str:
    if value not in EFFORTS:
        raise BadRequest(f"{at} is {value!r}; it must be one of {', '.join(EFFORTS)}.")
    return str(value)


def _bias(value: Any, at: str) -> dict[str, float]:
    return {token: number_of(bias, f"{at}.{token}") for token, bias in object_of(value, at).items()}


def _labels(value: Any, at: str) -> list[str]:
    labels = texts_of(value, at)
    if not labels or not all(labels):
        raise BadRequest(f"{at} must be a list of texts, none of them empty.")
    return labels


_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "temperature": number_of,
    "top_p": number_of,
    "max_tokens": count_of,
    "max_completion_tokens": count_of,
    "stop": _stop,
    "seed": whole_of,
    "tools": _tools,
    "tool_choice": _tool_choice,
    "parallel_tool_calls": flag_of,
    "response_format": _response_format,
    "logprobs": flag_of,
    "top_logprobs": whole_of,
    "presence_penalty": number_of,
    "frequency_penalty": number_of,
    "reasoning_effort": _effort,
    "logit_bias": _bias,
    "labels": _labels,
    "grammar": text_of,
}
"""Every field that is passed on besides `messages`, and how it is read. `labels` and `grammar` are our own."""


def prompt(body: Mapping[str, Any]) -> str:
    """Return what the model reads of a request; see `Dialect.prompt`."""
    parts = [line for message in body["messages"] for line in _read(message)]
    for tool in body.get("tools") or ():
        function = tool["function"]
        head = f"[tool {function['name']}] {function.get('description', '')}".rstrip()
        parts.append(f"{head}\n{_json(function.get('parameters', {}))}")
    schema = (body.get("response_format") or {}).get("json_schema")
    if schema:
        parts.append(f"[response format {schema.get('name', '')}]\n{_json(schema)}")
    if body.get("labels"):
        parts.append("[labels]\n" + "\n".join(body["labels"]))
    return joined(parts)


def _read(message: Mapping[str, Any]) -> Iterator[str]:
    head = message["role"]
    if head == "tool":
        head = f"result {message['tool_call_id']}"
    elif message.get("name"):
        head = f"{head} {message['name']}"
    said = [message.get("reasoning_content") or "", flat(message.get("content")), message.get("refusal") or ""]
    calls = message.get("tool_calls") or ()
    if any(said) or not calls:
        yield f"[{head}]\n" + "\n".join(text for text in said if text)
    for call in calls:
        yield f"[call {call['function']['name']} {call['id']}] {call['function']['arguments']}"


def flat(content: Any) -> str:
    """Return the text of a content, with a note for everything that is no text.

    >>> flat([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}])
    'a\\n[image_url]'
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text", part.get("refusal", f"[{part['type']}]"))) for part in content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
