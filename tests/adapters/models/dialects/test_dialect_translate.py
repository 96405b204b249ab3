"""A request or a reply in the form of the other dialect says the same, and what it cannot say is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.adapters.models.dialects import (
    ANTHROPIC,
    DIALECTS,
    OPENAI,
    BadRequest,
    Dialect,
    translate_reply,
    translate_request,
)
from leadscrew.core.call import Pin
from support.dialect_talk import ANTHROPIC_REPLIES, OPENAI_REPLIES, anthropic_requests, openai_requests

PIN = Pin("solver", "place/model", max_tokens=100)
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}


def parsed(value: Any) -> Any:
    """Return a request with the arguments of calls read: their spaces may change on the way."""
    if isinstance(value, dict):
        return {k: json.loads(v) if k == "arguments" else parsed(v) for k, v in value.items()}
    return [parsed(item) for item in value] if isinstance(value, list) else value


@given(openai_requests())
def test_openai_requests_there_and_back(body: dict[str, Any]) -> None:
    there = translate_request(body, OPENAI, ANTHROPIC)
    assert ANTHROPIC.kept(there) == there
    assert parsed(translate_request(there, ANTHROPIC, OPENAI)) == parsed(body)


@given(anthropic_requests())
def test_anthropic_requests_there_and_back(body: dict[str, Any]) -> None:
    there = translate_request(body, ANTHROPIC, OPENAI)
    assert OPENAI.kept(there) == there
    assert translate_request(there, OPENAI, ANTHROPIC) == body


@given(st.tuples(st.just(OPENAI), openai_requests()) | st.tuples(st.just(ANTHROPIC), anthropic_requests()))
def test_what_is_translated_can_be_pinned(talk: tuple[Dialect, dict[str, Any]]) -> None:
    source, body = talk
    target = ANTHROPIC if source is OPENAI else OPENAI
    sent = target.pinned(translate_request({**body, "user": "me", "model": "x"}, source, target), PIN)
    assert sent["model"] == "model"
    assert "user" not in sent
    assert translate_request(body, source, source) == source.kept(body)


@given(OPENAI_REPLIES)
def test_openai_replies(reply: dict[str, Any]) -> None:
    there = translate_reply(reply, OPENAI, ANTHROPIC)
    assert ANTHROPIC.fault(there) == ""
    assert ANTHROPIC.usage(there) == OPENAI.usage(reply)
    message = reply["choices"][0]["message"]
    texts = [message.get("content"), message.get("refusal")]
    assert [b["text"] for b in there["content"] if b["type"] == "text"] == [text for text in texts if text]
    assert [(b["id"], b["name"], b["input"]) for b in there["content"] if b["type"] == "tool_use"] == [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())
    ]
    assert translate_reply(reply, OPENAI, OPENAI) == reply


@given(ANTHROPIC_REPLIES)
def test_anthropic_replies(reply: dict[str, Any]) -> None:
    there = translate_reply(reply, ANTHROPIC, OPENAI)
    assert OPENAI.fault(there) == ""
    assert OPENAI.usage(there) == ANTHROPIC.usage(reply)
    message = there["choices"][0]["message"]
    assert (message["content"] or "") == "".join(b["text"] for b in reply["content"] if b["type"] == "text")
    assert [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())
    ] == [(b["id"], b["name"], b["input"]) for b in reply["content"] if b["type"] == "tool_use"]


@pytest.mark.parametrize(
    ("stop", "finish"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls"), ("refusal", "content_filter")],
)
def test_reasons_of_the_end(stop: str, finish: str) -> None:
    anthropic = {"content": [], "stop_reason": stop}
    assert OPENAI.finish(translate_reply(anthropic, ANTHROPIC, OPENAI)) == finish
    openai = {"choices": [{"message": {"content": "a"}, "finish_reason": finish}]}
    assert ANTHROPIC.finish(translate_reply(openai, OPENAI, ANTHROPIC)) == stop


def test_a_reply_with_calls_that_says_it_just_stopped() -> None:
    reply = {"choices": [{"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "stop"}]}
    assert translate_reply(reply, OPENAI, ANTHROPIC)["stop_reason"] == "tool_use"


def test_a_call_that_the_limit_cut_is_left_out() -> None:
    broken = {**CALL, "function": {"name": "f", "arguments": '{"x":'}}
    reply = {"choices": [{"message": {"content": "I", "tool_calls": [broken]}, "finish_reason": "length"}]}
    there = translate_reply(reply, OPENAI, ANTHROPIC)
    assert there["content"] == [{"type": "text", "text": "I"}]
    assert there["stop_reason"] == "max_tokens"


def test_what_the_provider_had_in_its_cache_is_counted_once() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}}
    reply = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage}
    there = translate_reply(reply, OPENAI, ANTHROPIC)
    assert there["usage"] == {"input_tokens": 40, "output_tokens": 5, "cache_read_input_tokens": 60}
    back = translate_reply(there, ANTHROPIC, OPENAI)
    assert back["usage"] == {**usage, "total_tokens": 105}


def test_an_unknown_count_is_left_out_where_the_form_allows_it() -> None:
    assert "usage" not in translate_reply({"content": [], "stop_reason": "end_turn"}, ANTHROPIC, OPENAI)


def hi(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, *messages], **fields}


@pytest.mark.parametrize(
    "body",
    [
        hi(seed=1),
        hi(response_format={"type": "json_object"}),
        hi(logprobs=True),
        hi(top_logprobs=2),
        hi(presence_penalty=0.5),
        hi(frequency_penalty=0.5),
        hi(reasoning_effort="low"),
        hi(logit_bias={"5": 1}),
        hi(labels=["a"]),
        hi(grammar="root ::= ."),
        hi(temperature=1.5),
        hi({"role": "system", "content": "late"}),
        hi({"role": "user", "content": "hi", "name": "ann"}),
        hi({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}]}),
        hi({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/svg,x"}}]}),
        hi(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[]"}}],
            }
        ),
        {"messages": [{"role": "system", "content": "alone"}]},
    ],
    ids=lambda body: str(list(body)[-1]),
)
def test_what_anthropic_cannot_say_is_refused(body: dict[str, Any]) -> None:
    assert OPENAI.kept(body) == body
    with pytest.raises(BadRequest) as caught:
        translate_request(body, OPENAI, ANTHROPIC)
    assert len(str(caught.value)) > 30


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "a", **fields}


DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


@pytest.mark.parametrize(
    "body",
    [
        hi(top_k=3),
        hi(tools=[{"type": "bash_20250124", "name": "bash"}]),
        hi({"role": "user", "content": [DOCUMENT]}),
        hi({"role": "user", "content": [result(content=[IMAGE])]}),
        hi({"role": "user", "content": [{"type": "text", "text": "first"}, result(content="late")]}),
    ],
    ids=["top_k", "tool of Anthropic", "document", "picture from a tool", "late result"],
)
def test_what_openai_cannot_say_is_refused(body: dict[str, Any]) -> None:
    assert ANTHROPIC.kept(body) == body
    with pytest.raises(BadRequest) as caught:
        translate_request(body, ANTHROPIC, OPENAI)
    assert len(str(caught.value)) > 30


def test_values_that_ask_for_nothing_are_no_hindrance() -> None:
    neutral = hi(logprobs=False, presence_penalty=0, logit_bias={}, response_format={"type": "text"}, grammar="")
    assert translate_request(neutral, OPENAI, ANTHROPIC) == hi()


def test_what_only_steers_the_service_is_left_out() -> None:
    cache = {"cache_control": {"type": "ephemeral"}}
    thought = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "yes", **cache}]
    body = hi({"role": "assistant", "content": thought}, thinking={"type": "enabled", "budget_tokens": 2000})
    there = translate_request(body, ANTHROPIC, OPENAI)
    assert there == hi({"role": "assistant", "content": [{"type": "text", "text": "yes"}]})


def test_the_results_of_parallel_calls_go_back_in_one_message() -> None:
    calls = [{**CALL, "id": name} for name in "ab"]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in "ab"]
    body = hi({"role": "assistant", "content": None, "tool_calls": calls}, *results, parallel_tool_calls=True)
    there = translate_request(body, OPENAI, ANTHROPIC)
    assert [m["role"] for m in there["messages"]] == ["user", "assistant", "user"]
    assert [b["tool_use_id"] for b in there["messages"][2]["content"]] == ["a", "b"]


def test_a_failed_tool_is_marked_in_the_text() -> None:
    body = hi({"role": "user", "content": [result(content="no such file", is_error=True)]})
    there = translate_request(body, ANTHROPIC, OPENAI)
    assert there["messages"][1] == {"role": "tool", "tool_call_id": "a", "content": "[error] no such file"}


def test_documents_and_developers() -> None:
    pdf = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}}
    body = {"messages": [{"role": "developer", "content": "brief"}, {"role": "user", "content": [pdf]}]}
    there = translate_request(body, OPENAI, ANTHROPIC)
    assert there["system"] == "brief"
    assert there["messages"][0]["content"][0]["source"]["media_type"] == "application/pdf"
    back = translate_request(there, ANTHROPIC, OPENAI)
    assert back["messages"][1]["content"][0]["file"]["file_data"] == pdf["file"]["file_data"]


def test_one_call_at_a_time() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    there = translate_request(hi(tools=tools, parallel_tool_calls=False), OPENAI, ANTHROPIC)
    assert there["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert there["tools"] == [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]


def test_both_dialects_are_known_by_name() -> None:
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {"openai": "openai", "anthropic": "anthropic"}
