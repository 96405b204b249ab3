"""What `init` writes: the same on every machine, complete, and with room for improvement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadscrew.cli import main
from leadscrew.config import load_config
from leadscrew.config.scaffold import ROWS, init
from leadscrew.core.task import Answer
from leadscrew.engine.folders import read_folder
from leadscrew.plugins import load_domain


def test_two_tasks_are_the_same_but_for_their_names(tmp_path: Path) -> None:
    init(tmp_path / "a" / "task")
    init(tmp_path / "b" / "task")
    assert read_folder(tmp_path / "a") == read_folder(tmp_path / "b")


def test_every_file_is_there_and_named(tmp_path: Path) -> None:
    made = init(tmp_path / "mine")
    assert made.files == tuple(read_folder(tmp_path / "mine"))
    for path in ("README.md", "leadscrew.toml", "score.py", "program/main.py", "data/test.jsonl"):
        assert path in made.files
    assert "leadscrew run mine" in (tmp_path / "mine" / "README.md").read_text("utf-8")
    assert made.next == f"leadscrew run {tmp_path / 'mine'}"


def test_rows_stand_in_one_split_only(tmp_path: Path) -> None:
    init(tmp_path / "mine")
    rows = {s: (tmp_path / "mine" / "data" / f"{s}.jsonl").read_text("utf-8").splitlines() for s in ROWS}
    assert {split: len(lines) for split, lines in rows.items()} == ROWS
    inputs = [json.dumps(json.loads(line)["input"]) for lines in rows.values() for line in lines]
    assert len(set(inputs)) == len(inputs)


def test_the_scorer_tells_good_from_bad(tmp_path: Path) -> None:
    init(tmp_path / "mine")
    domain = load_domain(load_config(tmp_path / "mine"))
    instance = domain.instances("val")[0]
    assert domain.score(instance, Answer(instance.expected)).value == 1.0
    assert domain.score(instance, Answer(instance.expected * 1.2)).value == pytest.approx(0.5)


def test_the_estimate_of_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(tmp_path / "mine")
    assert main(["run", str(tmp_path / "mine"), "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trials_at_start"], found["trials_low"], found["trials_high"]) == (60, 60 + 160 * 20, 60 + 160 * 60)
    assert found["caps"] == {"seconds": 600.0}
    assert main(["run", str(tmp_path / "mine"), "--estimate", "--set", "evaluation.ladder=[]"]) == 0
    text = capsys.readouterr().out
    assert "at most 9660 trials" in text
    assert "known only once" in text
    assert not (tmp_path / "mine" / "runs").exists()
