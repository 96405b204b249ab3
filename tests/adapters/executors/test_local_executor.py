"""The local executor passes the suite of its port in real boxes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from leadscrew.adapters.executors import LocalExecutor, local
from leadscrew.adapters.sandboxes import choose
from leadscrew.core.task import Interface
from leadscrew.ports import BoxReply, Executor, Item
from leadscrew.testing.executor import GOOD, LEARNER, ExecutorSuite, job, run

_SANDBOX = choose("bubblewrap")
SPIN = "def solve(input):\n    n = 0\n    for i in range(input):\n        n += i\n    return n\n"


class TestLocalExecutor(ExecutorSuite):
    async def make(self, workers: int) -> Executor:
        return LocalExecutor(_SANDBOX, workers)


async def _boxes(executor: LocalExecutor, made: object) -> tuple[int, list[BoxReply]]:
    """Run a job; return how many boxes were open at most, and the replies."""
    most, replies = 0, []
    async for reply in executor.run(made):  # type: ignore[arg-type]
        replies.append(reply)
        most = max(most, len(_SANDBOX._boxes))  # type: ignore[attr-defined]
    return most, replies


async def test_a_large_job_spreads_over_idle_workers_and_a_small_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = LocalExecutor(_SANDBOX, 2, spares=0)
    try:
        monkeypatch.setattr(local, "WORTH_IT", 1e9)  # what is large depends on the machine
        small, _ = await _boxes(executor, job(SPIN, [500_000] * 20))
        monkeypatch.setattr(local, "WORTH_IT", 0.0)
        large, replies = await _boxes(executor, job(SPIN, [500_000] * 60))
    finally:
        await executor.close()
    assert small == 1
    assert large == 2
    assert {r.answer.value for r in replies} == {sum(range(500_000))}


async def test_a_learner_is_taught_once_per_data_set_and_reports_each_train_item_once() -> None:
    executor = LocalExecutor(_SANDBOX, 3, spares=0)
    train = tuple(Item(f"{d}{n}", n, d, d) for d in "ab" for n in range(3))
    try:
        replies = await run(executor, job(LEARNER, [1] * 30, interface=Interface("predict"), train=train))
    finally:
        await executor.close()
    # The trials belong to "main", for which there is nothing to learn.
    assert sorted(r.key for r in replies if r.train) == [i.id for i in train]
    assert {r.answer.value for r in replies if not r.train} == {None}


async def test_load_failures_cost_a_trial_each_and_the_time_they_took() -> None:
    executor = LocalExecutor(_SANDBOX, 1, spares=0)
    try:
        replies = await run(executor, job("1 / 0\n", [1, 2]))
    finally:
        await executor.close()
    assert [r.spend.trials for r in replies] == [1, 1]


async def test_a_box_that_died_while_it_waited_is_not_blamed_on_the_next_program() -> None:
    executor = LocalExecutor(_SANDBOX, 1, spares=1)
    try:
        await run(executor, job(GOOD))
        (waiting,) = executor._pool._waiting.values()
        spare = (await waiting[0]).box
        os.kill(spare.pid, signal.SIGKILL)
        await spare.wait()
        assert await spare.stdout.read() == b""
        assert [r.answer.value for r in await run(executor, job(GOOD))] == [2, 3]
    finally:
        await executor.close()


async def test_folders_of_a_killed_engine_are_removed_and_others_are_not(tmp_path: Path) -> None:
    for name in (f"box-{os.getpid()}-7", "box-999999999-0", "precious"):
        (tmp_path / name / "program").mkdir(parents=True)
    executor = LocalExecutor(_SANDBOX, 1, root=tmp_path)
    assert set(os.listdir(tmp_path)) == {f"box-{os.getpid()}-7", "precious"}
    await run(executor, job(GOOD))
    await executor.close()
    assert set(os.listdir(tmp_path)) == {f"box-{os.getpid()}-7", "precious"}
