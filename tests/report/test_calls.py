"""The model calls of a run, read from a real store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadscrew.errors import NotFoundError
from leadscrew.report import calls as view
from leadscrew.report import views
from support.asked_run import make_asked_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_asked_run(tmp_path_factory.mktemp("asked") / "r")


def test_one_row_for_each_call(run: Path) -> None:
    rows = view.calls(run)
    assert json.loads(json.dumps(rows)) == rows
    assert [(r["role"], r["plan"], r["candidate"], r["source"], r["status"]) for r in rows] == [
        ("solver", 1, "1.0", "upstream", "ok"),
        ("solver", 1, "1.0", "cache", "ok"),
        ("solver", 1, "1.0", "upstream", "failed"),
        ("proposer", 1, "", None, "unanswered"),
        ("solver", None, "1.0", "upstream", "ok"),
    ]
    assert [r["micro_usd"] for r in rows] == [120, 0, 2000, 2000, 120]
    assert [(r["tokens_in"], r["tokens_out"]) for r in rows][:2] == [(30, 4), (30, 4)]
    assert (rows[0]["seconds"], rows[2]["message"], rows[2]["attempts"]) == (0.25, "503: overloaded", 3)


def test_only_those_of_a_candidate_or_without_a_reply(run: Path) -> None:
    numbers = [r["number"] for r in view.calls(run)]
    assert [r["number"] for r in view.calls(run, "champion")] == [*numbers[:3], numbers[4]]
    assert view.calls(run, "0.0") == []
    assert [r["number"] for r in view.calls(run, failed=True)] == numbers[2:4]
    with pytest.raises(NotFoundError, match="no candidate"):
        view.calls(run, "9.9")


def test_one_call_in_full(run: Path) -> None:
    first = view.call(run, view.calls(run)[0]["number"])
    assert "What is one plus one?" in first["prompt"]
    assert first["response"] == "two"
    assert first["request_body"] == {"messages": [{"role": "user", "content": "What is one plus one?"}]}
    assert first["reply_body"]["choices"][0]["message"]["content"] == "two"
    open_call = view.call(run, view.calls(run)[3]["number"])
    assert (open_call["response"], open_call["reply_body"], open_call["uncertain"]) == ("", {}, 1)
    with pytest.raises(NotFoundError, match="no model call 999"):
        view.call(run, 999)


def test_status_sums_by_role(run: Path) -> None:
    models = views.status(run)["models"]
    assert models["by_role"]["solver"] == {"calls": 2, "tokens_in": 30, "tokens_out": 1004, "micro_usd": 2120}
    assert models["final"] == {"calls": 1, "tokens_in": 30, "tokens_out": 4, "micro_usd": 120}
    assert models["search"]["calls"] == 3
    assert models["by_role"]["proposer"] == {"calls": 1, "tokens_in": 0, "tokens_out": 1000, "micro_usd": 2000}
    assert (models["unanswered"], models["uncertain"]) == (1, 1)
    assert models["caps_by_role"] == {"solver": {"calls": 40}}
