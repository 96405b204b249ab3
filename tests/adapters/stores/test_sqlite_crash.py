"""kill -9 and a full disk: every committed step is there whole, and of the open one nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.proposal import Edit, Judgement
from leadscrew.core.trial import Trace
from leadscrew.errors import InfrastructureError
from leadscrew.ports import StoredPlan
from leadscrew.testing.samples import sample_trial, write_run
from leadscrew.testing.store import RECORD_KINDS

WRITER = """
import sys
from pathlib import Path
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.proposal import Edit, Judgement
from leadscrew.core.trial import Trace
from leadscrew.errors import InfrastructureError
from leadscrew.ports import StoredPlan
from leadscrew.testing.samples import sample_call, sample_candidate, sample_reply, sample_trial

if len(sys.argv) > 2:
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
store = SQLiteStore.open(Path(sys.argv[1]))
number = sum(1 for _ in store.plans())
print("open", flush=True)
try:
    while True:
        call = store.add_call(sample_call(number, plan=number))
        store.commit()
        store.add_reply(call, sample_reply())
        store.add_plan(StoredPlan(number, Edit("genetic"), number))
        store.add_trial(sample_trial(number))
        store.put_trace(Trace(stdout=f"{number} " * (30_000 if number % 5 == 0 else 10)))
        store.add_candidate(sample_candidate(number))
        store.add_judgement(number, Judgement())
        store.commit()
        print(number, flush=True)
        number += 1
except InfrastructureError as error:
    print("refused: " + str(error), flush=True)
    try:
        store.add_event("afterwards", {})
    except InfrastructureError as again:
        print("still refused: " + str(again), flush=True)
"""


def start(folder: Path, *limits: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), *map(str, limits)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check(folder: Path, acknowledged: int) -> int:
    """Open, verify, and hold the stored steps against what was acknowledged; return how many there are."""
    store = SQLiteStore.open(folder)
    try:
        store.verify()
        plans = [p.number for p in store.plans()]
        assert plans == list(range(len(plans)))
        assert len(plans) >= acknowledged, "a committed step was lost"
        assert len(plans) <= acknowledged + 1, "a step is stored that was never finished"
        assert [c.plan for c in store.candidates()] == plans
        assert [plan for plan, _, _ in store.judgements()] == plans
        assert all(store.find_trial(sample_trial(n).key) for n in plans)
        # A call is on disk before it is answered, and its answer is there with the step that rests on it, or not at all.
        asked = [(call.plan, reply is not None) for _, call, reply in store.calls()]
        assert [plan for plan, answered in asked if answered] == plans
        assert all(plan <= len(plans) for plan, _ in asked)
        assert store.spend().calls == len(asked)
        return len(plans)
    finally:
        store.close()


def kill_rounds(folder: Path, rounds: int, seed: int) -> int:
    rng = random.Random(seed)
    SQLiteStore.create(folder, config={}, seed=7).close()
    done = 0
    for _ in range(rounds):
        child = start(folder)
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        # Killed after a number of steps, not of seconds, and then somewhere inside the next ones.
        for _ in range(rng.randrange(1, 12)):
            done = int(child.stdout.readline()) + 1
        for _ in range(rng.randrange(20_000)):
            pass
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split()
        child.wait()
        child.stdout.close()
        done = max([done, *(int(line) + 1 for line in rest)])
        done = check(folder, done)
    return done


def test_a_killed_writer_loses_only_the_open_step(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path, 4, seed=1) > 4


@pytest.mark.slow
def test_a_writer_that_is_killed_many_times_loses_only_open_steps(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path, 60, seed=2) > 60


def test_a_disk_that_refuses_is_our_failure_and_keeps_what_was_committed(tmp_path: Path) -> None:
    SQLiteStore.create(tmp_path, config={}, seed=7).close()
    child = start(tmp_path, 600_000)
    out, _ = child.communicate(timeout=60)
    lines = out.splitlines()
    assert lines[0] == "open"
    steps = [line for line in lines if line.isdigit()]
    assert len(steps) > 3
    assert lines[len(steps) + 1].startswith("refused: ")
    assert "resume" in lines[len(steps) + 1]
    assert check(tmp_path, len(steps)) == len(steps)


def test_a_full_database_refuses_everything_until_it_is_opened_again(tmp_path: Path) -> None:
    store = SQLiteStore.create(tmp_path, config={}, seed=7, record_kinds=RECORD_KINDS)
    write_run(store, plans=1)
    store.commit()
    head = store.chain_head()
    pages = store._db.one("PRAGMA page_count")[0]
    store._db.one(f"PRAGMA max_page_count = {pages}")
    store.add_plan(StoredPlan(1, Edit("genetic"), 1))
    rng = random.Random(3)
    large = Trace(answer=[rng.random() for _ in range(3000)])
    with pytest.raises(InfrastructureError, match="full"):
        store.put_trace(large)
    for write in (
        lambda: store.add_event("more", {}),
        lambda: store.add_judgement(0, Judgement()),
        lambda: store.put_trace(Trace(stdout="x")),
    ):
        with pytest.raises(InfrastructureError, match=r"[Oo]pen the run again"):
            write()
    store.commit()
    store.close()
    store = SQLiteStore.open(tmp_path)
    assert store.chain_head() == head
    assert [p.number for p in store.plans()] == [0]
    store.verify()
    store.add_plan(StoredPlan(1, Edit("genetic"), 1))
    store.commit()
    store.verify()
    store.close()


def test_a_run_that_was_being_created_leaves_nothing_half_made(tmp_path: Path) -> None:
    (tmp_path / ".run.db.new").write_bytes(b"half a database")
    (tmp_path / ".run.db.new-wal").write_bytes(b"half a log")
    with SQLiteStore.create(tmp_path, config={"a": [1, {"b": None}]}, seed=2**70) as store:
        assert store.seed == 2**70
        assert store.config == {"a": [1, {"b": None}]}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inbox", "lock", "run.db", "traces"]
    assert json.dumps(SQLiteStore.open(tmp_path, readonly=True).config) == '{"a": [1, {"b": null}]}'
