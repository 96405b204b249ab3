"""Replay: a recorded run answers every call, free; a call that it did not make is a loud failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.models.replay import ReplayMiss
from leadscrew.core.budget import Caps, Spend
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Visited
from support.gateway_world import Counting, World, chat, post, role, visit

Make = Callable[..., World]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Return a maker of worlds, each in a folder of its own."""
    async with AsyncExitStack() as stack:

        def one(folder: str, model: Counting, **more: Any) -> World:
            (tmp_path / folder).mkdir()
            world = World(tmp_path / folder, {"solver": role(model)}, **more)
            stack.push_async_callback(world.close)
            return world

        yield one


async def ask(world: World, texts: list[str], scope: str = "trial-1", **more: Any) -> tuple[list[int], Visited]:
    """Make calls in one visit at a new door."""
    door = await world.gateway.door(world.folder / "d.sock")
    door.enter(visit(scope, **more))
    statuses = [(await post(door.path, chat(text))).status for text in texts]
    visited = await door.leave()
    await door.close()
    return statuses, visited


async def test_a_replayed_run_sees_the_same_and_pays_nothing(make: Make) -> None:
    model = Counting(answer=lambda request: f"reply {len(model.asked)}")
    first = make("a", model)
    _, one = await ask(first, ["x", "x", "y"], allowance=Caps(calls=3))
    _, shared = await ask(first, ["y"], "trial-2")
    silent = Counting()
    again = make("b", silent, replay=first.folder)
    statuses, two = await ask(again, ["x", "x", "y"], allowance=Caps(calls=3))
    assert statuses == [200] * 3
    assert two == one
    assert (await ask(again, ["y"], "trial-2"))[1] == shared
    assert silent.asked == []
    assert again.gateway.fatal is None
    replies = [reply for _, _, reply in again.store.calls() if reply]
    assert {(r.source, r.spend) for r in replies} == {("record", Spend())}
    assert [r.body for r in replies] == [r.body for _, _, r in first.store.calls() if r]
    assert again.meter.run.spent == Spend()


async def test_a_changed_prompt_fails_loudly_and_says_which_call(make: Make) -> None:
    first = make("a", Counting())
    await ask(first, ["what is two and two?", "and three?"])
    silent = Counting()
    again = make("b", silent, replay=first.folder)
    candidate = "0123456789abcdef0123"
    statuses, visited = await ask(
        again, ["what is two and two?", "and thirty?", "and three?"], candidate=candidate, plan=4
    )
    assert statuses == [200, 503, 503]
    assert silent.asked == []
    error = again.gateway.fatal
    assert error is not None
    assert isinstance(error, ReplayMiss)
    assert isinstance(error, InfrastructureError)
    for part in (
        "role solver",
        "plan 4",
        "candidate 0123456789ab,",
        "instance i1",
        "first call",
        "message 1 (user)",
        "and three?",
        "and thirty?",
    ):
        assert part in str(error)
    assert visited.void == str(error)
    assert next(e.data["message"] for e in again.events) == str(error)


async def test_a_miss_in_an_unknown_scope_names_the_nearest_call_elsewhere(make: Make) -> None:
    first = make("a", Counting())
    await ask(first, ["classify the sky"], "old-trial")
    await ask(first, ["something else"], "other", instance="i2")
    again = make("b", Counting(), replay=first.folder)
    await ask(again, ["classify the sea"], "new-trial")
    message = str(again.gateway.fatal)
    assert "elsewhere in the run" in message
    assert "classify the sky" in message
    assert "classify the sea" in message


async def test_one_call_too_many_is_a_miss(make: Make) -> None:
    first = make("a", Counting())
    await ask(first, ["x", "x"])
    again = make("b", Counting(), replay=first.folder)
    statuses, _ = await ask(again, ["x", "x", "x"])
    assert statuses == [200, 200, 503]
    assert "third call" in str(again.gateway.fatal)
    assert "only 2 equal calls" in str(again.gateway.fatal)


async def test_a_call_that_was_cut_off_is_no_miss(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    first = make("a", model)
    door = await first.gateway.door(first.folder / "d.sock")
    door.enter(visit())
    flying = asyncio.create_task(post(door.path, chat("x")))
    await model.arrived.wait()
    await door.close()
    await asyncio.wait([flying])
    again = make("b", Counting(), replay=first.folder)
    statuses, visited = await ask(again, ["x"])
    assert statuses == [503]
    assert visited.void == ""
    assert again.gateway.fatal is None


async def test_a_resumed_replay_answers_from_its_own_record(make: Make, tmp_path: Path) -> None:
    first = make("a", Counting())
    await ask(first, ["x"])
    replayed = make("b", Counting(), replay=first.folder)
    await ask(replayed, ["x"])
    await ask(replayed, ["x"])
    assert len(list(replayed.store.calls())) == 1
