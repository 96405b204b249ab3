"""A recorded run replayed without its upstream, and a killed one resumed: no recorded call is ever asked again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from leadscrew import runs
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.errors import ConfigError, InfrastructureError
from support.asked_upstream import Provider, config, to_file
from support.asking_task import SEED


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


def digest(folder: Path) -> str:
    store = SQLiteStore.open(folder, readonly=True)
    try:
        return store.archive_digest()
    finally:
        store.close()


@pytest.mark.parametrize("learner", [False, True])
def test_a_recorded_run_replays_without_its_upstream(tmp_path: Path, provider: Provider, learner: bool) -> None:
    recorded = tmp_path / "recorded"
    runs.run(config(recorded, provider, learner=learner))
    first = runs.finalize(recorded)
    provider.stop()
    asked = provider.server.requests
    again = tmp_path / "again"
    result = runs.run(config(again, provider, learner=learner, run__replay=str(recorded)))
    assert (result.champion, result.stopped) == ("3.0", "")
    assert digest(again) == digest(recorded)
    second = runs.finalize(again)
    assert second["test"] == first["test"]
    assert second["spend"]["calls"] == 0, "nobody paid"
    assert provider.server.requests == asked


def test_a_changed_prompt_is_told_at_once(tmp_path: Path, provider: Provider) -> None:
    recorded = tmp_path / "recorded"
    runs.run(config(recorded, provider))
    asked = provider.server.requests
    changed = {"source": SEED.replace("times {input}", "ask {input}")}
    table = config(tmp_path / "again", provider, run__replay=str(recorded), domain__options=changed)
    file = to_file(tmp_path / "leadscrew.toml", table)
    done = subprocess.run(
        [sys.executable, "-m", "leadscrew", "run", str(file)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == InfrastructureError.exit_code
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("leadscrew: replay: the recorded run did not make this call")
    assert "role solver, plan 0" in last
    assert "instance val:val-" in last
    assert "recorded '" in last
    assert "times 10" in last
    assert "ask 10" in last
    store = SQLiteStore.open(tmp_path / "again", readonly=True)
    try:
        assert len(list(store.events("infra"))) == 1, "the plan was not tried again"
    finally:
        store.close()
    assert provider.server.requests == asked


def test_a_changed_prompt_of_one_candidate(tmp_path: Path, provider: Provider) -> None:
    """What is recorded up to the change is replayed; the first call beyond it ends the run."""
    recorded, again = tmp_path / "recorded", tmp_path / "again"
    runs.run(config(recorded, provider, harness__iterations=1))
    with pytest.raises(InfrastructureError, match="replay: the recorded run did not make this call"):
        runs.run(config(again, provider, run__replay=str(recorded)))
    store = SQLiteStore.open(again, readonly=True)
    try:
        assert {"0.0"} <= {c.id for c in store.candidates()} <= {"0.0", "1.0"}
    finally:
        store.close()


def test_a_run_to_replay_must_be_there(tmp_path: Path, provider: Provider) -> None:
    with pytest.raises(ConfigError, match=r"run\.replay = .* is no run folder"):
        runs.run(config(tmp_path / "run", provider, run__replay=str(tmp_path / "nowhere")))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("learner", "prompt"),
    [(False, "tag 2: times 103"), (True, "tag 2: learn 0 1 2 3 4 5"), (False, "tag 3: times 203")],
)
def test_a_killed_run_asks_no_recorded_call_again(
    tmp_path: Path, provider: Provider, learner: bool, prompt: str
) -> None:
    folder = tmp_path / "run"
    file = to_file(tmp_path / "leadscrew.toml", config(folder, provider, learner=learner))
    started: list[int] = []
    killed = subprocess.Popen(
        [sys.executable, "-m", "leadscrew", "run", str(file), "--finalize"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started.append(killed.pid)

    def kill(asked: str) -> bool:
        if prompt in asked:
            os.kill(started[0], signal.SIGKILL)
            return True
        return False

    provider.break_at("reset", kill, times=1)
    assert killed.wait(120) == -signal.SIGKILL
    provider.mend()
    store = SQLiteStore.open(folder, readonly=True)
    try:
        known = [
            call.body["messages"][-1]["content"] for _, call, reply in store.calls() if reply and reply.status == "ok"
        ]
    finally:
        store.close()
    assert known
    before = len(provider.prompts)
    done = subprocess.run(
        [sys.executable, "-m", "leadscrew", "resume", str(folder), "--finalize"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    again = provider.prompts[before:]
    assert any(prompt in asked for asked in again)
    assert not set(known) & set(again)
    # The smoke test of a learner asks some questions too, and shares no reply with a trial.
    assert learner or set(Counter(again).values()) == {1}
