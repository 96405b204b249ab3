"""The examples of docs/extending.md and docs/library.md are not only read: they run."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from leadscrew.config import load_config
from leadscrew.core.program import Program
from leadscrew.core.task import Answer
from leadscrew.plugins import load_domain, load_proposer
from leadscrew.ports import BadAnswer

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_example_domain(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks("extending.md", "python")[0], "utf-8")
    (tmp_path / "leadscrew.toml").write_text(blocks("extending.md", "toml")[0], "utf-8")
    domain = load_domain(load_config(tmp_path))
    val = domain.instances("val")
    assert len(val) == 100
    assert domain.score(val[1], Answer(2002)).value == 1.0
    assert domain.score(val[1], Answer(3)).value == 0.0
    with pytest.raises(BadAnswer):
        domain.score(val[1], Answer("x"))


async def test_the_example_proposer(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(blocks("extending.md", "python")[2], "utf-8")
    text = '[domain]\nname = "docstrings"\n' + blocks("extending.md", "toml")[1]
    (tmp_path / "leadscrew.toml").write_text(text, "utf-8")
    proposer = load_proposer(load_config(tmp_path))
    archive = SimpleNamespace(champion=SimpleNamespace(id="0.0"))
    bench = SimpleNamespace(archive=archive, program=lambda candidate: Program.of({"prompt.txt": "hello"}))
    (proposal,) = await proposer.propose(None, bench)  # type: ignore[arg-type]
    assert proposal.program is not None
    assert proposal.program.text("prompt.txt") == "HELLO"


@pytest.mark.parametrize("page", ["extending.md", "library.md"])
def test_every_python_example_is_python(page: str) -> None:
    for block in blocks(page, "python"):
        compile(block, page, "exec")
