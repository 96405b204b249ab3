"""`leadscrew calls`, and what `status` says of model calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadscrew.cli import main
from support.asked_run import make_asked_run

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_asked_run(tmp_path_factory.mktemp("asked") / "r")


def said(capsys: Captured, *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_a_table_and_one_call(run: Path, capsys: Captured) -> None:
    text = said(capsys, "calls", str(run))
    assert "503: overloaded" in text
    assert "$0.0001" in text
    assert "unanswered" in text
    assert "final" in text
    assert len(said(capsys, "calls", str(run), "--failed").splitlines()) == 3
    assert "no such model calls" in said(capsys, "calls", str(run), "0.0")
    number = str(json.loads(said(capsys, "calls", str(run), "1.0", "--json"))[0]["number"])
    one = said(capsys, "calls", str(run), "--number", number)
    assert "What is one plus one?" in one
    assert "30 in, 4 out" in one
    assert json.loads(said(capsys, "calls", str(run), "--number", number, "--json"))["response"] == "two"


def test_a_number_stands_alone(run: Path, capsys: Captured) -> None:
    assert main(["calls", str(run), "--number", "1", "--failed"]) == 2
    assert "--number names one call" in capsys.readouterr().err


def test_status_names_caps_roles_and_open_calls(run: Path, capsys: Captured) -> None:
    text = said(capsys, "status", str(run))
    assert "3 calls, 2034 of 5000000 tokens, $0.0041 of $2" in text
    assert "solver: 2 of 40 calls, 1034 tokens (30 in, 1004 out), $0.0021" in text
    assert "1 without a reply, counted at their bound; 1 attempts may be billed" in text


def test_an_unknown_price_is_said_in_words(tmp_path: Path, capsys: Captured) -> None:
    folder = make_asked_run(tmp_path / "r", priced=False)
    text = said(capsys, "status", str(folder))
    assert "cost unknown (a model without a known price) of $2" in text
    assert "unknown" in said(capsys, "calls", str(folder))


ASKING = """
from leadscrew_guest import llm


def solve(input):
    return llm("Say it louder: " + input)
"""


def test_what_a_program_used_of_a_model_stands_with_the_candidate(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "data").mkdir()
    for split, words in {"train": "ab", "val": "cd", "test": "ef"}.items():
        rows = "".join(json.dumps({"input": word, "expected": word.upper()}) + "\n" for word in words)
        (tmp_path / "data" / f"{split}.jsonl").write_text(rows)
    (tmp_path / "score.py").write_text("def score(answer, expected):\n    return answer == expected\n")
    (tmp_path / "model.py").write_text(
        'def loud(request):\n    return request["messages"][-1]["content"][-1].upper()\n'
    )
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "main.py").write_text(ASKING)
    (tmp_path / "leadscrew.toml").write_text(
        '[run]\nout = "run"\n[domain]\nname = "folder"\npath = "."\n[program]\npath = "program"\n'
        '[harness]\niterations = 0\n[models.solver]\nmodel = "scripted/model.py:loud"\n'
    )
    place = str(tmp_path)
    assert main(["run", place]) == 0
    assert "model call" not in capsys.readouterr().err
    for command in ("show", "why"):
        assert "model_calls 1, " in said(capsys, command, place, "seed")
    assert "context_chars " in said(capsys, "show", place, "seed")
    instance = json.loads(said(capsys, "calls", place, "--json"))[0]["instance"].removeprefix("val:")
    kept = said(capsys, "trace", place, "seed", instance)
    assert "model calls, whoever paid  1 calls, " in kept
    assert "tokens_in" not in kept.partition("\nused ")[2]
    assert "solver: 2 calls, " in said(capsys, "status", place)
