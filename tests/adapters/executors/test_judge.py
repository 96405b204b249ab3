"""A judge in whole small runs: scores from a scripted model, outages, caps, the record, replay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from leadscrew import runs
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Caps
from leadscrew.core.task import Answer
from leadscrew.domains.function import FunctionDomain
from leadscrew.errors import DomainError, InfrastructureError
from leadscrew.report import calls

MODEL = """
from pathlib import Path

HERE = Path(__file__).parent


def judge(request):
    text = request["messages"][-1]["content"]
    with open(HERE / "asked", "a") as log:
        log.write(text + "\\n")
    if (HERE / "down").exists():
        raise RuntimeError("the judge is out")
    question, answer = text.split(" -> ")
    return "GOOD" if answer == question.upper() else "POOR"
"""
SYNC = """
def score(input, answer, judge):
    if answer == "?":
        return 0.5
    return judge(f"{input} -> {answer}", max_tokens=10) == "GOOD"
"""
WAITING = """
async def score(input, answer, judge):
    return await judge(f"{input} -> {answer}", max_tokens=10) == "GOOD"
"""
CATCHING = """
def score(input, answer, judge):
    try:
        return judge(f"{input} -> {answer}") == "GOOD"
    except Exception:
        return 1.0
"""
PROGRAM = "def solve(input):\n    return input.upper() if input < 'c' else input\n"


def task(folder: Path, scorer: str = SYNC) -> dict[str, Any]:
    """Write a task with a judge into `folder` and return its configuration."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for split, words in {"train": "ab", "val": "abcd", "test": "efgh"}.items():
        rows = "".join(f'{{"input": "{w}{split}", "expected": null}}\n' for w in words)
        (folder / "data" / f"{split}.jsonl").write_text(rows)
    (folder / "score.py").write_text(scorer)
    (folder / "model.py").write_text(MODEL)
    (folder / "program").mkdir(exist_ok=True)
    (folder / "program" / "main.py").write_text(PROGRAM)
    return {
        "run": {"out": str(folder / "run"), "seed": 1},
        "domain": {"name": "folder", "path": str(folder)},
        "program": {"path": str(folder / "program")},
        "proposer": {"name": "genetic"},
        "harness": {"iterations": 1, "candidates": 1},
        "models": {"judge": {"model": f"scripted/{folder / 'model.py'}:judge"}},
    }


def digest(folder: Path) -> str:
    store = SQLiteStore.open(folder, readonly=True)
    try:
        return store.archive_digest()
    finally:
        store.close()


@pytest.mark.parametrize("scorer", [SYNC, WAITING])
def test_a_judge_scores_and_is_asked_once_for_each_answer(tmp_path: Path, scorer: str) -> None:
    config = task(tmp_path, scorer)
    found = runs.run(config)
    assert found.value is not None
    assert found.value >= 0.5
    rows = calls.calls(found.folder)
    assert {(r["role"], r["status"], r["source"]) for r in rows} == {("judge", "ok", "upstream")}
    assert {r["instance"].partition(":")[0] for r in rows} == {"val"}
    assert calls.calls(found.folder, "0.0") != []
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == len(rows) == len(set(asked))
    store = SQLiteStore.open(found.folder, readonly=True)
    program = next(iter(store.candidates())).program
    trials = store.trials(program)
    assert sorted(t.score or 0.0 for t in trials) == [0.0, 0.0, 1.0, 1.0]
    assert all(t.spend.calls == 0 and "model_calls" not in t.costs for t in trials)
    assert store.spend().calls == len(rows)
    store.close()
    certificate = runs.finalize(found.folder)
    assert certificate["models"]["judge"]["max_tokens"] == 1024
    assert any(r["plan"] is None and r["instance"].startswith("test:") for r in calls.calls(found.folder))


def test_an_outage_is_no_score_and_the_run_goes_on(tmp_path: Path) -> None:
    config = task(tmp_path, CATCHING)
    undisturbed = digest(runs.run(config).folder)
    config["run"] = {"out": str(tmp_path / "other"), "seed": 1}
    (tmp_path / "down").touch()
    with pytest.raises(InfrastructureError, match="the judge is out"):
        runs.run(config)
    store = SQLiteStore.open(tmp_path / "other", readonly=True)
    assert list(store.candidates()) == []
    store.close()
    (tmp_path / "down").unlink()
    found = runs.resume(tmp_path / "other")
    assert found.value is not None
    assert digest(found.folder) == undisturbed


def test_a_cap_stops_the_run_and_is_raised(tmp_path: Path) -> None:
    config = task(tmp_path)
    config["models"]["judge"]["budget"] = {"calls": 2}
    found = runs.run(config)
    assert "calls" in found.stopped
    assert len((tmp_path / "asked").read_text().splitlines()) == 2
    found = runs.resume(tmp_path / "run", caps=Caps(calls=500), role="judge")
    assert not found.stopped
    assert found.value is not None
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == len(set(asked))


def test_a_recorded_run_is_replayed_without_the_judge(tmp_path: Path) -> None:
    first = runs.run(task(tmp_path))
    (tmp_path / "down").touch()
    config = task(tmp_path)
    config["run"] = {"out": str(tmp_path / "again"), "seed": 1, "replay": str(first.folder)}
    assert digest(runs.run(config).folder) == digest(first.folder)


def test_without_a_judge_the_run_is_refused_before_it_begins(tmp_path: Path) -> None:
    config = task(tmp_path)
    del config["models"]
    with pytest.raises(DomainError, match=r"\[models.judge\]"):
        runs.run(config)
    assert not (tmp_path / "run").exists()


def test_a_scorer_that_hides_its_wish_for_a_judge_is_told_so(tmp_path: Path) -> None:
    hidden = "def ask(input, answer, judge):\n    return judge(str(answer)) == 'GOOD'\n\n\nscore = ask\n"
    config = task(tmp_path, hidden)
    del config["models"]
    with pytest.raises(DomainError, match=r"\[models.judge\]"):
        runs.run(config)


def test_the_allowance_of_the_judge_is_the_answers_limit(tmp_path: Path) -> None:
    greedy = SYNC.replace("return judge(", "input > 'c' and (judge('x -> y'), judge('x -> z')); return judge(")
    config = task(tmp_path, greedy)
    config["models"]["judge"]["calls_per_trial"] = 2
    found = runs.run(config)
    store = SQLiteStore.open(found.folder, readonly=True)
    trials = store.trials(next(iter(store.candidates())).program)
    assert sorted(str(t.outcome) for t in trials) == ["bad_output", "bad_output", "ok", "ok"]
    assert all("allowance of calls" in t.message for t in trials if t.score is None)
    store.close()


def test_outside_a_run_the_judge_is_missing() -> None:
    def score(answer: Any, judge: Any) -> bool:
        return bool(judge(str(answer)) == "GOOD")

    domain = FunctionDomain(score, val=[("x", None)])
    assert domain.judged

    async def ask() -> Any:
        return await domain.score(domain.instances("val")[0], Answer("y"))  # type: ignore[misc]

    with pytest.raises(DomainError, match=r"\[models.judge\]"):
        asyncio.run(ask())
