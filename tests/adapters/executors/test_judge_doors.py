"""What a scorer leaves running asks on nobody else's account."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from leadscrew.adapters.executors import ProcessScorer
from leadscrew.adapters.executors.judging import Judges
from leadscrew.core.budget import Caps
from leadscrew.core.task import Answer, Instance, Score
from leadscrew.domains.function import FunctionDomain
from leadscrew.ports import JUDGE, Access, BadAnswer, BoxReply
from support.gateway_world import Counting, World, role

ONE, TWO = (Instance(name, "val", name) for name in ("one", "two"))


class Rubrics(FunctionDomain):
    """Asks twelve rubrics at once for a bad answer, and stops at the first that cannot be read."""

    async def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:  # type: ignore[override]
        ask = JUDGE.get()
        assert ask is not None
        if answer.value == "bad":
            room = asyncio.Semaphore(2)

            async def rubric(number: int) -> None:
                async with room:
                    await ask(f"bad: rubric {number}", {})
                if number == 0:
                    raise BadAnswer("rubric 0 cannot be read")

            await asyncio.gather(*(rubric(n) for n in range(12)))
        # Time for what was left behind to ask, if it could.
        await asyncio.sleep(0.2)
        await ask("honest", {})
        return Score(1.0)


async def test_left_over_questions_find_their_door_gone(tmp_path: Path) -> None:
    pair = [{"input": "q", "expected": "a"}]
    scorer = ProcessScorer(Rubrics(lambda answer, judge: 1.0, val=pair, test=pair))
    world = World(tmp_path, {"judge": role(Counting(), "judge")})
    scorer.judges = Judges(world.gateway, Access("judge", allowance=Caps(calls=3)), tmp_path)
    try:
        assert await scorer.score(ONE, Answer("bad"), plan=1, candidate="A") == "rubric 0 cannot be read"
        assert await scorer.score(TWO, Answer("honest"), plan=2, candidate="B") == Score(1.0)
        asked = [c.body["messages"][0]["content"] for _, c, _ in world.store.calls() if c.candidate == "B"]
        assert asked == ["honest"]
    finally:
        await scorer.close()
        await world.close()
