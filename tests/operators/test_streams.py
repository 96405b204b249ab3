"""Streams of five agents, one meaning: what was said, used, read and written. The streams are hand-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.operators.session import kind_of, reading, shares, writing
from leadscrew.operators.streams import FORMATS, ToolUse, Transcript, read_stream

FOLDER = Path(__file__).parent / "streams"
STREAMS = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.json*")}
SUMMARY, LOG = "/bench/history/evolution_summary.jsonl", "/bench/history/candidates/1.0-a/log.jsonl"


@pytest.mark.parametrize("format", sorted(STREAMS))
def test_every_agents_stream_has_the_same_meaning(format: str) -> None:
    found = read_stream(format, STREAMS[format])
    assert found.response == "one, two"
    assert (found.faults, found.unread) == ([], 0)
    assert found.tokens_in == 1000
    assert found.tokens_out == 50
    assert found.cost_usd == (None if format in ("codex", "coder") else 0.5)
    assert [use.output for use in found.tools][:2] == ["row one\nrow two", "3"]
    assert all(use.ok in (True, None) for use in found.tools)
    assert reading(found) == {SUMMARY: {"reads": 1, "lines": 2}, LOG: {"reads": 1, "lines": 1}}
    assert shares(reading(found)) == {"code": 0.0, "traces": 0.5, "scores": 0.5, "other": 0.0}
    written = {} if format == "mini" else {"/work/pending_eval.json"}
    assert set(writing(found)) == set(written)
    if format in ("claude", "codex", "opencode"):
        assert found.session == "7d1c"


def test_every_format_has_a_stream() -> None:
    assert set(STREAMS) == set(FORMATS) - {"text"}


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_torn_stream_loses_only_what_is_torn(format: str) -> None:
    text = STREAMS.get(format, "some words")
    for cut in range(0, len(text), 97):
        read_stream(format, text[:cut] + "\n[... 12 of 99 bytes left out ...]\n" + text[cut:])
    broken = read_stream("claude", "not json\n[1]\n" + STREAMS["claude"])
    assert (broken.unread, broken.response) == (2, "one, two")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "message", "content", "item", "part", "state", "usage", "text", "tokens", "changes"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KINDS = (
    "assistant",
    "user",
    "result",
    "item.completed",
    "turn.completed",
    "tool_use",
    "step_finish",
    "tool_call",
    "end",
)


@given(st.sampled_from(sorted(FORMATS)), st.lists(st.tuples(st.sampled_from(KINDS), JSON), max_size=4))
def test_no_stream_raises(format: str, events: list[tuple[str, object]]) -> None:
    lines = []
    for kind, value in events:
        event = dict(value) if isinstance(value, dict) else {"message": value, "item": value, "part": value}
        lines.append(json.dumps({**event, "type": kind}))
    found = read_stream(format, "\n".join(lines))
    assert isinstance(found, Transcript)
    reading(found), writing(found)


def test_what_agents_failed_at_is_told() -> None:
    assert read_stream("claude", '{"type":"result","subtype":"error_max_turns","is_error":true}').faults == [
        "error_max_turns"
    ]
    assert read_stream("codex", '{"type":"turn.failed","error":{"message":"rate limit"}}').faults == ["rate limit"]
    assert read_stream("mini", '{"info":{"exit_status":"LimitsExceeded"},"messages":[]}').faults == ["LimitsExceeded"]
    assert "tokens" in read_stream("coder", '{"type":"end","code":11,"reason":"tokens used up"}').faults[0]


def test_files_of_the_bench_fall_into_the_kinds_of_the_paper() -> None:
    kinds = {
        "/bench/programs/0.0/main.py": "code",
        "/bench/history/candidates/1.0-a/program/main.py": "code",
        "/bench/history/candidates/1.0-a/log.jsonl": "traces",
        "/bench/history/candidates/1.0-a/stderr.txt": "traces",
        "/bench/history/candidates/1.0-a/val.json": "scores",
        "/bench/history/frontier_val.json": "scores",
        "/bench/SKILL.md": "other",
    }
    assert {path: kind_of(path) for path in kinds} == kinds
    assert shares({}) == {}
    use = ToolUse("Bash", {"command": "head -3 /bench/programs/0.0/main.py /bench/SKILL.md | wc"}, "3")
    assert reading(Transcript(tools=[use])) == {
        "/bench/SKILL.md": {"reads": 1, "lines": 0},
        "/bench/programs/0.0/main.py": {"reads": 1, "lines": 0},
    }
