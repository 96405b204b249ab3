"""The tree keeps the rules it needs to travel: standard library only, small documented files, papers that agree with it."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import re
import sys
from pathlib import Path

import pytest

from templates.coder.coder_tree import TREE, part

FILES = sorted(TREE.rglob("*.py"))
README = (TREE / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files_are_small_documented_and_need_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 300
    assert ast.get_docstring(tree)
    members = [inner for node in tree.body if isinstance(node, ast.ClassDef) for inner in node.body]
    for node in (*tree.body, *members):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in {*sys.stdlib_module_names, "coder"}


@pytest.mark.parametrize(
    "name", [p.stem for p in FILES if p.parent.name == "coder" and p.stem not in ("main", "__init__")]
)
def test_examples_run(name: str) -> None:
    assert doctest.testmod(part(name)).failed == 0


def test_the_readme_names_every_key_code_event_and_part() -> None:
    task, ends = part("task"), part("ends")
    keys = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in README.splitlines() if line.startswith("| `")))
    )
    assert keys >= task.KEYS
    defaults = {f.name: f.default for f in dataclasses.fields(task.Task)}
    for name in task.NUMBERS:
        assert re.search(rf"\| `{name}` \|.*\| {defaults[name]} \|", README), name
    listed = {
        int(n)
        for line in README.splitlines()
        if re.match(r"\| \d", line)
        for n in re.findall(r"\d+", line.split("|")[1])
    }
    assert listed == {1, *ends.MEANING}
    written = set(re.findall(r'events\.write\(\s*"(\w+)"', "".join(p.read_text() for p in FILES)))
    assert written == {n for n in keys if n in written}
    for path in FILES:
        if path.stem not in ("main", "__init__"):
            assert f"`{path.stem}`" in README
