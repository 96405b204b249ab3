"""A reply sent as a stream and put together again is the same reply; a broken stream is seen to be one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.adapters.models.dialects import ANTHROPIC, DIALECTS, OPENAI, Dialect, Gatherer, sse
from support.dialect_talk import ANTHROPIC_REPLIES, OPENAI_REPLIES, cut

EITHER = st.tuples(st.just(OPENAI), OPENAI_REPLIES) | st.tuples(st.just(ANTHROPIC), ANTHROPIC_REPLIES)


def fed(dialect: Dialect, chunks: list[bytes]) -> Gatherer:
    gatherer = dialect.gather()
    for event in sse.split(chunks):
        gatherer.feed(event)
    return gatherer


@given(EITHER, st.data())
def test_there_and_back(talk: tuple[Dialect, dict[str, Any]], data: st.DataObject) -> None:
    dialect, reply = talk
    chunks = data.draw(cut(b"".join(dialect.events(reply, include_usage=True))))
    gatherer = fed(dialect, chunks)
    assert gatherer.ended
    assert gatherer.reply() == reply


@given(EITHER)
def test_the_end_can_be_held_back(talk: tuple[Dialect, dict[str, Any]]) -> None:
    """No stream without its final events is a whole reply, and all that went out before them is in the reply."""
    dialect, reply = talk
    events = list(dialect.events(reply, include_usage=True))
    finals = [dialect.is_final(event) for event in events]
    assert finals == sorted(finals)
    early = fed(dialect, [e for e, final in zip(events, finals, strict=True) if not final])
    assert not early.ended
    assert dialect.fault(early.reply())
    assert dialect.text(early.reply()) == dialect.text(reply)


@given(EITHER, st.data())
def test_a_stream_cut_anywhere_is_not_whole(talk: tuple[Dialect, dict[str, Any]], data: st.DataObject) -> None:
    dialect, reply = talk
    stream = b"".join(dialect.events(reply))
    kept = data.draw(st.integers(0, len(stream) - 3))
    gatherer = fed(dialect, [stream[:kept]])
    assert not gatherer.ended
    gatherer.reply()


@given(EITHER)
def test_the_model_is_renamed(talk: tuple[Dialect, dict[str, Any]]) -> None:
    dialect, reply = talk
    stream = [dialect.with_model(event, "other/name") for event in dialect.events(reply, include_usage=True)]
    assert fed(dialect, stream).reply() == {**reply, "model": "other/name"}


@given(EITHER, st.binary(max_size=60))
def test_rubbish_never_raises(talk: tuple[Dialect, dict[str, Any]], rubbish: bytes) -> None:
    dialect, reply = talk
    events = list(dialect.events(reply))
    broken = fed(
        dialect, [*events[:1], b"data: {" + rubbish.replace(b"\n", b"").replace(b"\r", b"") + b"\n\n", *events[1:]]
    )
    assert "broken" in str(broken.reply().get("error", "broken"))
    dialect.is_final(rubbish)
    dialect.with_model(rubbish, "x")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize(
    "value",
    [
        {"choices": [{"index": 0, "delta": "text"}], "type": "content_block_delta", "index": 3, "delta": {}},
        {"choices": [{"index": "x"}], "type": "content_block_start"},
        {"choices": ["x"], "type": "message_start"},
        {"choices": [{"delta": {"content": 5}}], "type": "message_delta", "delta": "x"},
        {"choices": [{"delta": {"tool_calls": "x"}}], "type": "content_block_start", "index": 0, "content_block": 1},
        {"choices": [{"delta": {"tool_calls": [{"function": 3}]}}], "type": "message_delta", "usage": 3},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {}}}]}}], "type": "error"},
        {"error": {"message": "overloaded"}, "type": "error"},
    ],
)
def test_wrong_shapes_make_an_error(dialect: Dialect, value: dict[str, Any]) -> None:
    gatherer = dialect.gather()
    gatherer.feed(sse.block(value))
    assert dialect.fault(gatherer.reply()).startswith("it is an error")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_an_error_ends_a_stream(dialect: Dialect) -> None:
    event = dialect.error_event(dialect.error("the cap is reached", "unavailable", 503))
    assert dialect.is_final(event)
    gatherer = dialect.gather()
    gatherer.feed(event)
    assert "the cap is reached" in dialect.fault(gatherer.reply())


def test_calls_without_an_index_are_told_apart_by_identity() -> None:
    gatherer = OPENAI.gather()
    for call in (
        {"id": "a", "function": {"name": "f", "arguments": "{"}},
        {"function": {"arguments": "}"}},
        {"id": "b", "function": {"name": "g", "arguments": "{}"}},
    ):
        gatherer.feed(sse.block({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}))
    gatherer.feed(sse.block({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}))
    reply = gatherer.reply()
    assert OPENAI.fault(reply) == ""
    assert OPENAI.text(reply) == "[call f] {}\n\n[call g] {}"


def test_an_input_cut_by_the_limit_is_empty_and_any_other_broken_one_is_a_fault() -> None:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    for stop, fault in (("max_tokens", False), ("tool_use", True)):
        gatherer = ANTHROPIC.gather()
        for value in (
            {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}},
            {"type": "ping"},
            {"type": "content_block_start", "index": 0, "content_block": use},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "delta_of_next_year"}},
            {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        ):
            gatherer.feed(sse.block(value))
        reply = gatherer.reply()
        assert bool(ANTHROPIC.fault(reply)) is fault
        assert ANTHROPIC.usage(reply) == (3, 9)
        if not fault:
            assert reply["content"] == [use]


def test_a_character_cut_in_two_pieces_is_made_whole() -> None:
    openai, anthropic = OPENAI.gather(), ANTHROPIC.gather()
    anthropic.feed(
        sse.block({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    )
    for half in ("\ud83d", "\ude00"):
        openai.feed(sse.block({"choices": [{"index": 0, "delta": {"content": half}}]}))
        delta = {"type": "text_delta", "text": half}
        anthropic.feed(sse.block({"type": "content_block_delta", "index": 0, "delta": delta}))
    assert OPENAI.text(openai.reply()) == ANTHROPIC.text(anthropic.reply()) == "\U0001f600"


def test_citations_are_gathered() -> None:
    gatherer = ANTHROPIC.gather()
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    cited = {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"n": 1}}}
    for value in (start, cited, cited):
        gatherer.feed(sse.block(value))
    assert gatherer.reply()["content"] == [{"type": "text", "text": "", "citations": [{"n": 1}, {"n": 1}]}]


def test_usage_only_if_asked_for() -> None:
    reply = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    assert b"prompt_tokens" not in b"".join(OPENAI.events(reply))
    assert b"prompt_tokens" in b"".join(OPENAI.events(reply, include_usage=True))
