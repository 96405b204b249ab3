"""The founding proposer: seed first, then the baselines, each once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from leadscrew.core.proposal import Edit
from leadscrew.errors import DomainError
from leadscrew.operators.found import Found
from support.toy import Digits, digits


def bench(domain: Any) -> Any:
    return SimpleNamespace(domain=domain)


async def test_a_seed_that_is_a_baseline_is_proposed_once() -> None:
    taken = await Found().propose(Edit("found"), bench(Digits()))
    assert [(p.name, p.claim.extra["roles"]) for p in taken] == [
        ("dashes", ["seed", "baseline"]),
        ("first", ["baseline"]),
    ]


async def test_the_users_program_comes_first() -> None:
    mine = digits("mine")
    taken = await Found(mine).propose(Edit("found"), bench(Digits()))
    assert [p.name for p in taken] == ["seed", "dashes", "first"]
    assert taken[0].program == mine


async def test_nothing_to_start_from_is_the_users_error() -> None:
    empty = SimpleNamespace(name="bare", baselines=dict, seed=lambda: None)
    with pytest.raises(DomainError, match="neither a seed nor baselines"):
        await Found().propose(Edit("found"), bench(empty))
