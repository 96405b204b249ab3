"""A model for the role solver brings the programs that ask it; asking for them without one is one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leadscrew import runs, wire
from leadscrew.cli import main
from leadscrew.config import config_from
from leadscrew.domains.classify_jsonl import ClassifyJsonl
from leadscrew.errors import ConfigError
from leadscrew.plugins import load_domain


def task(folder: Path, **options: Any) -> dict[str, Any]:
    """Write labelled texts into `folder` and return a configuration over them."""
    for split in ("train", "val", "test"):
        rows = [{"text": f"{split} {n} {'apple' if n % 2 else 'oak'}", "label": "ab"[n % 2]} for n in range(6)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    domain = {"name": "classify-jsonl", "path": str(folder), "options": options}
    return {"run": {"out": str(folder / "run")}, "domain": domain}


def with_solver(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "models": {"solver": "openai/gpt-5-mini"}}


def test_a_model_brings_the_programs_that_ask_it(tmp_path: Path) -> None:
    asking = load_domain(config_from(with_solver(task(tmp_path))))
    assert list(asking.baselines())[:2] == ["no_memory", "fewshot_all"]
    silent = load_domain(config_from(task(tmp_path)))
    assert "no_memory" not in silent.baselines()


def test_what_the_user_says_counts_more(tmp_path: Path) -> None:
    domain = load_domain(config_from(with_solver(task(tmp_path, solver="none"))))
    assert "no_memory" not in domain.baselines()


def test_domains_without_the_option_are_left_alone(tmp_path: Path) -> None:
    config = config_from({"domain": {"name": "circle-packing"}, "models": {"solver": "openai/gpt-5-mini"}})
    assert load_domain(config).name == "circle-packing"


def test_asking_without_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = task(tmp_path, solver="llm")
    with pytest.raises(ConfigError, match=r"Write \[models.solver\]") as caught:
        runs.run(config)
    assert caught.value.key == "models.solver"
    with pytest.raises(ConfigError, match=r"\[models.solver\]"):
        wire.fit(config_from(task(tmp_path)), ClassifyJsonl(path=str(tmp_path), solver="llm"))
    toml = tmp_path / "leadscrew.toml"
    toml.write_text('[domain]\nname = "classify-jsonl"\npath = "."\noptions = { solver = "llm" }\n')
    assert main(["run", str(toml)]) == 2
    said = capsys.readouterr().err
    assert "[models.solver]" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
