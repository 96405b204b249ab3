"""The loop: order, durability, caps, outages, approvals, submissions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from leadscrew.adapters.stores.inbox import post
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Caps
from leadscrew.core.proposal import Edge, Edit, Proposal
from leadscrew.core.task import Answer, Instance, Objective, Score
from leadscrew.core.trial import Outcome
from leadscrew.engine.evaluate import EvaluationSettings
from leadscrew.engine.loop import LoopSettings
from leadscrew.errors import BudgetReached, DomainError, InfrastructureError
from leadscrew.methods.harness import HarnessSettings
from leadscrew.ports import Bench, BoxReply, Event, Message
from support.toy import Digits, Parts, digits


class Climber:
    """Sets one more digit of a base that it draws from the archive, after a pause that has nothing to do with the result."""

    name = "climber"

    def __init__(self, jitter: random.Random | None = None, kill_at: int | None = None) -> None:
        self.jitter, self.kill_at, self.asked = jitter, kill_at, 0

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        self.asked += 1
        if self.kill_at is not None and bench.number >= self.kill_at:
            raise asyncio.CancelledError
        if self.jitter is not None:
            await asyncio.sleep(self.jitter.random() * 0.01)
        out = []
        for _ in range(plan.count):
            base = bench.archive.at(bench.rng.randrange(len(bench.archive)))
            while not base.program:
                base = bench.archive.at(bench.rng.randrange(len(bench.archive)))
            text = list(bench.program(base.id).text("digits.txt"))
            place = bench.rng.randrange(len(text))
            text[place] = str(bench.rng.randrange(10))
            out.append(Proposal(digits("".join(text)), (Edge("base", base.id),)))
        return out


def go(folder: Path, jitter: int | None = None, in_flight: int = 1, iterations: int = 12) -> str:
    parts = Parts(
        folder,
        Climber(None if jitter is None else random.Random(jitter)),
        settings=HarnessSettings(iterations=iterations, candidates=2, promotion="published"),
        loop=LoopSettings(plans_in_flight=in_flight),
    )
    assert parts.run() == "done"
    return digest(folder)


def digest(folder: Path) -> str:
    store = SQLiteStore.open(folder, readonly=True)
    try:
        store.verify()
        return store.archive_digest()
    finally:
        store.close()


@pytest.mark.parametrize("in_flight", [1, 4])
def test_the_archive_does_not_depend_on_who_finishes_first(tmp_path: Path, in_flight: int) -> None:
    runs = {go(tmp_path / str(jitter), jitter, in_flight) for jitter in (1, 2, 3)}
    assert runs == {go(tmp_path / "calm", None, in_flight)}


def test_plans_in_flight_change_what_a_plan_may_know(tmp_path: Path) -> None:
    assert go(tmp_path / "one", in_flight=1) != go(tmp_path / "four", in_flight=4)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_run_cut_short_goes_on_to_the_same_archive(tmp_path: Path, in_flight: int) -> None:
    whole = go(tmp_path / "whole", in_flight=in_flight)
    settings = HarnessSettings(iterations=12, candidates=2, promotion="published")
    loop = LoopSettings(plans_in_flight=in_flight)
    for kill_at in (2, 5, 9):
        Parts(tmp_path / "cut", Climber(kill_at=kill_at), settings=settings, loop=loop).run()
    last = Climber(random.Random(5))
    assert Parts(tmp_path / "cut", last, settings=settings, loop=loop).run() == "done"
    assert digest(tmp_path / "cut") == whole
    assert last.asked < 12, "recorded proposals are not asked for again"


def test_a_cap_in_trials_is_met_exactly_and_can_be_raised(tmp_path: Path) -> None:
    whole = go(tmp_path / "whole")
    settings = HarnessSettings(iterations=12, candidates=2, promotion="published")
    parts = Parts(tmp_path / "capped", Climber(), settings=settings, caps=Caps(trials=50))
    with pytest.raises(BudgetReached, match="trials"):
        parts.run()
    store = SQLiteStore.open(tmp_path / "capped", readonly=True)
    assert store.spend().trials == 50
    store.close()
    assert Parts(tmp_path / "capped", Climber(), settings=settings, caps=Caps(trials=10_000)).run() == "done"
    assert digest(tmp_path / "capped") == whole


def test_a_cap_in_seconds_stops_the_run(tmp_path: Path) -> None:
    class Slow(Climber):
        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            await asyncio.sleep(30)
            return []

    with pytest.raises(BudgetReached, match="seconds"):
        Parts(tmp_path, Slow(), caps=Caps(seconds=0.3)).run()


def test_an_outage_costs_no_iteration_and_changes_nothing(tmp_path: Path) -> None:
    whole = go(tmp_path / "whole")
    settings = HarnessSettings(iterations=12, candidates=2, promotion="published")
    events: list[Event] = []
    parts = Parts(
        tmp_path / "outage",
        Climber(),
        settings=settings,
        loop=LoopSettings(infra_pause_s=0),
        outages=1,
        observe=events.append,
    )
    assert parts.run() == "done"
    assert [e.kind for e in events].count("infra") == 1
    assert digest(tmp_path / "outage") == whole


def test_outages_in_a_row_pause_the_run_with_a_message(tmp_path: Path) -> None:
    parts = Parts(tmp_path, Climber(), outages=10_000)
    with pytest.raises(InfrastructureError, match=r"paused after 3 failures .* the scorer is away"):
        parts.run()


def test_every_proposal_gets_a_row_with_its_reason(tmp_path: Path) -> None:
    class Odd(Climber):
        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            seed = bench.program("0.0")
            return [
                Proposal(seed),
                Proposal(None, failure="the reply was cut off"),
                Proposal(digits("0")),
                Proposal(digits("x" * 12), (Edge("base", "9.9"),)),
            ][: plan.count]

    settings = HarnessSettings(iterations=1, candidates=4, promotion="published")
    parts = Parts(tmp_path, Odd(), settings=settings)
    parts.run()
    rows = {c.id: c for c in parts.engine.archive if c.plan == 1}
    assert [c.status for c in rows.values()] == ["failed", "failed", "evaluated", "failed"]
    assert "already has exactly this tree" in rows["1.0"].reason
    assert rows["1.1"].reason == "the reply was cut off"
    assert rows["1.2"].value == pytest.approx(1 / 12), "missing places count as the floor, over all planned trials"
    assert rows["1.2"].evaluations["val"].failures == {"bad_output": 11}
    assert "9.9" in rows["1.3"].reason
    assert all(parts.engine.archive.verdict(i) for i in rows)


def test_a_candidate_whose_trials_all_fail_is_failed_not_zero(tmp_path: Path) -> None:
    class Empty(Climber):
        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            return [Proposal(digits(""))]

    parts = Parts(tmp_path, Empty(), settings=HarnessSettings(iterations=1, candidates=1))
    parts.run()
    assert parts.engine.archive["1.0"].status == "failed"
    assert parts.engine.archive["1.0"].outcome is Outcome.BAD_OUTPUT


def test_the_ladder_stops_a_poor_candidate_early(tmp_path: Path) -> None:
    class Two(Climber):
        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            return [Proposal(digits("x" * 40)), Proposal(digits("0123456789" * 4))]

    settings = HarnessSettings(iterations=1, candidates=2, promotion="published")
    evaluation = EvaluationSettings(ladder=(10,), gate_margin=0.0)

    class Ten(Digits):
        def seed(self):  # type: ignore[no-untyped-def]
            return digits("01234567890123456789" + "-" * 20)

    parts = Parts(tmp_path, Two(), domain=Ten(40), settings=settings, evaluation=evaluation)
    parts.run()
    poor, good = parts.engine.archive["1.0"], parts.engine.archive["1.1"]
    assert (poor.evaluations["val"].planned, poor.evaluations["val"].passed) == (10, False)
    assert (good.evaluations["val"].planned, good.value) == (40, 1.0)
    assert parts.engine.archive.champion is good or parts.engine.archive["1.1"].id == "1.1"


def test_a_stop_message_ends_the_run_and_it_resumes(tmp_path: Path) -> None:
    class Stopper(Climber):
        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            if bench.number == 3:
                post(tmp_path / "run", "stop", {"text": "enough"})
                await asyncio.sleep(5)
            return await super().propose(plan, bench)

    settings = HarnessSettings(iterations=6, candidates=2, promotion="published")
    assert Parts(tmp_path / "run", Stopper(), settings=settings).run() == "stopped: enough"
    assert Parts(tmp_path / "run", Climber(), settings=settings).run() == "done"


def test_approval_holds_candidates_without_stopping_the_rest(tmp_path: Path) -> None:
    settings = HarnessSettings(iterations=2, candidates=1, promotion="published")

    def unseal(message: Message, bench: Bench) -> Sequence[Proposal]:
        held = bench.archive[str(message.data["candidate"])]
        return [Proposal(bench.program(held.id), (Edge("base", held.id, {"approved": True}),))]

    loop = LoopSettings(approve=True)
    first = Parts(tmp_path, Climber(), settings=settings, loop=loop)
    assert first.run() == "done"
    assert [c.status for c in first.engine.archive if c.plan] == ["held", "held"]
    post(tmp_path, "approve", {"candidate": "1.0"})
    again = Parts(tmp_path, Climber(), settings=settings, loop=loop, unseal=unseal)
    assert again.run() == "done"
    assert again.engine.archive["3.0"].status == "evaluated"
    assert again.engine.archive["3.0"].program == again.engine.archive["1.0"].program


def test_a_submission_is_taken_once_between_the_methods_own_plans(tmp_path: Path) -> None:
    def unseal(message: Message, bench: Bench) -> Sequence[Proposal]:
        return [Proposal(digits(str(message.data["text"])), (Edge("base", "0.0"),))]

    settings = HarnessSettings(iterations=3, candidates=1, promotion="published")
    parts = Parts(tmp_path, Climber(), settings=settings, unseal=unseal)
    post(tmp_path, "submit", {"text": "012345678901"})
    assert parts.run() == "done"
    plans = list(SQLiteStore.open(tmp_path, readonly=True).plans())
    assert [p.origin for p in plans].count("inbox") == 1
    assert len(plans) == 1 + 3 + 1
    assert parts.engine.archive.champion is not None
    assert parts.engine.archive.champion.value == 1.0


def test_a_failure_never_beats_an_honest_answer(tmp_path: Path) -> None:
    """Scores below zero with a floor of zero would crown a crash: such a domain is refused at the founding."""

    class Loss(Digits):
        def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
            return Score(super().score(instance, answer).value - 2.0)

    with pytest.raises(DomainError, match=r"scored -2 .* worse than the floor 0"):
        Parts(tmp_path / "refused", Climber(), domain=Loss()).run()

    class Honest(Loss):
        objectives = (Objective("matches", floor=-10.0),)

    class Crashing(Climber):
        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            return [Proposal(digits("0"))]

    parts = Parts(tmp_path / "taken", Crashing(), domain=Honest(), settings=HarnessSettings(iterations=1, candidates=1))
    parts.run()
    crashing, seed = parts.engine.archive["1.0"], parts.engine.archive["0.0"]
    assert crashing.value is not None
    assert seed.value is not None
    assert crashing.value < seed.value


@pytest.mark.parametrize("cap", [47, 120, 155])
def test_a_cap_met_by_several_plans_in_flight_changes_nothing_in_the_end(tmp_path: Path, cap: int) -> None:
    whole = go(tmp_path / "whole", in_flight=4)
    settings = HarnessSettings(iterations=12, candidates=2, promotion="published")
    loop = LoopSettings(plans_in_flight=4)
    with pytest.raises(BudgetReached):
        Parts(tmp_path / "cut", Climber(random.Random(1)), settings=settings, loop=loop, caps=Caps(trials=cap)).run()
    assert Parts(tmp_path / "cut", Climber(), settings=settings, loop=loop).run() == "done"
    assert digest(tmp_path / "cut") == whole


def test_a_plan_that_waits_for_a_person_does_not_outlive_a_cap(tmp_path: Path) -> None:
    class Half(Climber):
        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            if bench.number > 1:
                await asyncio.Event().wait()
            return await super().propose(plan, bench)

    parts = Parts(tmp_path, Half(), loop=LoopSettings(plans_in_flight=2), caps=Caps(trials=30))
    with pytest.raises(BudgetReached):
        parts.run()


def test_a_stop_during_the_pause_after_an_outage_is_heeded(tmp_path: Path) -> None:
    def observe(event: Event) -> None:
        if event.kind == "infra":
            parts.engine.stop("enough")

    loop = LoopSettings(infra_pause_s=0.05)
    parts = Parts(tmp_path, Climber(), loop=loop, outages=1, observe=observe)
    assert parts.run() == "stopped: enough"
    assert parts.engine.archive.plans_applied == 0
