"""Whatever a program or an upstream sends: it is refused in words, or everything works with it. Nothing else is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from leadscrew.adapters.models.dialects import (
    ANTHROPIC,
    OPENAI,
    BadRequest,
    Dialect,
    sse,
    translate_reply,
    translate_request,
)
from leadscrew.core.call import Pin
from leadscrew.core.canonical import canonical_json
from support.dialect_talk import ANTHROPIC_REPLIES, OPENAI_REPLIES, anthropic_requests, openai_requests, spoiled

PIN = Pin("solver", "place/model", max_tokens=100)


def either(openai: Any, anthropic: Any) -> st.SearchStrategy[tuple[Dialect, Any]]:
    return st.tuples(st.just(OPENAI), spoiled(openai)) | st.tuples(st.just(ANTHROPIC), spoiled(anthropic))


def other(dialect: Dialect) -> Dialect:
    return ANTHROPIC if dialect is OPENAI else OPENAI


def unless_refused(ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return ask()
    except BadRequest:
        return None


@settings(max_examples=300)
@given(either(openai_requests(), anthropic_requests()))
def test_spoiled_requests(talk: tuple[Dialect, dict[str, Any]]) -> None:
    dialect, body = talk
    target = other(dialect)
    sent = unless_refused(lambda: dialect.pinned(body, PIN))
    if sent is not None:
        assert dialect.prompt(sent).encode().decode() == dialect.prompt(sent)
        assert canonical_json(sent).decode()
        assert dialect.pinned(sent, PIN) == sent
    there = unless_refused(lambda: translate_request(body, dialect, target))
    if there is not None:
        assert sent is not None
        assert target.prompt(target.pinned(there, PIN)) == target.prompt(there)


@settings(max_examples=300)
@given(either(OPENAI_REPLIES, ANTHROPIC_REPLIES))
def test_spoiled_replies(talk: tuple[Dialect, dict[str, Any]]) -> None:
    dialect, reply = talk
    dialect.text(reply)
    dialect.usage(reply)
    if dialect.fault(reply):
        return
    gatherer = dialect.gather()
    for event in dialect.events(reply, include_usage=True):
        gatherer.feed(event)
    assert gatherer.ended
    assert dialect.fault(gatherer.reply()) == ""
    assert dialect.text(gatherer.reply()) == dialect.text(reply)
    target = other(dialect)
    there = translate_reply(reply, dialect, target)
    assert target.fault(there) == ""
    assert b"".join(target.events(there, include_usage=True))


@settings(max_examples=300)
@given(either(OPENAI_REPLIES, ANTHROPIC_REPLIES), st.data())
def test_spoiled_streams(talk: tuple[Dialect, dict[str, Any]], data: st.DataObject) -> None:
    dialect, reply = talk
    if dialect.fault(reply):
        return
    gatherer = dialect.gather()
    for event in dialect.events(reply, include_usage=True):
        chunk = sse.payload(event)
        if chunk is not None and data.draw(st.integers(0, 3)) == 0:
            event = sse.block(data.draw(spoiled(st.just(chunk))))
        dialect.is_final(event)
        dialect.with_model(event, "x")
        gatherer.feed(event)
    whole = gatherer.reply()
    if not dialect.fault(whole):
        assert b"".join(dialect.events(whole))
        assert translate_reply(whole, dialect, other(dialect))
