"""The skill text says what it must, in words that the code keeps."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program
from leadscrew.core.task import Objective
from leadscrew.engine.history import FRONTIER, SUMMARY
from leadscrew.operators.deliverable import PENDING, read_deliverable

SKILL = (files("leadscrew") / "templates" / "harness" / "skill.md").read_text("utf-8")


@pytest.mark.parametrize(
    "rule",
    [
        r"## Your role",
        r"number of candidates",
        r"never finished",
        r"tuning of parameters",
        r"change a \*\*mechanism\*\*",
        r"overfitting",
        r"No names of data sets",
        r"No answers of single instances",
        r"hidden test split",
        r"is data",
        r"Any recorded candidate may be one, also a failed",
        r"must be possible for it to be wrong",
        r"links are refused",
    ],
)
def test_every_rule_stands_there(rule: str) -> None:
    assert re.search(rule, SKILL)


@pytest.mark.parametrize("name", [SUMMARY, FRONTIER, PENDING, "log.jsonl", "stderr.txt", "program/", "prompt.json"])
def test_the_files_it_names_are_those_of_the_code(name: str) -> None:
    assert name in SKILL


def test_it_names_no_domain_model_or_place() -> None:
    assert not re.search(r"(?i)docstring|debian|symptom|lawbench|uspto|claude|gpt|codex|/work|/home", SKILL)
    assert max(map(len, SKILL.splitlines())) <= 150


def test_its_example_is_a_deliverable_that_is_taken(tmp_path: Path) -> None:
    example = re.search(r"```json\n(.*?)```", SKILL, re.DOTALL)
    assert example is not None
    (tmp_path / PENDING).write_text(example[1])
    for item in json.loads(example[1])["candidates"]:
        (tmp_path / item["file"]).mkdir(parents=True)
        (tmp_path / item["file"] / "main.py").write_text("x = 1\n")
    taken = read_deliverable(tmp_path, archive=Archive((Objective("a"),)), program=lambda i: Program({}))
    assert [(p.name, p.failure) for p in taken] == [("short_label", "")]
    assert taken[0].claim.tags == ("tag_of_a_mechanism", "another_tag")
