"""Secrets in streams: however the pieces are cut, what comes out is the redacted text, whole."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.adapters.models.dialects import ANTHROPIC, OPENAI, sse
from leadscrew.adapters.models.redact import Redactor
from leadscrew.adapters.models.screen import Screen

KEY = "sk-abcabcabd-0123456789/+"
REDACT = Redactor({"KEY": KEY})
TEXTS = st.lists(
    st.sampled_from([KEY, KEY[:9], "abc", "s", "sk-", " ", "\u00e9\U0001f600", KEY + KEY]), max_size=6
).map("".join)


def _cut(text: str, at: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[a:b] for a, b in pairwise(places)] or [text]


def _screened(events: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    screen = Screen(REDACT, out.append)
    for event in events:
        screen.put(event)
    return out


def _openai(**delta: Any) -> bytes:
    return sse.block({"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


@given(TEXTS, st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_a_text_of_the_openai_form_comes_out_redacted_and_whole(text: str, at: list[int], late: bool) -> None:
    events = [_openai(role="assistant", content=""), *(_openai(content=piece) for piece in _cut(text, at))]
    last = {"content": " end"} if late else {}
    events.append(sse.block({"id": "1", "choices": [{"index": 0, "delta": last, "finish_reason": "stop"}]}))
    gather = OPENAI.gather()
    for event in [*_screened(events), b"data: [DONE]\n\n"]:
        gather.feed(event)
    message = gather.reply()["choices"][0]["message"]
    assert (message["content"] or "") == REDACT.text(text + (" end" if late else ""))
    assert message["role"] == "assistant"


@given(TEXTS, st.lists(st.integers(0, 400), max_size=8))
def test_arguments_of_a_tool_call_come_out_redacted_and_whole(text: str, at: list[int]) -> None:
    written = json.dumps({"x": text})
    first = _openai(
        tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]
    )
    events = [first, *(_openai(tool_calls=[{"index": 0, "function": {"arguments": p}}]) for p in _cut(written, at))]
    events.append(sse.block({"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}))
    gather = OPENAI.gather()
    for event in _screened(events):
        gather.feed(event)
    (call,) = gather.reply()["choices"][0]["message"]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c1", "f")
    assert call["function"]["arguments"] == REDACT.text(written)


@given(TEXTS, st.lists(st.integers(0, 400), max_size=8))
def test_a_text_of_the_anthropic_form_comes_out_redacted_and_whole(text: str, at: list[int]) -> None:
    reply = {"content": [{"type": "text", "text": "."}], "stop_reason": "end_turn", "usage": {"output_tokens": 2}}
    events = []
    for event in ANTHROPIC.events(reply):
        value, name = sse.payload(event), sse.parse(event)[0]
        if value is not None and value["type"] == "content_block_delta":
            events += [sse.block({**value, "delta": {"type": "text_delta", "text": p}}, name) for p in _cut(text, at)]
        else:
            events.append(event)
    gather = ANTHROPIC.gather()
    for event in _screened(events):
        gather.feed(event)
    assert gather.ended
    assert "".join(block["text"] for block in gather.reply()["content"]) == REDACT.text(text)


@pytest.mark.parametrize(
    "event", [b": note\n\n", b"data: [DONE]\n\n", b'data: {"error": {"message": "x"}}\n\n', b"data: [1]\n\n"]
)
def test_other_events_pass_as_they_are(event: bytes) -> None:
    assert _screened([event]) == [event]


def test_two_texts_side_by_side_do_not_mix() -> None:
    half = len(KEY) // 2
    events = [
        sse.block({"choices": [{"index": n, "delta": {"content": part}}]})
        for n, part in [(0, KEY[:half]), (1, KEY[half:]), (0, "x"), (1, KEY[:half]), (1, KEY[half:])]
    ]
    out = [sse.payload(event) for event in _screened(events)]
    said: dict[int, str] = {}
    for value in out:
        assert value is not None
        (choice,) = value["choices"]
        said[choice["index"]] = said.get(choice["index"], "") + choice["delta"]["content"]
    assert said == {0: KEY[:half] + "x", 1: KEY[half:] + "[redacted:KEY]"}
