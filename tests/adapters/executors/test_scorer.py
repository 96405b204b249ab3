"""The scorer's process: faults of scorers, restarts, sealed splits, and what it must not hold."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.executors import ProcessScorer
from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Instance, Interface, Limits, Score, Split
from leadscrew.errors import InfrastructureError
from leadscrew.ports import BadAnswer, BoxReply, Domain, Grading, Scorer

ONE = Instance("one", "val", 1, 1)


class Corridor:
    """Walk right three times."""

    def __init__(self) -> None:
        self.place = 0

    def reset(self) -> Any:
        return self.place

    def step(self, action: Any) -> tuple[Any, bool]:
        if action not in (-1, 1):
            raise BadAnswer("go -1 or 1")
        self.place += action
        return self.place, self.place >= 3

    def result(self) -> Any:
        return self.place


class Odd(Domain):
    """A domain whose scorer does what the answer says."""

    name = "odd"

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def instances(self, split: Split) -> Sequence[Instance]:
        self.loaded.append(split)
        return [Instance(f"{split}-1", split, 1, "gold")]

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        match answer.value:
            case "bad":
                raise BadAnswer("no such word")
            case "error":
                raise KeyError("the scorer's own fault")
            case "exit":
                sys.exit(3)
            case "die":
                os._exit(3)
            case "hang":
                time.sleep(600)
            case "nan":
                return Score(float("nan"))
            case "bare":
                return 1.0  # type: ignore[return-value]
            case "print":
                print("scored", flush=True)
        return Score(1.0 if answer.value == instance.expected else 0.0, detail={"graded": len(graded)})

    def grade(self, instance: Instance, answer: Answer) -> Grading | None:
        if answer.value != "code":
            return None
        return Grading(Program.of({"main.py": "x"}), (1, 2), Interface("solve"), Limits())

    def host(self, instance: Instance) -> Corridor:
        return Corridor()

    def facts(self) -> dict[str, Any]:
        links = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/self/fd/{name}"))
        return {"pid": os.getpid(), "ppid": os.getppid(), "links": links, "loaded": self.loaded}

    def fail(self) -> None:
        raise ValueError("called and failed")


class Slow(Odd):
    """The same with an asynchronous scorer."""

    async def score(  # type: ignore[override]
        self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()
    ) -> Score:
        if answer.value == "hang":
            await asyncio.sleep(600)
        await asyncio.sleep(0.001)
        return super().score(instance, answer, graded)


@contextlib.asynccontextmanager
async def scorer_of(domain: Domain, wall_s: float = 20.0) -> AsyncIterator[ProcessScorer]:
    scorer = ProcessScorer(domain, wall_s=wall_s)
    try:
        yield scorer
    finally:
        await scorer.close()


async def outcome(scorer: ProcessScorer, value: Any) -> Score | str:
    try:
        return await scorer.score(ONE, Answer(value))
    except InfrastructureError as error:
        return f"infra: {error}"


@pytest.mark.parametrize("kind", [Odd, Slow])
async def test_scores_bad_answers_and_faults_are_told_apart(kind: type[Odd]) -> None:
    async with scorer_of(kind()) as scorer:
        assert isinstance(scorer, Scorer)
        good = await scorer.score(ONE, Answer(1), (BoxReply("a", "ok"),))  # type: ignore[arg-type]
        assert good == Score(1.0, detail={"graded": 1})
        assert await outcome(scorer, 0) == Score(0.0, detail={"graded": 0})
        assert await outcome(scorer, "bad") == "no such word"
        for value, text in (
            ("error", "the scorer's own fault"),
            ("nan", "finite number"),
            ("bare", "must return a Score"),
        ):
            said = await outcome(scorer, value)
            assert isinstance(said, str)
            assert said.startswith("infra:")
            assert text in said


@pytest.mark.parametrize("kind", [Odd, Slow])
async def test_a_hanging_scorer_is_replaced_and_its_answer_judged_bad(kind: type[Odd]) -> None:
    async with scorer_of(kind(), wall_s=0.4) as scorer:
        values = [1, "hang", 1, "bad", 1]
        found = await asyncio.gather(*(outcome(scorer, value) for value in values))
    right = Score(1.0, detail={"graded": 0})
    assert found == [right, "the scorer did not finish on it", right, "no such word", right]


@pytest.mark.parametrize("way", ["die", "exit"])
async def test_a_scorer_that_dies_is_replaced_and_only_its_answer_suffers(way: str) -> None:
    async with scorer_of(Odd()) as scorer:
        found = await asyncio.gather(*(outcome(scorer, value) for value in [1, way, 1]))
        assert found[0] == found[2] == Score(1.0, detail={"graded": 0})
        assert str(found[1]).startswith("infra:")


async def test_thousands_of_scores_keep_their_order() -> None:
    async with scorer_of(Odd()) as scorer:
        found = await asyncio.gather(*(scorer.score(ONE, Answer(n % 2)) for n in range(3000)))
    assert [s.value for s in found if isinstance(s, Score)] == [float(n % 2) for n in range(3000)]


async def test_closures_and_local_classes_work_without_pickling() -> None:
    secret = {"word": lambda: "sesame"}

    class Local(Odd):
        def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
            return Score(float(answer.value == secret["word"]()))

    async with scorer_of(Local()) as scorer:
        assert await outcome(scorer, "sesame") == Score(1.0)


async def test_sealed_splits_are_loaded_there_only_and_a_restart_forgets_them() -> None:
    domain = Odd()
    async with scorer_of(domain) as scorer:
        assert (await scorer.call("instances", "test"))[0].expected == "gold"
        assert (await scorer.call("facts"))["loaded"] == ["test"]
        assert domain.loaded == []
        await scorer.restart()
        assert (await scorer.call("facts"))["loaded"] == []
        with pytest.raises(InfrastructureError, match="called and failed"):
            await scorer.call("fail")
        with pytest.raises(InfrastructureError, match="no_such_method"):
            await scorer.call("no_such_method")


async def test_grading_and_sessions_of_environments() -> None:
    async with scorer_of(Odd()) as scorer:
        assert await scorer.grading(ONE, Answer("x")) is None
        grading = await scorer.grading(ONE, Answer("code"))
        assert grading is not None
        assert grading.inputs == (1, 2)
        assert await scorer.step(ONE, "a", None, True) == (0, False)
        assert await scorer.step(ONE, "b", None, True) == (0, False)
        assert [await scorer.step(ONE, "a", 1, False) for _ in range(3)] == [(1, False), (2, False), (3, True)]
        assert await scorer.step(ONE, "b", "north", False) == (None, True)
        assert [await scorer.result("a"), await scorer.result("b")] == [3, 0]
        assert await scorer.result("a") is None, "it ended already"
        assert await scorer.result("never begun") is None
        await scorer.step(ONE, "c", None, True)
        await scorer.restart()
        with pytest.raises(InfrastructureError):
            await scorer.result("c")


async def test_it_holds_no_lock_or_store_and_keeps_off_our_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with _locked(tmp_path / "lock"):
        async with scorer_of(Odd()) as scorer:
            facts = await scorer.call("facts")
            await outcome(scorer, "print")
        assert str(tmp_path / "lock") not in facts["links"]
    assert capfd.readouterr().out == ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def test_after_close_nothing_is_left_and_requests_fail_clearly() -> None:
    scorer = ProcessScorer(Odd())
    pid = (await scorer.call("facts"))["pid"]
    hanging = asyncio.ensure_future(outcome(scorer, "hang"))
    await asyncio.sleep(0.05)
    await scorer.close()
    assert "closed" in str(await hanging)
    assert await outcome(scorer, 1) == "infra: the scorer was closed; make a new ProcessScorer."
    await _gone(pid)


ENGINE = """
import asyncio, os, sys, time
from leadscrew.adapters.executors import ProcessScorer
from leadscrew.core.task import Answer, Instance, Score
from leadscrew.ports import Domain

class D(Domain):
    def instances(self, split):
        return []
    def score(self, instance, answer, graded=()):
        if answer.value:
            return Score(float(os.getpid()))
        while True:
            time.sleep(1)

async def main():
    scorer = ProcessScorer(D())
    print(int((await scorer.score(Instance("a", "val", 1), Answer(1))).value), scorer._mother, flush=True)
    await scorer.score(Instance("a", "val", 1), Answer(0))

asyncio.run(main())
"""


async def test_it_dies_with_the_engine_even_when_that_is_killed_and_a_score_hangs() -> None:
    for pid in _killed_engine():
        await _gone(pid)


def _killed_engine() -> list[int]:
    engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    pids = [int(word) for word in engine.stdout.readline().split()]
    assert len(pids) == 2
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    return pids


async def _gone(pid: int) -> None:
    for _ in range(1000):
        if not _runs(pid):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"process {pid} is still there")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
