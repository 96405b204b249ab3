"""The configuration: what is read is what was written, and every fault is one clear message."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.config import (
    build_settings,
    changed,
    check_paths,
    config_from,
    dump_toml,
    load_config,
    to_dict,
    to_toml,
)
from leadscrew.core.task import Limits
from leadscrew.errors import ConfigError

BROKEN: list[tuple[str, list[str]]] = [
    ("[run]\nsede = 7\n", ["run.sede", "7", "run.seed"]),
    ('[run]\nseed = "seven"\n', ["run.seed", "'seven'", "whole number"]),
    ("[run]\nseed = -1\n", ["run.seed", "-1", "at least 0"]),
    ("[run]\nplans_in_flight = 0\n", ["run.plans_in_flight", "0", "between 1 and 1024"]),
    ("[run]\napprove = 1\n", ["run.approve", "1", "true or false"]),
    ('[run]\norder = "plna"\n', ["run.order", "'plna'", "'plan', 'completion'", "Did you mean plan?"]),
    ('[sandbox]\nname = "podman"\n', ["sandbox.name", "'podman'", "'bubblewrap'"]),
    ("[evaluation]\nladder = [60, 20]\n", ["evaluation.ladder", "[60, 20]", "more instances"]),
    ("[evaluation]\nladder = 60\n", ["evaluation.ladder", "60", "list"]),
    ("[evaluation]\nladder = [0]\n", ["evaluation.ladder[0]", "at least 1"]),
    ("[evalution]\nrepeats = 2\n", ["evalution", "no such section", "evaluation"]),
    ("[budget]\niterations = 9\n", ["budget.iterations", "9", "harness.iterations"]),
    ("[budget]\nseconds = nan\n", ["budget.seconds", "nan"]),
    ("[limits]\nmemory = 9\n", ["limits.memory", "9", "limits.memory_mb"]),
    ("[limits]\ncpu_s = 0\n", ["limits.cpu_s", "more than 0"]),
    ('[program]\nregion = "src"\n', ["program.region", "'src'", "[program.region]"]),
    ("[program.region]\ninclude = [3]\n", ["program.region.include[0]", "3", "text"]),
]
DOMAIN = '[domain]\nname = "docstrings"\n'


@pytest.mark.parametrize(("text", "words"), BROKEN, ids=[b[0].replace("\n", " ") for b in BROKEN])
def test_a_broken_file_gives_one_clear_message(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "c.toml"
    file.write_text(DOMAIN + text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert caught.value.key


def test_a_missing_domain_a_missing_file_and_bad_toml(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[run\n", "utf-8")
    (tmp_path / "empty.toml").write_text("", "utf-8")
    with pytest.raises(ConfigError, match="no valid TOML"):
        load_config(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match=r"domain\.name is missing"):
        load_config(tmp_path / "empty.toml")
    with pytest.raises(ConfigError, match=r"Did you mean empty\.toml"):
        load_config(tmp_path / "emty.toml")
    with pytest.raises(ConfigError, match=r"holds no leadscrew\.toml"):
        load_config(tmp_path)


def test_defaults_paths_and_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "mytask"
    folder.mkdir()
    (folder / "leadscrew.toml").write_text(
        '[domain]\nname = "mine.py:Mine"\npath = "data"\n[program]\npath = "program"\n[harness]\niterations = 3\n',
        "utf-8",
    )
    config = load_config(folder)
    assert config.name == "mytask"
    assert config.out == folder / "runs" / "mytask"
    assert config.domain.name == f"{folder}/mine.py:Mine"
    assert config.domain.path == str(folder / "data")
    assert config.program.path == str(folder / "program")
    assert config.method_options == {"iterations": 3}
    assert config.proposer.name == "genetic"
    assert config.caps.trials is None
    with pytest.raises(ConfigError, match=r"program\.path"):
        check_paths(config)
    (folder / "program").mkdir()
    (folder / "data").mkdir()
    (folder / "mine.py").touch()
    with pytest.raises(ConfigError, match="holds no file"):
        check_paths(config)


def test_the_stored_copy_reads_back_the_same_anywhere(tmp_path: Path) -> None:
    config = config_from(
        {
            "domain": {
                "name": "folder",
                "path": "d",
                "options": {"scorer": "score.py", "deep": {"a": [1, {"b": 2.5}]}},
            },
            "run": {"out": "o", "seed": 3},
            "budget": {"trials": 10, "seconds": 2},
            "limits": {"cpu_s": 1},
            "harness": {"iterations": 2},
        },
        tmp_path,
        name="c",
    )
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "c.toml"
    copy.write_text(to_toml(config), "utf-8")
    assert load_config(copy) == config
    assert config.limits_over(Limits()).cpu_s == 1.0
    assert config.limits_over(Limits()).memory_mb == Limits().memory_mb


def test_changed_reads_values_as_toml_and_checks_them() -> None:
    config = config_from({"domain": {"name": "docstrings"}})
    other = changed(
        config, {"run.seed": "5", "harness.iterations": 4, "evaluation.ladder": "[2, 4]", "sandbox.name": "none"}
    )
    assert (other.run.seed, other.evaluation.ladder, other.sandbox.name) == (5, (2, 4), "none")
    assert other.method_options == {"iterations": 4}
    assert to_dict(config)["run"]["seed"] == 0
    with pytest.raises(ConfigError, match=r"run\.seed"):
        changed(config, {"run.seed": "five"})
    with pytest.raises(ConfigError, match="is a value"):
        changed(config, {"run.seed.deep": "1"})


@dataclass(frozen=True)
class _Settings:
    count: int = field(metadata={"min": 1})
    mode: Literal["a", "b"] = "a"
    share: float | None = None
    mixed: int | str = 0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.count == 13:
            raise ValueError("13 is unlucky; write 12 or 14.")


def test_a_methods_settings_are_held_to_the_same_rules() -> None:
    built = build_settings(_Settings, {"count": 2, "share": 1, "mixed": "x", "names": ["n"]}, "harness")
    assert built == _Settings(2, "a", 1.0, "x", ("n",))
    for table, words in [
        ({}, "harness.count is missing"),
        ({"count": 0}, "at least 1"),
        ({"count": 1, "modes": "a"}, "Did you mean harness.mode?"),
        ({"count": 1, "mode": "c"}, "'a', 'b'"),
        ({"count": True}, "whole number"),
        ({"count": 13}, "unlucky"),
    ]:
        with pytest.raises(ConfigError, match=r"harness") as caught:
            build_settings(_Settings, table, "harness")
        assert words in str(caught.value)


_scalars = (
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
)
_keys = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
_tables: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    _keys, st.recursive(_scalars, lambda c: st.lists(c, max_size=3) | st.dictionaries(_keys, c, max_size=3)), max_size=4
)


@given(_tables)
def test_written_toml_reads_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(table)) == table


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"sovler": "local/smollm2"}, "Did you mean solver"),
        ({"solver": {"model": "openai/x", "extra": {"messages": []}}}, "the caller's"),
        ({"solver": {"model": "openai/x", "extra": {"max_tokens": 5}}}, "max_tokens of the role"),
        ({"solver": {"model": "openai/x", "input_price": 1.0}}, "both input_price and output_price"),
        ({"solver": "smollm2"}, "provider/name"),
    ],
)
def test_models_that_cannot_be_meant(models: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_from({"domain": {"name": "docstrings"}, "models": models})


def test_roles_of_a_methods_own_and_pinned_fields() -> None:
    made = config_from(
        {"domain": {"name": "docstrings"}, "models": {"diagnose": {"model": "openai/x", "extra": {"top_p": 0.9}}}}
    )
    assert made.models["diagnose"].extra == {"top_p": 0.9}
