"""The documents tell the truth: every command, option and key is documented, and every documented one exists."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from leadscrew.cli.parser import build_parser
from leadscrew.config.sections import (
    BudgetSection,
    DomainSection,
    EvaluationSection,
    ModelCaps,
    ModelSection,
    ProgramSection,
    ProposerSection,
    ProviderSection,
    RegionSection,
    RunSection,
    SandboxSection,
)
from leadscrew.core.task import Limits
from leadscrew.methods.harness import HarnessSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLES = {
    "run": RunSection,
    "domain": DomainSection,
    "program": ProgramSection,
    "program.region": RegionSection,
    "proposer": ProposerSection,
    "evaluation": EvaluationSection,
    "budget": BudgetSection,
    "sandbox": SandboxSection,
    "limits": Limits,
    "harness": HarnessSettings,
    "budget.final": ModelCaps,
    "models.ROLE": ModelSection,
    "models.ROLE.budget": ModelCaps,
    "providers.NAME": ProviderSection,
}


def commands() -> dict[str, argparse.ArgumentParser]:
    """The commands and their parsers."""
    actions = build_parser()._actions
    return next(dict(a.choices) for a in actions if isinstance(a, argparse._SubParsersAction))


def sections() -> dict[str, str]:
    """The sections of docs/cli.md by heading."""
    parts = re.split(r"^## +(.+)$", (ROOT / "docs" / "cli.md").read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def examples() -> Iterator[tuple[str, str]]:
    """Every documented line that begins with `leadscrew`, with the page it stands on."""
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                for part in re.split(r"&&|\||&$", line.partition("#")[0]):
                    words = part.strip().removeprefix(".venv/bin/")
                    if words.startswith("leadscrew "):
                        yield page.name, words


def test_every_command_is_documented_and_no_other() -> None:
    assert set(sections()) == set(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_is_documented_with_an_example(name: str) -> None:
    text = sections()[name]
    missing = [
        option
        for action in commands()[name]._actions
        for option in action.option_strings
        if option.startswith("--") and option not in ("--help", "--json") and option not in text
    ]
    assert missing == []
    assert f"leadscrew {name}" in text


def test_no_option_is_documented_that_does_not_exist() -> None:
    for name, text in sections().items():
        known = {o for action in commands()[name]._actions for o in action.option_strings}
        told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"`git[^`]*`", "", text)))
        assert told - known == set(), name


@pytest.mark.parametrize(("page", "line"), sorted(set(examples())), ids=lambda value: str(value))
def test_every_example_can_be_typed(page: str, line: str) -> None:
    args = build_parser().parse_args(shlex.split(line)[1:])
    assert args.handler or line.endswith("--help"), page


def test_every_key_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)`(?:, `[\w.]+`)* \| ([^|]+) \|", text, re.MULTILINE))
    named = set(re.findall(r"`([a-z_]+(?:\.(?:[a-z_]+|ROLE|NAME))+)`", text))
    for table, cls in TABLES.items():
        for field in dataclasses.fields(cls):
            key = f"{table}.{field.name}"
            assert key in named, key
            default = field.default
            if key in rows and isinstance(default, (bool, int, float, str)) and default != "":
                shown = (
                    f'"{default}"'
                    if isinstance(default, str)
                    else str(default).lower()
                    if isinstance(default, bool)
                    else str(default)
                )
                assert rows[key].strip().strip("`") == shown, key


def test_no_key_is_documented_that_does_not_exist() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    known = {f"{table}.{field.name}" for table, cls in TABLES.items() for field in dataclasses.fields(cls)}
    told = re.findall(r"`([a-z_]+(?:\.(?:[a-z_]+|ROLE|NAME))+)`", text)
    assert [key for key in told if key not in known and not key.endswith((".py", ".toml", ".md"))] == []


def test_the_example_configurations_are_valid(tmp_path: Path) -> None:
    from leadscrew.config import load_config

    found = 0
    for page in PAGES:
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            if "[domain]" not in block:
                block = '[domain]\nname = "docstrings"\n' + block
            (tmp_path / "leadscrew.toml").write_text(block, "utf-8")
            load_config(tmp_path)
            found += 1
    assert found >= 3
