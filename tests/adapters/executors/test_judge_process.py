"""The judge at the scorer's process: waiting is not working, many at once, hung and dying scorers, long paths."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from leadscrew.adapters.executors import ProcessScorer
from leadscrew.adapters.executors.judging import MAX_JUDGING, Judges
from leadscrew.adapters.executors.scorer import NOT_FINISHED
from leadscrew.core.task import Answer, Instance, Score
from leadscrew.domains.function import FunctionDomain
from leadscrew.ports import Access
from support.gateway_world import Counting, World, last_text, role

ONE = Instance("one", "val", "question", None)


@asynccontextmanager
async def judged(
    folder: Path, score: Any, model: Counting, wall_s: float = 20.0
) -> AsyncIterator[tuple[ProcessScorer, World]]:
    """A scorer whose judge is `model`, behind a real gateway."""
    scorer = ProcessScorer(FunctionDomain(score), wall_s=wall_s)
    world = World(folder, {"judge": role(model, "judge")})
    place = folder / ("long" * 30)
    place.mkdir()
    scorer.judges = Judges(world.gateway, Access("judge"), place)
    try:
        yield scorer, world
    finally:
        await world.gateway.close()
        await scorer.close()
        world.kill()


def good(request: Mapping[str, Any]) -> str:
    return "GOOD" if last_text(request).startswith("good") else "POOR"


def ask(answer: Any, judge: Any) -> bool:
    return bool(judge(answer) == "GOOD")


async def test_waiting_for_the_judge_is_not_the_scorers_time(tmp_path: Path) -> None:
    model = Counting(good, hold=asyncio.Event())
    async with judged(tmp_path, ask, model, wall_s=1.0) as (scorer, _):
        scoring = asyncio.create_task(scorer.score(ONE, Answer("good one")))
        await model.together(1)
        await asyncio.sleep(2.5)
        assert model.hold is not None
        model.hold.set()
        said = await scoring
    assert isinstance(said, Score)
    assert said.value == 1.0
    assert len(model.asked) == 1


async def test_many_are_judged_at_once_each_on_the_account_of_its_plan(tmp_path: Path) -> None:
    model = Counting(good, hold=asyncio.Event())
    async with judged(tmp_path, ask, model) as (scorer, world):
        answers = [Answer(f"{'good' if n % 2 else 'poor'} {n}") for n in range(MAX_JUDGING + 8)]
        scoring = [asyncio.create_task(scorer.score(ONE, a, plan=n % 2, candidate="c")) for n, a in enumerate(answers)]
        await model.together(MAX_JUDGING)
        assert model.hold is not None
        model.hold.set()
        said = await asyncio.gather(*scoring)
        assert [s.value for s in said if isinstance(s, Score)] == [float(n % 2) for n in range(len(answers))]
        assert model.most == MAX_JUDGING
        calls = [call for _, call, _ in world.store.calls()]
        assert {(c.role, c.plan, c.candidate, c.instance) for c in calls} == {
            ("judge", 0, "c", "val:one"),
            ("judge", 1, "c", "val:one"),
        }


async def test_a_scorer_that_never_ends_harms_no_other_answer(tmp_path: Path) -> None:
    def score(answer: Any, judge: Any) -> bool:
        said = judge(answer)
        if answer == "hang":
            time.sleep(600)
        return bool(said == "GOOD")

    model = Counting(good)
    async with judged(tmp_path, score, model, wall_s=1.0) as (scorer, _):
        assert await scorer.score(ONE, Answer("hang")) == NOT_FINISHED
        said = await scorer.score(ONE, Answer("good"))
        assert isinstance(said, Score)
        assert said.value == 1.0
    assert len(model.asked) == 2


async def test_a_scorer_that_dies_asks_no_second_time(tmp_path: Path) -> None:
    marker = tmp_path / "died"

    def score(answer: Any, judge: Any) -> bool:
        said = judge(answer)
        if not marker.exists():
            marker.touch()
            os._exit(1)
        return bool(said == "GOOD")

    model = Counting(good)
    async with judged(tmp_path, score, model) as (scorer, _):
        said = await scorer.score(ONE, Answer("good"))
    assert isinstance(said, Score)
    assert said.value == 1.0
    assert len(model.asked) == 1
