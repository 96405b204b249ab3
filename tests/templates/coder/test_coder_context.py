"""The window is a law: whatever the conversation, what is sent fits by our own count, or nothing is sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from templates.coder.coder_tree import part

contexts = part("context")
dialects = part("dialects")
ends = part("ends")
native = part("native")
tags = part("tags")
talk = part("talk")

TEXTS = st.builds(
    lambda size, letter: letter * size, st.sampled_from([0, 1, 50, 241, 900, 4000]), st.sampled_from("aé\n")
)


@st.composite
def conversations(draw: Any) -> list[Any]:
    turns = [talk.Turn("user", "task" + draw(TEXTS))]
    for number in range(draw(st.integers(0, 9))):
        call = talk.Call(f"call_{number}", "editor", {"command": "create", "path": "a", "text": draw(TEXTS)})
        words = draw(TEXTS)
        if draw(st.integers(0, 4)) == 0:
            turns += [talk.Turn("assistant", words or "x"), talk.Turn("user", draw(TEXTS))]
        else:
            written = f"{words}\n{tags.written(call.tool, call.arguments)}"
            turns.append(talk.Turn("assistant", written, (call,)))
            turns.append(talk.Turn("results", results=(talk.Result(call.id, call.tool, draw(TEXTS)),)))
    return turns


@given(
    turns=conversations(),
    window=st.integers(600, 12_000),
    speech=st.sampled_from([native.Native(), tags.Tags()]),
    dialect=st.sampled_from(["openai", "anthropic"]),
    figures=st.lists(st.integers(1, 100_000), max_size=3),
)
def test_what_is_sent_fits(turns: list[Any], window: int, speech: Any, dialect: str, figures: list[int]) -> None:
    context = contexts.Context(window, 100)

    def write(turns: list[Any]) -> dict[str, Any]:
        return dialects.body(dialect, "m", "system", speech.turns(turns), [], 100)

    for figure in figures:
        context.learn(write(turns), figure)
    before = context.tokens(write(turns))
    least = context.tokens(write([turns[0], *turns[1:][-2:]]))
    if least > context.limit:
        with pytest.raises(ends.End) as caught:
            context.fit(turns, write)
        assert caught.value.code == ends.WINDOW_TOO_SMALL
        return
    noted = context.tokens(write([turns[0], talk.Turn("user", contexts.NOTE), *turns[1:][-2:]]))
    try:
        fitted, shortened = context.fit(turns, write)
    except ends.End:
        event("all but the note would have fitted")
        assert noted > context.limit
        return
    assert context.tokens(write(fitted)) <= context.limit
    assert bool(shortened) == (before > context.limit)
    assert fitted[0] == turns[0]
    assert fitted[-2:] == turns[-2:]
    calls = {call.id for turn in fitted for call in turn.calls}
    assert calls == {result.id for turn in fitted for result in turn.results}
    if not shortened:
        assert fitted == turns


def test_old_results_go_first_and_say_so() -> None:
    turns = [talk.Turn("user", "task")]
    for number in range(5):
        call = talk.Call(f"call_{number}", "shell", {"command": "ls"})
        turns.append(talk.Turn("assistant", "", (call,)))
        turns.append(talk.Turn("results", results=(talk.Result(call.id, "shell", "x" * 3000),)))
    context = contexts.Context(4600, 100)

    def write(turns: list[Any]) -> dict[str, Any]:
        return dialects.body("openai", "m", "s", turns, native.Native().tools()[:1], 100)

    fitted, shortened = context.fit(turns, write)
    sizes = [len(turn.results[0].text) for turn in fitted if turn.role == "results"]
    assert sizes[-2:] == [3000, 3000]
    assert sizes[0] < 200
    assert "result of shell: 3000 characters, left out" in fitted[2].results[0].text
    assert shortened[0] == "results in turn 2"


def test_the_models_own_count_is_learned_within_bounds() -> None:
    context = contexts.Context(1000, 100)
    body = {"text": "x" * 989}
    assert contexts.size_of(body) == 1001
    assert context.tokens(body) == 334
    context.learn(body, 250)
    assert context.tokens(body) == pytest.approx(263, abs=2)
    for lie in (1, 10**9):
        context.learn(body, lie)
        assert 200 <= context.tokens(body) <= 1002
