"""Caps on model calls met in mid-run: nothing goes above, the message says how to raise them, and raising them loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leadscrew import runs
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Caps, Spend
from leadscrew.core.trial import Outcome
from leadscrew.engine.meter import FINAL_PLAN
from leadscrew.errors import BudgetReached, ConfigError
from support.asked_upstream import Provider, config, to_file

PRICED = {"models__solver__input_price": 1000.0, "models__solver__output_price": 2000.0}
"""Dollars per million tokens: seven tokens of a call cost about a cent."""
RAISED = Caps(calls=1000, tokens=1_000_000, usd=100.0)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> str:
    """The archive digest of the run without caps."""
    folder = tmp_path_factory.mktemp("calm") / "run"
    runs.run(config(folder, provider))
    return facts(folder)[0]


def facts(folder: Path) -> tuple[str, Spend, Spend]:
    """Return the archive digest, what the search spent, and what the model calls of the final test cost."""
    store = SQLiteStore.open(folder, readonly=True)
    try:
        final = Spend()
        for (_, plan), spent in store.call_spend().items():
            final = final + spent if plan == FINAL_PLAN else final
        return store.archive_digest(), store.spend(), final
    finally:
        store.close()


def used(spend: Spend, resource: str) -> float:
    if resource == "usd":
        assert spend.micro_usd is not None
        return spend.micro_usd / 1e6
    return spend.calls if resource == "calls" else spend.tokens_in + spend.tokens_out


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    ("key", "resource", "cap", "role"),
    [
        ("budget__calls", "calls", 10, ""),
        ("budget__tokens", "tokens", 480, ""),
        pytest.param("budget__usd", "usd", 0.5, "", marks=pytest.mark.slow),
        ("models__solver__budget__tokens", "tokens", 480, "solver"),
        pytest.param("models__solver__budget__calls", "calls", 10, "solver", marks=pytest.mark.slow),
    ],
)
def test_a_cap_of_the_search(
    tmp_path: Path, provider: Provider, calm: str, key: str, resource: str, cap: float, role: str, workers: int
) -> None:
    folder = tmp_path / "run"
    more: dict[str, Any] = {key: cap, "run__workers": workers, **(PRICED if resource == "usd" else {})}
    result = runs.run(config(folder, provider, **more))
    assert f"the cap of {resource} is reached" in result.stopped
    assert f"--{resource} N" in result.stopped
    assert "--role" in result.stopped
    _, spend, _ = facts(folder)
    assert 0 < used(spend, resource) <= cap
    provider_saw = len(provider.prompts)
    still = runs.resume(folder)
    assert "is reached" in still.stopped, "a resume alone raises nothing"
    assert used(facts(folder)[1], resource) <= cap
    ended = runs.resume(folder, caps=Caps(**{resource: getattr(RAISED, resource)}), role=role)
    assert (ended.champion, ended.stopped) == ("3.0", "")
    digest, spend, _ = facts(folder)
    assert spend.calls == 24, "nothing was paid twice"
    assert len(provider.prompts) > provider_saw
    assert digest == calm


def test_by_the_command_line(tmp_path: Path, provider: Provider, calm: str) -> None:
    folder = tmp_path / "run"
    file = to_file(tmp_path / "leadscrew.toml", config(folder, provider, models__solver__budget__tokens=480))

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "leadscrew", *words], capture_output=True, text=True, timeout=120)

    estimate = command("run", str(file), "--estimate", "--json")
    solver = json.loads(estimate.stdout)["models"]["solver"]
    assert (solver["model"], solver["caps"], solver["calls"]) == ("mine/small", {"tokens": 480}, 24)
    assert solver["tokens_least"] > 0
    assert not folder.exists()
    stopped = command("run", str(file))
    assert (stopped.returncode, "Traceback" in stopped.stderr) == (BudgetReached.exit_code, False)
    assert "--tokens N" in stopped.stdout
    wrong = command("resume", str(folder), "--tokens", "100000", "--role", "judge")
    assert (wrong.returncode, "no model for that role" in wrong.stderr) == (ConfigError.exit_code, True)
    ended = command("resume", str(folder), "--tokens", "100000", "--role", "solver")
    assert ended.returncode == 0, ended.stderr
    assert facts(folder)[0] == calm


def test_a_cap_of_the_final_test(tmp_path: Path, provider: Provider) -> None:
    folder = tmp_path / "run"
    runs.run(config(folder, provider, budget__final__calls=4))
    before = facts(folder)[1]
    with pytest.raises(BudgetReached, match="finalize RUN --calls N"):
        runs.finalize(folder)
    _, spend, final = facts(folder)
    assert 0 < final.calls <= 4
    assert spend.calls - before.calls == final.calls
    certificate = runs.finalize(folder, caps=Caps(calls=100))
    assert certificate["test"]["best"] == 1.0
    assert facts(folder)[2].calls == certificate["paid"]["solver"]["final"]["calls"]


def test_dollars_need_a_price(tmp_path: Path, provider: Provider) -> None:
    folder = tmp_path / "run"
    table = config(folder, provider, budget__usd=1.0, providers__mine__base_url="https://models.example.org/v1")
    with pytest.raises(ConfigError, match=r"models.solver.input_price"):
        runs.run(table)
    assert not folder.exists()


TWICE = """\
from leadscrew_guest import llm

TAG = 0


def solve(input):
    if TAG == 2:
        llm("tag 0: ask 1?")
    return int(llm(f"tag {TAG}: times {input}?"))
"""


def test_more_than_the_allowance_of_a_trial_is_the_programs_failure(tmp_path: Path, provider: Provider) -> None:
    folder = tmp_path / "run"
    table = config(folder, provider, domain__options={"source": TWICE}, models__solver__calls_per_trial=1)
    result = runs.run(table)
    assert (result.champion, result.stopped) == ("3.0", "")
    store = SQLiteStore.open(folder, readonly=True)
    try:
        outcomes = {c.id: {t.outcome for t in store.trials(c.program)} for c in store.candidates()}
    finally:
        store.close()
    assert outcomes == {"0.0": {Outcome.OK}, "1.0": {Outcome.OK}, "2.0": {Outcome.TIMEOUT}, "3.0": {Outcome.OK}}
