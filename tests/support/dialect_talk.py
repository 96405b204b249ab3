"""Arbitrary requests and replies of both dialects, and streams cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

# Everything that JSON can carry over HTTP: no halves of surrogate pairs.
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=120)
WORDS = TEXT.filter(bool)
NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON_VALUES, max_size=3)
COUNTS = st.integers(0, 10**6)
PICTURE = "iVBORw0KGgo="


def record(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for objects with some fields that may be missing."""
    return st.fixed_dictionaries(required, optional=optional)


# Replies


def openai_call() -> st.SearchStrategy[dict[str, Any]]:
    function = record({"name": NAMES, "arguments": OBJECTS.map(json.dumps)})
    return record({"id": NAMES, "type": st.just("function"), "function": function})


TOKENS = st.lists(record({"token": TEXT, "logprob": st.floats(-9, 0)}), min_size=1, max_size=3)

OPENAI_REPLIES = record(
    {
        "id": NAMES,
        "object": st.just("chat.completion"),
        "created": COUNTS,
        "model": NAMES,
        "choices": st.tuples(
            record(
                {
                    "index": st.just(0),
                    "message": record(
                        {"role": st.just("assistant"), "content": st.none() | TEXT},
                        refusal=st.none() | TEXT,
                        reasoning_content=TEXT,
                        tool_calls=st.lists(openai_call(), min_size=1, max_size=3),
                    ),
                    "finish_reason": st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
                },
                logprobs=st.none() | record({"content": TOKENS, "refusal": st.none()}),
            )
        ).map(list),
        "usage": record({"prompt_tokens": COUNTS, "completion_tokens": COUNTS, "total_tokens": COUNTS}),
    },
    system_fingerprint=NAMES,
)

TOOL_USE = record({"type": st.just("tool_use"), "id": NAMES, "name": NAMES, "input": OBJECTS})
ANTHROPIC_REPLIES = record(
    {
        "id": NAMES,
        "type": st.just("message"),
        "role": st.just("assistant"),
        "model": NAMES,
        "content": st.lists(
            record({"type": st.just("text"), "text": TEXT}, citations=st.none() | st.lists(OBJECTS, max_size=2))
            | record({"type": st.just("thinking"), "thinking": TEXT, "signature": TEXT})
            | record({"type": st.just("redacted_thinking"), "data": TEXT})
            | TOOL_USE,
            max_size=4,
        ),
        "stop_reason": st.sampled_from(["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]),
        "stop_sequence": st.none() | TEXT,
        "usage": record({"input_tokens": COUNTS, "output_tokens": COUNTS}, cache_read_input_tokens=COUNTS),
    },
)

# Requests


def openai_parts() -> st.SearchStrategy[list[dict[str, Any]]]:
    image = record({"url": st.just(f"data:image/png;base64,{PICTURE}")})
    text = record({"type": st.just("text"), "text": WORDS})
    return st.lists(text | record({"type": st.just("image_url"), "image_url": image}), min_size=1, max_size=3)


OPENAI_TOOLS = st.lists(
    record(
        {
            "type": st.just("function"),
            "function": record({"name": NAMES, "parameters": OBJECTS.filter(bool)}, description=TEXT),
        }
    ),
    min_size=1,
    max_size=2,
)


@st.composite
def openai_requests(draw: st.DrawFn) -> dict[str, Any]:
    """A conversation: an optional system message, then turns, the calls of tools with their results."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(WORDS)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(WORDS | openai_parts())})
        calls = draw(st.lists(openai_call(), max_size=2))
        if calls:
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(TEXT)} for call in calls]
        else:
            messages.append({"role": "assistant", "content": draw(WORDS)})
    optional = {
        "tools": OPENAI_TOOLS,
        "stop": st.lists(WORDS, min_size=1, max_size=2),
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0.1, 1),
        "max_tokens": st.integers(1, 10**5),
    }
    body = draw(record({"messages": st.just(messages)}, **optional))
    if "tools" in body and draw(st.booleans()):
        named = {"type": "function", "function": {"name": body["tools"][0]["function"]["name"]}}
        body["tool_choice"] = draw(st.sampled_from(["auto", "required", "none", named]))
    return body


@st.composite
def anthropic_requests(draw: st.DrawFn) -> dict[str, Any]:
    """A conversation, the calls of tools with their results."""
    text = record({"type": st.just("text"), "text": WORDS})
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    image = st.just({"type": "image", "source": source})
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(WORDS | st.lists(text | image, min_size=1, max_size=3))})
        said = draw(
            WORDS | st.tuples(st.lists(text, max_size=2), st.lists(TOOL_USE, max_size=2)).map(lambda t: t[0] + t[1])
        )
        messages.append({"role": "assistant", "content": said or "nothing"})
        calls = [b for b in said if isinstance(b, dict) and b["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": c["id"], "content": draw(TEXT)} for c in calls]
        if results:
            messages.append({"role": "user", "content": results})
    tool = record({"name": NAMES, "input_schema": OBJECTS.filter(bool)}, description=TEXT)
    optional = {
        "system": WORDS | st.lists(text, min_size=1, max_size=2),
        "tools": st.lists(tool, min_size=1, max_size=2),
        "stop_sequences": st.lists(WORDS, min_size=1, max_size=2),
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0.1, 1),
    }
    body = draw(record({"messages": st.just(messages), "max_tokens": st.integers(1, 10**5)}, **optional))
    if "tools" in body and draw(st.booleans()):
        choices: list[dict[str, Any]] = [
            {"type": "auto"},
            {"type": "any", "disable_parallel_tool_use": True},
            {"type": "none"},
            {"type": "tool", "name": body["tools"][0]["name"]},
        ]
        body["tool_choice"] = draw(st.sampled_from(choices))
    return body


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The bytes of a stream in arbitrary chunks, empty ones among them."""
    places = draw(st.lists(st.integers(0, len(stream)), max_size=30).map(sorted))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


def noisy(value: Any, noise: Iterable[str]) -> Any:
    """Return a JSON value with unknown fields in every object on the way that the dialects read."""
    noise = tuple(noise)
    if isinstance(value, dict):
        free = ("input", "parameters", "input_schema", "schema", "logit_bias")
        grown = {key: child if key in free else noisy(child, noise) for key, child in value.items()}
        return {**grown, **{key: {"secret": "out"} for key in noise}}
    return [noisy(item, noise) for item in value] if isinstance(value, list) else value


STRANGE = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "text", "tool", "none", "\ud800"])
STRANGE |= st.sampled_from([[], {}, [{}], [[]], ["a"], {"type": "text"}, {"type": "function"}, {"type": []}, 0.5])


@st.composite
def spoiled(draw: st.DrawFn, whole: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """A value with something strange in one or two places, or something left out there."""
    value: dict[str, Any] = json.loads(json.dumps(draw(whole)))
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(value))
        if not places:
            break
        inside, key = draw(st.sampled_from(places))
        if isinstance(inside, dict) and draw(st.booleans()):
            del inside[key]
        else:
            inside[key] = json.loads(json.dumps(draw(STRANGE)))
    return value


def _places(value: Any) -> Iterable[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
