"""Group commit: one commit for all that wait, and its failure reaches all of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from leadscrew.engine.commit import Committer
from leadscrew.errors import InfrastructureError


class Counting:
    def __init__(self, failing: bool = False) -> None:
        self.commits, self.failing = 0, failing

    def commit(self) -> None:
        self.commits += 1
        if self.failing:
            raise InfrastructureError("the disk is full")


async def test_those_who_wait_together_share_a_commit() -> None:
    store = Counting()
    committer = Committer(cast(Any, store))
    await asyncio.gather(*(committer.durable() for _ in range(50)))
    assert store.commits == 1
    await committer.durable()
    assert store.commits == 2


async def test_a_failed_commit_reaches_everyone() -> None:
    committer = Committer(cast(Any, Counting(failing=True)))
    ended = await asyncio.gather(*(committer.durable() for _ in range(3)), return_exceptions=True)
    assert [type(e) for e in ended] == [InfrastructureError] * 3


async def test_a_cancelled_waiter_takes_nothing_from_the_others() -> None:
    store = Counting()
    committer = Committer(cast(Any, store))
    waiting = [asyncio.create_task(committer.durable()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await waiting[1]
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert store.commits == 1


async def test_patient_waiters_go_with_the_first_who_is_not() -> None:
    store = Counting()
    committer = Committer(cast(Any, store))
    patient = [asyncio.create_task(committer.durable(patient=True)) for _ in range(3)]
    await asyncio.sleep(0)
    assert store.commits == 0
    await committer.durable()
    await asyncio.gather(*patient)
    assert store.commits == 1


async def test_patience_ends_by_itself_or_when_hurried() -> None:
    store = Counting()
    committer = Committer(cast(Any, store))
    await committer.durable(patient=True)
    waiting = asyncio.create_task(committer.durable(patient=True))
    await asyncio.sleep(0)
    committer.hurry()
    await waiting
    assert store.commits == 2
