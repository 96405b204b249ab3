"""An endpoint that fails in mid-run: nothing is spent on it, nobody is blamed, and the resumed run ends as if it had not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leadscrew import runs
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError
from leadscrew.testing.upstream import Fault
from support.asked_upstream import Provider, config, to_file


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _mended(provider: Provider) -> Iterator[None]:
    yield
    provider.mend()


def digest(folder: Path) -> str:
    store = SQLiteStore.open(folder, readonly=True)
    try:
        return store.archive_digest()
    finally:
        store.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> dict[bool, str]:
    """The archive digests of runs without an outage, by whether programs are learners."""
    found = {}
    for learner in (False, True):
        folder = tmp_path_factory.mktemp("calm") / "run"
        result = runs.run(config(folder, provider, learner=learner))
        assert (result.champion, result.value, result.stopped) == ("3.0", 1.0, "")
        found[learner] = digest(folder)
    return found


def plans(folder: Path) -> list[int]:
    """Return the numbers of the plans that were judged."""
    store = SQLiteStore.open(folder, readonly=True)
    try:
        assert {plan.number for plan in store.plans()} == {plan for plan, _, _ in store.judgements()}
        return sorted(plan for plan, _, _ in store.judgements())
    finally:
        store.close()


def nobody_blamed(folder: Path) -> None:
    """No trial is void or failed, and no candidate has failed."""
    store = SQLiteStore.open(folder, readonly=True)
    try:
        trials = [t for c in store.candidates() for t in store.trials(c.program)]
        assert {t.outcome for t in trials} <= {Outcome.OK}
        assert all(c.status == "evaluated" for c in store.candidates())
    finally:
        store.close()


def cut_short(folder: Path, table: dict[str, Any]) -> str:
    """Run into the outage and return what is said of it."""
    with pytest.raises(InfrastructureError, match="no candidate is blamed") as caught:
        runs.run(table)
    nobody_blamed(folder)
    return str(caught.value)


FAULTS: dict[Fault, str] = {
    "down": "no connection|the connection broke",
    "error": "500",
    "stall": "no whole reply within",
    "truncated_json": "no whole JSON",
    "reset": "the connection broke",
    "error_in_reply": "error in reply",
}
QUICK = ("down", "stall", "truncated_json", "the smoke test of a candidate", "learning")


def each(names: Iterable[str]) -> list[Any]:
    """The variants as parameters; those that differ little from others are only run with the slow tests."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("fault", each(FAULTS))
def test_every_kind_of_outage_pauses_the_run_and_a_resume_finishes_it(
    tmp_path: Path, provider: Provider, calm: dict[bool, str], fault: Fault
) -> None:
    folder = tmp_path / "run"
    table = config(folder, provider, models__solver__timeout_s=0.5 if fault == "stall" else 20)
    provider.break_at(fault, lambda prompt: "tag 2: times 103" in prompt)
    said = cut_short(folder, table)
    assert re.search(FAULTS[fault], said), said
    provider.mend()
    result = runs.resume(folder)
    assert (result.champion, result.stopped) == ("3.0", "")
    assert plans(folder) == [0, 1, 2, 3], "no iteration was spent on the outage"
    assert digest(folder) == calm[False]


@pytest.mark.slow
def test_where_plans_are_applied_as_they_end(tmp_path: Path, provider: Provider) -> None:
    folder = tmp_path / "run"
    provider.break_at("down", lambda prompt: "tag 1: times 103" in prompt)
    cut_short(folder, config(folder, provider, run__order="completion", run__plans_in_flight=3, run__workers=4))
    provider.mend()
    assert runs.resume(folder).champion == "3.0"
    assert plans(folder) == [0, 1, 2, 3]


def test_by_the_command_line(tmp_path: Path, provider: Provider, calm: dict[bool, str]) -> None:
    file = to_file(tmp_path / "leadscrew.toml", config(tmp_path / "run", provider))
    provider.break_at("down", lambda prompt: "tag 2: times 103" in prompt)

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "leadscrew", *words], capture_output=True, text=True, timeout=120)

    broken = command("run", str(file))
    assert broken.returncode == InfrastructureError.exit_code == 5
    assert "Traceback" not in broken.stderr
    last = broken.stderr.strip().splitlines()[-1]
    assert last.startswith("leadscrew: the run is paused after 3 failures")
    assert provider.server.url in last
    assert last.endswith(". Mend the cause, then resume the run.")
    assert ".." not in last
    again = command("resume", str(tmp_path / "run"))
    assert again.returncode == 5, "it is still down"
    nobody_blamed(tmp_path / "run")
    provider.mend()
    ended = command("resume", str(tmp_path / "run"), "--finalize", "--json")
    assert ended.returncode == 0, ended.stderr
    assert '"champion": "3.0"' in ended.stdout
    assert digest(tmp_path / "run") == calm[False]


def test_a_provider_that_turns_calls_away_for_a_while_needs_no_pause(
    tmp_path: Path, provider: Provider, calm: dict[bool, str]
) -> None:
    table = config(tmp_path / "run", provider, models__solver__retries=8)
    provider.break_at("rate_limit", lambda prompt: "tag 2: times 103" in prompt, times=4)
    assert runs.run(table).stopped == ""
    assert provider.met == 4
    assert digest(tmp_path / "run") == calm[False]


PLACES: dict[str, Callable[[str], bool]] = {
    "the first call of all": lambda prompt: True,
    "the smoke test of a candidate": lambda prompt: prompt.startswith("tag 2:"),
    "learning": lambda prompt: prompt.startswith("tag 2: learn 0 1 2 3 4 5"),
    "trials after learning": lambda prompt: prompt.startswith("tag 2: times 103"),
}


@pytest.mark.parametrize("place", each(PLACES))
def test_wherever_a_learner_meets_it(tmp_path: Path, provider: Provider, calm: dict[bool, str], place: str) -> None:
    folder = tmp_path / "run"
    provider.break_at("error", PLACES[place])
    cut_short(folder, config(folder, provider, learner=True))
    assert provider.met, "the outage was met"
    provider.mend()
    assert runs.resume(folder).champion == "3.0"
    assert digest(folder) == calm[True]


def test_in_the_middle_of_the_final_test(tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # a ledger of openings without those of other tests
    folder = tmp_path / "run"
    runs.run(config(folder, provider))
    provider.break_at("down", lambda prompt: "tag 3: times 203" in prompt)
    with pytest.raises(InfrastructureError, match=r"no connection|connection broke"):
        runs.finalize(folder)
    assert not (folder / "certificate.json").exists()
    provider.mend()
    before = len(provider.prompts)
    certificate = runs.finalize(folder)
    asked = provider.prompts[before:]
    assert certificate["test"]["best"] == 1.0
    assert certificate["openings"] == 1
    assert all("times 20" in prompt for prompt in asked), "nothing of the search is asked again"
    assert 0 < len(asked) < 12, "what the first attempt was told is not asked again"
