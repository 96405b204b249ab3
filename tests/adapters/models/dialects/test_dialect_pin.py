"""Requests are checked, stripped of what is not known, and pinned; replies are read and judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.adapters.models.dialects import ANTHROPIC, DIALECTS, OPENAI, BadRequest, Dialect
from leadscrew.core.call import Pin
from support.dialect_talk import NAMES, TEXT, anthropic_requests, noisy, openai_requests

EITHER = st.tuples(st.just(OPENAI), openai_requests()) | st.tuples(st.just(ANTHROPIC), anthropic_requests())
PINS = st.builds(
    Pin,
    st.just("solver"),
    NAMES.map(lambda name: f"place/{name}"),
    temperature=st.none() | st.floats(0, 1),
    max_tokens=st.integers(1, 5000),
    extra=st.sampled_from([{}, {"top_p": 0.5}, {"provider": {"order": ["a"]}}]),
)
PIN = Pin("solver", "place/family/model", max_tokens=100)


def said(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages) or [{"role": "user", "content": "hi"}], **fields}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@given(EITHER, PINS)
def test_pinning_twice_is_pinning_once(talk: tuple[Dialect, dict[str, Any]], pin: Pin) -> None:
    dialect, body = talk
    once = dialect.pinned(body, pin)
    assert dialect.pinned(once, pin) == once
    assert once["model"] == pin.model.partition("/")[2]
    assert 1 <= dialect.max_tokens(once) <= pin.max_tokens
    assert pin.temperature is None or once["temperature"] == pin.temperature
    assert {key: once[key] for key in pin.extra} == pin.extra


@given(EITHER, PINS, st.lists(st.sampled_from(["user", "metadata", "store", "x", "service_tier", "uri"]), min_size=1))
def test_no_unknown_field_goes_through(talk: tuple[Dialect, dict[str, Any]], pin: Pin, noise: list[str]) -> None:
    dialect, body = talk
    sent = dialect.pinned(noisy(body, noise), pin)
    assert sent == dialect.pinned(body, pin)
    assert '"secret"' not in json.dumps(sent)


@given(EITHER)
def test_everything_said_is_in_the_prompt(talk: tuple[Dialect, dict[str, Any]]) -> None:
    dialect, body = talk
    kept = dialect.kept(body)
    assert {k: v for k, v in body.items() if k != "messages"} == {k: v for k, v in kept.items() if k != "messages"}
    prompt = dialect.prompt(kept)
    assert prompt == dialect.prompt(kept)
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"text": content}] if isinstance(content, str) else content or []
        for block in blocks:
            inner = block.get("text", block.get("content", ""))
            assert not isinstance(inner, str) or inner in prompt
        for call in message.get("tool_calls", ()):
            assert call["function"]["arguments"] in prompt
    for tool in body.get("tools", ()):
        definition = tool.get("function", tool)
        assert definition["name"] in prompt
        assert definition.get("description", "").rstrip() in prompt


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": ["hi"]},
        said({"role": "king", "content": "hi"}),
        said({"role": "user"}),
        said({"role": "user", "content": 3}),
        said(user({"type": "video", "text": "x"})),
        said(user({"type": "text", "text": 3})),
        said(n=2),
        said(max_tokens=0),
        said(max_tokens="7"),
        said(max_tokens=True),
        said(temperature=float("nan")),
        said(temperature="hot"),
        said(tools="none"),
        said(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        said(tools=[{"type": "web_search_preview"}]),
        said(tool_choice="sometimes"),
        said({"role": "user", "content": "half a pair: \ud800"}),
        said(stop=5, stop_sequences=5),
    ],
    ids=lambda body: str(body)[:40].encode("ascii", "replace").decode(),
)
def test_wrong_requests_are_refused_in_words(dialect: Dialect, body: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        dialect.pinned(body, PIN)
    assert len(str(caught.value)) > 20


def test_addresses_and_files_elsewhere_are_refused() -> None:
    for part in (
        {"type": "image_url", "image_url": {"url": "https://example.org/?secret=1"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_data": "https://example.org/"}},
    ):
        with pytest.raises(BadRequest):
            OPENAI.kept(said(user(part)))
    for kind in ("image", "document"):
        for source in ({"type": "url", "url": "https://example.org/?secret=1"}, {"type": "file", "file_id": "f"}):
            block = {"type": kind, "source": source}
            result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
            for wrapped in (block, result):
                with pytest.raises(BadRequest):
                    ANTHROPIC.kept(said(user(wrapped)))


def test_what_carries_its_data_is_kept() -> None:
    openai = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
    ]
    assert OPENAI.kept(said(user(*openai)))["messages"] == [user(*openai)]
    source = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
    text = {"type": "text", "media_type": "text/plain", "data": "the text"}
    anthropic = [
        {"type": "document", "source": source, "title": "T", "cache_control": {"type": "ephemeral"}},
        {"type": "document", "source": text, "citations": {"enabled": True}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inner"}]}},
    ]
    kept = ANTHROPIC.kept(said(user(*anthropic)))
    assert kept["messages"] == [user(*anthropic)]
    assert ANTHROPIC.prompt(kept) == "[user]\nT\n[document]\nthe text\ninner"


def test_thinking_and_its_signature_come_back_unchanged() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}, "cache_control": {"type": "ephemeral"}},
    ]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": blocks}]
    assert ANTHROPIC.kept(said(*messages))["messages"] == messages
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    signed = {**call, "extra_content": {"google": {"thought_signature": "s"}}}
    message = {"role": "assistant", "content": None, "tool_calls": [signed], "reasoning_content": "hm"}
    assert OPENAI.kept(said(message))["messages"] == [message]


def test_the_limit_has_the_name_that_the_provider_obeys() -> None:
    asked = said(max_completion_tokens=50)
    assert OPENAI.pinned(asked, PIN)["max_tokens"] == 50
    assert OPENAI.pinned(asked, Pin("solver", "openai/gpt", max_tokens=40))["max_completion_tokens"] == 40
    pin = Pin("solver", "mine/gpt", max_tokens=40, extra={"max_completion_tokens": 30})
    for body in (asked, said(max_tokens=5)):
        sent = OPENAI.pinned(body, pin)
        assert sent["max_completion_tokens"] == 30
        assert "max_tokens" not in sent
    assert OPENAI.max_tokens(OPENAI.pinned(said(max_tokens=70, max_completion_tokens=60), PIN)) == 60
    assert OPENAI.max_tokens(OPENAI.pinned(said(), PIN)) == ANTHROPIC.max_tokens(ANTHROPIC.pinned(said(), PIN)) == 100


def test_a_pinned_extra_goes_before_what_the_program_says_but_not_beyond_the_bound() -> None:
    pin = Pin("solver", "a/b", 0.5, 100, {"seed": 1, "stream": True, "n": 4, "model": "x", "max_tokens": 900})
    sent = OPENAI.pinned(said(seed=2, temperature=2.0, stream=True), pin)
    assert sent == {**said(), "seed": 1, "temperature": 0.5, "max_tokens": 100, "model": "b"}
    assert ANTHROPIC.pinned(said(stream=True), pin)["max_tokens"] == 100


@pytest.mark.parametrize(
    ("limit", "thinking"),
    [
        (8000, {"type": "enabled", "budget_tokens": 4000}),
        (3000, {"type": "enabled", "budget_tokens": 2999}),
        (1024, {"type": "disabled"}),
    ],
)
def test_thinking_fits_into_the_limit(limit: int, thinking: dict[str, Any]) -> None:
    body = said(max_tokens=9000, thinking={"type": "enabled", "budget_tokens": 4000})
    assert ANTHROPIC.pinned(body, Pin("meta", "a/b", max_tokens=limit))["thinking"] == thinking


def test_the_old_form_of_tools_is_not_dropped_in_silence() -> None:
    with pytest.raises(BadRequest, match="tools"):
        OPENAI.kept(said(functions=[{"name": "f"}]))


def test_our_own_fields_and_forms_of_replies() -> None:
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}
    own = said(
        labels=["yes", "no"], grammar="root ::= .", response_format={"type": "json_schema", "json_schema": schema}
    )
    kept = OPENAI.kept(own)
    assert kept == own
    assert '"type": "object"' in OPENAI.prompt(kept)
    for wrong in (said(labels=[]), said(labels=[""]), said(grammar=1), said(response_format={"type": "xml"})):
        with pytest.raises(BadRequest):
            OPENAI.kept(wrong)


OK_OPENAI: dict[str, Any] = {"choices": [{"message": {"content": "four"}, "finish_reason": "stop"}]}
OK_ANTHROPIC: dict[str, Any] = {"content": [{"type": "text", "text": "four"}], "stop_reason": "end_turn"}


def call(arguments: Any, finish: str = "tool_calls") -> dict[str, Any]:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    return {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("dialect", "reply", "fault"),
    [
        (OPENAI, OK_OPENAI, ""),
        (OPENAI, {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}, ""),
        (OPENAI, call('{"x": 1}'), ""),
        (OPENAI, call(""), ""),
        (OPENAI, call('{"x": ', "length"), ""),
        (OPENAI, call('{"x": '), ""),
        (OPENAI, call({"x": 1}), "no text"),
        (OPENAI, {"choices": [{"message": {"tool_calls": 3}, "finish_reason": "stop"}]}, "no list"),
        (OPENAI, {"choices": [{"message": {"tool_calls": [3]}, "finish_reason": "stop"}]}, "no function"),
        (OPENAI, {"choices": OK_OPENAI["choices"] * 2}, "2 choices"),
        (OPENAI, {"choices": [{"message": {"content": "half: \ud83d"}, "finish_reason": "stop"}]}, "half"),
        (OPENAI, {"choices": []}, "no choices"),
        (OPENAI, {}, "no choices"),
        (OPENAI, [], "no object"),
        (OPENAI, {"choices": [{"finish_reason": "stop"}]}, "no message"),
        (OPENAI, {"choices": [{"message": {"content": 4}, "finish_reason": "stop"}]}, "no text"),
        (OPENAI, {"choices": [{"message": {"content": "a"}, "finish_reason": None}]}, "cut"),
        (OPENAI, {"choices": [{"message": {"content": "a"}, "finish_reason": "error"}]}, "error"),
        (OPENAI, {"error": {"message": "overloaded"}}, "overloaded"),
        (ANTHROPIC, OK_ANTHROPIC, ""),
        (ANTHROPIC, {**OK_ANTHROPIC, "stop_reason": "max_tokens", "content": []}, ""),
        (ANTHROPIC, {**OK_ANTHROPIC, "stop_reason": None}, "cut"),
        (ANTHROPIC, {**OK_ANTHROPIC, "content": [{"type": "text", "text": "half: \ud83d"}]}, "half"),
        (ANTHROPIC, {"stop_reason": "end_turn"}, "no content"),
        (ANTHROPIC, [], "no object"),
        (ANTHROPIC, {"content": ["x"], "stop_reason": "end_turn"}, "no type"),
        (ANTHROPIC, {"content": [{"type": "text"}], "stop_reason": "end_turn"}, "is null"),
        (
            ANTHROPIC,
            {"content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}], "stop_reason": "x"},
            "a text",
        ),
        (ANTHROPIC, {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}, "overloaded"),
    ],
)
def test_faults_of_replies(dialect: Dialect, reply: dict[str, Any], fault: str) -> None:
    said = dialect.fault(reply)
    assert fault in said
    assert bool(fault) is bool(said)


@given(st.recursive(TEXT | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["choices", "message", "content", "tool_calls", "function", "usage", "error", "type", "input"]), inner
)))  # fmt: skip
def test_no_reply_is_too_strange_to_be_read(reply: Any) -> None:
    for dialect in DIALECTS.values():
        fault = dialect.fault(reply)
        if isinstance(reply, dict):
            dialect.text(reply)
            dialect.usage(reply)
            assert fault or dialect.finish(reply)


def test_usage() -> None:
    assert OPENAI.usage({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}) == (3, 4)
    assert OPENAI.usage({"usage": {"prompt_tokens": -3, "completion_tokens": True}}) == (None, None)
    assert OPENAI.usage({}) == ANTHROPIC.usage({"usage": 3}) == (None, None)
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 4}
    assert ANTHROPIC.usage({"usage": usage}) == (123, 4)
    assert ANTHROPIC.usage({"usage": {**usage, "cache_read_input_tokens": None}}) == (23, 4)
    assert ANTHROPIC.usage({"usage": {**usage, "cache_read_input_tokens": "many"}}) == (None, 4)


def test_errors_have_the_form_of_their_dialect() -> None:
    for dialect in DIALECTS.values():
        for status in (400, 403, 404, 413, 429, 500, 503):
            error = dialect.error("why", "allowance", status)
            assert error["error"]["message"] == "why"
            assert error["error"]["code"] == "allowance"
            assert dialect.fault(error) == "it is an error: why"
    assert ANTHROPIC.error("why", "x", 503)["type"] == "error"
