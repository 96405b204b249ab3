"""The archive of a turn as a golden tree, from the hand-written stream of one agent."""

from __future__ import annotations

import json
from pathlib import Path

from leadscrew.core.budget import Spend
from leadscrew.core.program import Program
from leadscrew.operators.session import Turn, archive, read_statistics, redactor, summary
from leadscrew.operators.streams import read_stream
from leadscrew.ports import Errand, ErrandResult

EVENTS = (Path(__file__).parent / "streams" / "claude.jsonl").read_text("utf-8")


def turn(number: int = 1, spend: Spend = Spend(), events: str = EVENTS) -> Turn:
    work = Program.of({"pending_eval.json": "{}", "candidates/one/main.py": "x = 1\n"})
    result = ErrandResult("ok", 0, events, "warning: key-of-somebody", 12.5, work, spend=spend)
    errand = Errand(("claude", "-p", "PROMPT"))
    return Turn(
        number, "PROMPT key-of-somebody", "ab" * 32, "p/m", errand, result, read_stream("claude", events), events
    )


def test_a_turn_becomes_a_tree_of_files(tmp_path: Path) -> None:
    given = turn()
    meta = archive(tmp_path, given, redactor({"AGENT_KEY": "key-of-somebody", "SHORT": "P"}))
    there = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert there == [
        "artifacts/candidates/one/main.py",
        "artifacts/pending_eval.json",
        "events.jsonl",
        "meta.json",
        "prompt.md",
        "response.md",
        "stderr.txt",
        "tools/001_Read.txt",
        "tools/002_Bash.txt",
        "tools/003_Write.txt",
    ]
    assert json.loads((tmp_path / "meta.json").read_text()) == meta
    assert meta == {
        "turn": 1,
        "prompt": "PROMPT [redacted AGENT_KEY]",
        "skill": "ab" * 32,
        "model": "p/m",
        "session": "7d1c",
        "command": ["claude", "-p", "PROMPT"],
        "outcome": "ok",
        "exit_code": 0,
        "seconds": 12.5,
        "isolated": True,
        "lost": "",
        "left_out": [],
        "exhausted": "",
        "calls": None,
        "tokens": {"in": 1000, "out": 50, "metered": False},
        "cost_usd": 0.5,
        "messages": 4,
        "tools": {"Read": 1, "Bash": 1, "Write": 1},
        "files_read": {
            "/bench/history/evolution_summary.jsonl": {"reads": 1, "lines": 2},
            "/bench/history/candidates/1.0-a/log.jsonl": {"reads": 1, "lines": 1},
        },
        "files_written": {"/work/pending_eval.json": {"writes": 1, "lines": 1}},
        "read_share": {"code": 0.0, "traces": 0.5, "scores": 0.5, "other": 0.0},
        "faults": [],
        "unread_lines": 0,
    }
    assert (tmp_path / "stderr.txt").read_text() == "warning: [redacted AGENT_KEY]"
    assert (tmp_path / "tools" / "002_Bash.txt").read_text().startswith("Bash: ok\n\n{\n")
    assert (tmp_path / "response.md").read_text() == "one, two"
    told = summary(meta, given.transcript)
    assert "12.5" not in told
    assert told.endswith("said: one, two")


def test_what_the_gateway_counted_goes_before_what_the_agent_says(tmp_path: Path) -> None:
    meta = archive(tmp_path, turn(spend=Spend(calls=3, tokens_in=70, tokens_out=8, micro_usd=1500)), str)
    assert (meta["calls"], meta["tokens"], meta["cost_usd"]) == (3, {"in": 70, "out": 8, "metered": True}, 0.0015)
    unknown = archive(tmp_path, turn(spend=Spend(calls=1, micro_usd=None)), str)
    assert unknown["cost_usd"] is None, "an unknown price is never 0"


def test_reading_over_a_run(tmp_path: Path) -> None:
    assert read_statistics(tmp_path) == {"turns": 0, "median_files_read": None, "read_share": {}}
    (tmp_path / "1-1").mkdir()
    archive(tmp_path / "1-1", turn(), str)
    (tmp_path / "2-1").mkdir()
    archive(tmp_path / "2-1", turn(events=""), str)
    found = read_statistics(tmp_path)
    assert (found["turns"], found["median_files_read"]) == (2, 1.0)
    assert found["read_share"] == {"code": 0.0, "traces": 0.5, "scores": 0.5, "other": 0.0}
