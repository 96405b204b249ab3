"""Caps over several sittings, and the clock."""

from __future__ import annotations

import pytest

from leadscrew.core.budget import Caps, Spend
from leadscrew.engine.meter import Meter, reached
from leadscrew.errors import BudgetReached


def test_what_earlier_sittings_spent_counts() -> None:
    meter = Meter(Caps(trials=10), before=Spend(trials=8))
    plan = meter.plan("evaluate")
    assert plan.reserve(trials=2) is None
    assert plan.reserve(trials=1) == "trials"
    plan.settle(Spend(trials=1, cpu_ms=5), trials=2)
    assert meter.run.spent == Spend(trials=9, cpu_ms=5)
    assert meter.plan("evaluate").reserve(trials=1) is None


def test_a_role_may_have_a_cap_of_its_own() -> None:
    meter = Meter(Caps(trials=10), role_caps={"measure": Caps(trials=1)})
    assert meter.plan("measure").reserve(trials=1) is None
    assert meter.plan("measure").reserve(trials=1) == "trials"
    assert meter.plan("evaluate").reserve(trials=9) is None


def test_seconds_run_over_all_sittings() -> None:
    now = [100.0]
    meter = Meter(Caps(seconds=10), seconds_before=7, clock=lambda: now[0])
    now[0] += 2.5
    assert meter.seconds == 9.5
    assert meter.seconds_left == 0.5
    meter.check_clock()
    now[0] += 1
    with pytest.raises(BudgetReached, match="cap of 10 seconds"):
        meter.check_clock()


def test_the_message_says_how_to_go_on() -> None:
    assert "leadscrew resume RUN --trials N" in str(reached("trials", 50))
