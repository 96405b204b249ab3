"""Caps that are given to `resume` and `finalize`: nothing is written down that could not be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadscrew import runs
from leadscrew.core.budget import Caps
from leadscrew.domains.function import FunctionDomain
from leadscrew.errors import ConfigError

PROGRAM = "def solve(input):\n    return input\n"


def domain() -> FunctionDomain:
    pairs = [{"input": f"{i}", "expected": f"{i}"} for i in range(4)]
    return FunctionDomain(lambda answer, expected: float(answer == expected), val=pairs[:2], test=pairs[2:])


def begun(folder: Path, models: dict[str, str] | None = None) -> Path:
    program = folder / "program"
    program.mkdir(parents=True)
    (program / "main.py").write_text(PROGRAM)
    table = {
        "run": {"out": str(folder / "run")},
        "domain": {"name": "function"},
        "program": {"path": str(program)},
        "harness": {"iterations": 1, "candidates": 1},
        "budget": {"trials": 2},
        **({"models": models, "providers": {"mine": {"base_url": "http://127.0.0.1:9/v1"}}} if models else {}),
    }
    runs.run(table, domain=domain())
    return folder / "run"


def test_a_cap_on_calls_without_a_model_is_refused_and_forgotten(tmp_path: Path) -> None:
    run = begun(tmp_path)
    with pytest.raises(ConfigError, match="no model is configured"):
        runs.resume(run, caps=Caps(tokens=1000), domain=domain())
    runs.resume(run, caps=Caps(trials=100), domain=domain())
    with pytest.raises(ConfigError, match="no model is configured"):
        runs.finalize(run, caps=Caps(calls=1), domain=domain())
    assert runs.finalize(run, domain=domain())["test"]["best"] == 1.0


@pytest.mark.parametrize("role", ["", "solver"])
def test_a_cap_in_money_without_a_price_is_refused_and_forgotten(
    tmp_path: Path, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leadscrew import roles

    # A server on this machine is free; one whose price nobody knows stands elsewhere.
    monkeypatch.setattr(roles, "price", lambda config, role: None)
    run = begun(tmp_path, {"solver": "mine/unheard-of"})
    with pytest.raises(ConfigError, match="price of 'mine/unheard-of'"):
        runs.resume(run, caps=Caps(usd=5.0), role=role, domain=domain())
    with pytest.raises(ConfigError, match="price of 'mine/unheard-of'"):
        runs.finalize(run, caps=Caps(usd=5.0), domain=domain())
    runs.resume(run, caps=Caps(trials=100), domain=domain())
    assert runs.finalize(run, domain=domain())["test"]["best"] == 1.0


def test_a_role_that_the_run_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model for that role"):
        runs.resume(begun(tmp_path), caps=Caps(tokens=9), role="solver", domain=domain())
