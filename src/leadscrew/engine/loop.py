"""The loop: decide a plan, propose, check, evaluate, judge, store; several plans at once, applied in one order.

Plan i is decided on the verdicts of plans <= i - W, where W is the number of plans in flight; plan 0 (the founding) is a
barrier. The number of workers changes nothing but speed. One task writes: whatever is decided is durable before it is
acted on, so that a kill at any instant loses only what was in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from leadscrew.core.archive import Archive
from leadscrew.core.program import EVERYTHING, Region
from leadscrew.core.proposal import Candidate, Edit, Judgement, Plan, Proposal, Results, Verdict
from leadscrew.core.trial import Evaluation
from leadscrew.engine.bench import Errands, Layout, RunBench, Submissions, derived_rng
from leadscrew.engine.check import CheckSettings
from leadscrew.engine.commit import Committer
from leadscrew.engine.evaluate import Evaluator
from leadscrew.engine.inbox import Inbox
from leadscrew.engine.meter import Meter
from leadscrew.engine.restore import Restored, restore
from leadscrew.engine.workshop import Workshop
from leadscrew.errors import BudgetReached, InfrastructureError, LeadscrewError, ProgramError
from leadscrew.ports import Domain, Event, Executor, Message, Method, Observer, Proposer, Store, StoredPlan

SITTING_S = 5.0
CHECK = CheckSettings()


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """`plans_in_flight` is W. `order` `completion` applies plans as they finish: faster, and replayed from the recorded
    decisions. `approve` holds every new candidate until a person approves it. `infra_limit` failures of our own in a row
    pause the run."""

    plans_in_flight: int = 1
    order: Literal["plan", "completion"] = "plan"
    approve: bool = False
    infra_limit: int = 3
    infra_pause_s: float = 0.2


LOOP = LoopSettings()


@dataclass(slots=True)
class _Flight:
    """A plan being worked on."""

    stored: StoredPlan
    view: Archive
    ordinal: int
    task: asyncio.Task[Results]
    cancelled: bool = False

    def cancel(self) -> None:
        """Cancel once: a second time would take away what the first lets be stored."""
        if not self.cancelled:
            self.cancelled = True
            self.task.cancel()


class Engine:
    """Runs a method on a domain. It knows the ports and the core only."""

    def __init__(
        self,
        *,
        method: Method,
        domain: Domain,
        proposers: Mapping[str, Proposer],
        evaluator: Evaluator,
        executor: Executor,
        store: Store,
        committer: Committer,
        meter: Meter,
        seed: int,
        settings: LoopSettings = LOOP,
        check: CheckSettings = CHECK,
        region: Region = EVERYTHING,
        unseal: Callable[[Message, RunBench], Sequence[Proposal]],
        layout: Layout | None = None,
        errands: Errands | None = None,
        fatal: Callable[[], LeadscrewError | None] = lambda: None,
        observe: Observer = lambda event: None,
    ) -> None:
        self.method, self.domain, self.store, self.meter = method, domain, store, meter
        self.archive = Archive(domain.objectives)
        self._committer, self._seed, self._settings = committer, seed, settings
        self._region, self._observe, self._fatal = region, observe, fatal
        self._submissions = Submissions()
        self._inbox = Inbox(store, self._submissions)
        self._flying: dict[int, _Flight] = {}
        self._next = 0
        self._ordinals = 0
        self._halted = False
        self._cap: BudgetReached | None = None
        self._infra_in_a_row = 0
        self._workshop = Workshop(
            domain=domain,
            proposers=proposers,
            evaluator=evaluator,
            executor=executor,
            store=store,
            committer=committer,
            meter=meter,
            seed=seed,
            evidence=method.evidence,
            check=check,
            hold=settings.approve,
            submissions=self._submissions,
            notes=self._inbox.notes,
            unseal=unseal,
            layout=layout,
            errands=errands,
            observe=observe,
        )

    # -- the loop ------------------------------------------------------------------------------

    async def run(self) -> str:
        """Run until the method is done, a cap or a stop is met, or our own parts fail too often.

        Returns why it ended: `done` or `stopped: <reason>`. Raises `BudgetReached` at a cap and `InfrastructureError`
        after too many failures in a row. Whatever was finished is stored in every case.
        """
        self._resume(restore(self.store, self.domain.objectives))
        watch = asyncio.create_task(self._watch())
        try:
            self._decide()
            while self._flying:
                await self._step(watch)
                self._decide()
            if self._cap is not None:
                raise self._cap
            return "done" if self._inbox.stop_reason is None else f"stopped: {self._inbox.stop_reason}"
        finally:
            watch.cancel()
            await self._abandon()
            await asyncio.gather(watch, return_exceptions=True)

    def stop(self, reason: str) -> None:
        """Ask the loop to end as soon as possible; finished trials are kept."""
        self._inbox.stop_reason = self._inbox.stop_reason or reason
        for flight in self._flying.values():
            flight.cancel()

    @property
    def _closing(self) -> bool:
        """Whether no plan may be decided any more, and, in plan order, none applied: what follows from it comes later."""
        return self._halted or self._cap is not None or self._inbox.stop_reason is not None

    async def _step(self, watch: asyncio.Task[None]) -> None:
        """Wait until something ends, and apply every plan whose turn has come."""
        waiting: list[asyncio.Task[Any]] = [f.task for f in self._flying.values()]
        if not watch.done():
            waiting.append(watch)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if watch.done() and not watch.cancelled():
            watch.result()
        events: list[Event] = []
        while (number := self._ready()) is not None:
            flight = self._flying[number]
            if self._closing and self._settings.order == "plan" and not self._failed(flight):
                del self._flying[number]
                continue
            try:
                results = flight.task.result()
            except asyncio.CancelledError:
                # A plan was cut short: those after it wait for the resumed run, or the order would not be one.
                self._halted = True
                if self._cap is None:
                    self._inbox.stop_reason = self._inbox.stop_reason or "cancelled"
                del self._flying[number]
            except InfrastructureError as error:
                await self._tell(events)
                await self._retry(flight, error)
                return
            except BudgetReached as error:
                del self._flying[number]
                self._meet_cap(error)
            else:
                del self._flying[number]
                self._infra_in_a_row = 0
                events += self._apply(flight, results)
                # Deciding right after each application keeps the rule exact: plan i sees the verdicts of plans <= i - W.
                self._decide()
        await self._tell(events)

    def _ready(self) -> int | None:
        """The plan that can be applied now, or that failed; None if there is none."""
        ended = [n for n, f in sorted(self._flying.items()) if f.task.done()]
        if self._settings.order == "plan" and ended and ended[0] != min(self._flying):
            ended = [n for n in ended if self._closing or self._failed(self._flying[n])]
        return ended[0] if ended else None

    @staticmethod
    def _failed(flight: _Flight) -> bool:
        return flight.task.cancelled() or flight.task.exception() is not None

    async def _tell(self, events: list[Event]) -> None:
        """Wait until what happened is durable, then tell it."""
        if events:
            await self._committer.durable()
        for event in events:
            self._observe(event)
            if event.kind == "verdict":
                _check_founders(event.data["plan"], event.data["candidates"])
        events.clear()

    def _decide(self) -> None:
        """Decide and start plans while there is room for one more in flight."""
        while not self._closing:
            window = 1 if self.archive.plans_applied == 0 else self._settings.plans_in_flight
            if len(self._flying) >= window:
                return
            view = self.archive.snapshot()
            plan: Plan | None = None
            origin: Literal["method", "inbox"] = "method"
            if self.archive.plans_applied and self._unclaimed():
                plan, origin = Edit("submitted"), "inbox"
            else:
                plan = self.method.plan(view, self._ordinals, derived_rng(self._seed, self._next, "plan"))
            if plan is None:
                return
            if isinstance(plan, Edit) and plan.region == EVERYTHING and plan.operator != "found":
                plan = replace(plan, region=self._region)
            stored = StoredPlan(self._next, plan, self.archive.plans_applied, origin)
            self.store.add_plan(stored)
            self._start(stored, view, self._ordinals)
            self._next += 1
            self._ordinals += origin == "method"

    def _unclaimed(self) -> bool:
        """Whether something waits in the inbox that no plan in flight is about to take."""
        taking = [f.stored.plan.operator for f in self._flying.values() if isinstance(f.stored.plan, Edit)]
        own, external = taking.count("submitted"), taking.count("external")
        submissions = self._submissions.count(approvals=False)
        return self._submissions.count(approvals=True) - min(external, submissions) > own

    def _start(self, stored: StoredPlan, view: Archive, ordinal: int) -> None:
        task = asyncio.create_task(self._carry_out(stored, view))
        self._flying[stored.number] = _Flight(stored, view, ordinal, task)
        self._observe(Event("plan", {"number": stored.number, "plan": stored.plan, "origin": stored.origin}))

    async def _carry_out(self, stored: StoredPlan, view: Archive) -> Results:
        # The decision, and the verdicts it was made on, are durable before anything is done about them.
        await self._committer.durable()
        return await self._workshop.carry_out(stored, view)

    def _resume(self, state: Restored) -> None:
        self.archive = state.archive
        self._next, self._ordinals = state.next_number, state.method_plans
        self._inbox.notes.extend(state.notes)
        self._inbox.poll()
        for stored, view, ordinal in state.in_flight:
            self._start(stored, view, ordinal)

    # -- applying ------------------------------------------------------------------------------

    def _apply(self, flight: _Flight, results: Results) -> list[Event]:
        """Judge a plan, write the judgement, and return what is to be told once it is durable."""
        number, plan = flight.stored.number, flight.stored.plan
        judgement = self.method.judge(self.archive, flight.ordinal, plan, results)
        judged = {v.candidate for v in judgement.verdicts}
        silent = [c for c in results.candidates if c.id not in judged]
        rest = tuple(Verdict(c.id, c.status, c.reason or "the method said nothing about it") for c in silent)
        judgement = Judgement(judgement.verdicts + rest, judgement.records)
        for candidate in results.candidates:
            self.store.add_candidate(candidate)
        for measured, evaluation in results.measured.items():
            self.store.add_measured(number, measured, _numbers(evaluation))
        self.store.add_judgement(number, judgement)
        timing = self._workshop.timings.pop(number, None)
        if timing is not None:
            self.store.add_event("timing", {"plan": number, **timing})
        for candidate in results.candidates:
            self.archive.add(candidate)
        for verdict in judgement.verdicts:
            self.archive.judge(verdict)
        for record in judgement.records:
            self.archive.remember(record)
        self.archive.plan_applied()
        told = [
            Event("candidate", {"candidate": candidate, "verdict": self.archive.verdict(candidate.id)})
            for candidate in results.candidates
        ]
        data = {"plan": number, "judgement": judgement, "archive": self.archive, "candidates": results.candidates}
        return [*told, Event("verdict", data)]

    async def _retry(self, flight: _Flight, error: InfrastructureError) -> None:
        """Start a plan again that failed for our own reasons: it costs no iteration and harms no parent."""
        number = flight.stored.number
        del self._flying[number]
        self._infra_in_a_row += 1
        self.store.add_event("infra", {"plan": number, "message": str(error)[:2000]})
        await self._committer.durable()
        self._observe(Event("infra", {"message": str(error), "in_a_row": self._infra_in_a_row}))
        hopeless = self._fatal()
        if hopeless is not None:
            raise hopeless from error
        if self._infra_in_a_row >= self._settings.infra_limit:
            raise InfrastructureError(
                f"the run is paused after {self._infra_in_a_row} failures of its own parts in a row, no candidate is "
                f"blamed and nothing is lost. The last one: {str(error).rstrip('.')}. Mend the cause, then resume the run."
            ) from error
        await asyncio.sleep(self._settings.infra_pause_s)
        if self._closing:
            self._halted = True
            return
        self._start(flight.stored, flight.view, flight.ordinal)

    def _meet_cap(self, error: BudgetReached) -> None:
        """At a cap: plans in evaluation may use what they have reserved; those that still propose are cut short."""
        self._cap = self._cap or error
        for flight in self._flying.values():
            if not isinstance(flight.stored.plan, Edit) or not self.store.proposals(flight.stored.number):
                flight.cancel()

    async def _abandon(self) -> None:
        """Cancel what is in flight and wait for it, so that every finished trial is stored and no box is left."""
        for flight in self._flying.values():
            flight.cancel()
        await asyncio.gather(*(f.task for f in self._flying.values()), return_exceptions=True)
        self._flying.clear()
        self.store.add_event("sitting", {"seconds": round(self.meter.seconds, 3)})
        self.store.commit()

    async def _watch(self) -> None:
        """Look into the inbox and at the clock while plans are in flight."""
        noted = self.meter.seconds
        while True:
            if self.meter.seconds - noted > SITTING_S:
                noted = self.meter.seconds
                self.store.add_event("sitting", {"seconds": round(noted, 3)})
            for note in self._inbox.poll():
                self._observe(Event("note", {"text": note}))
            await self._committer.durable()
            if self._inbox.stop_reason is not None:
                self.stop(self._inbox.stop_reason)
                return
            self.meter.check_clock()
            left = self.meter.seconds_left
            await asyncio.sleep(0.25 if left is None else max(0.01, min(0.25, left)))


def _check_founders(plan: int, candidates: Sequence[Candidate]) -> None:
    if plan == 0 and not any(c.status == "evaluated" for c in candidates):
        reasons = "; ".join(f"{c.name or c.id}: {c.reason}" for c in candidates[:3])
        raise ProgramError(
            f"none of the programs to start from could be evaluated, so there is nothing to improve. {reasons}"
        )


def _numbers(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "split": evaluation.split,
        "planned": evaluation.planned,
        "value": evaluation.value,
        "values": dict(evaluation.by_instance()),
        "failures": dict(evaluation.failures),
    }
