"""The loop: decide a plan, propose, check, evaluate, judge, store; several plans at once, applied in one order.

Plan i is decided on the verdicts of plans <= i - W, where W is the number of plans in flight; plan 0 (the founding) is a
barrier. The number of workers changes nothing but speed. One task writes: whatever is decided is durable before it is
acted on, so that a kill at any instant loses only what was in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from leadscrew.core.archive import Archive
from leadscrew.core.program import EVERYTHING, Program, Region
from leadscrew.core.proposal import (
    Ask,
    Candidate,
    Claim,
    Edge,
    Edit,
    Judgement,
    Measure,
    Plan,
    Proposal,
    Results,
    Verdict,
)
from leadscrew.core.trial import Evaluation, Outcome
from leadscrew.engine.ask import ask
from leadscrew.engine.bench import Layout, RunBench, Submissions, derived_rng
from leadscrew.engine.check import CheckSettings, Finding, check_static, smoke
from leadscrew.engine.commit import Committer
from leadscrew.engine.evaluate import Evaluator
from leadscrew.engine.inbox import Inbox
from leadscrew.engine.meter import Meter
from leadscrew.engine.restore import Restored, restore
from leadscrew.errors import BudgetReached, InfrastructureError, LeadscrewError, ProgramError
from leadscrew.ports import Domain, Event, Executor, Item, Message, Method, Observer, Proposer, Store, StoredPlan

SMOKE_ITEMS = 4
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
    smoke: bool = True


LOOP = LoopSettings()


@dataclass(slots=True)
class _Flight:
    """A plan being worked on."""

    stored: StoredPlan
    view: Archive
    ordinal: int
    task: asyncio.Task[Results]
    failed: BaseException | None = field(default=None)


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
        observe: Observer = lambda event: None,
    ) -> None:
        self.method, self.domain, self.store, self.meter = method, domain, store, meter
        self.archive = Archive(domain.objectives)
        self._proposers, self._evaluator, self._executor = proposers, evaluator, executor
        self._committer, self._seed, self._settings, self._check = committer, seed, settings, check
        self._region = region
        self._unseal, self._layout, self._observe = unseal, layout, observe
        self._submissions = Submissions()
        self._inbox = Inbox(store, self._submissions)
        self._flying: dict[int, _Flight] = {}
        self._next = 0
        self._ordinals = 0
        self._halted = False
        self._infra_in_a_row = 0
        self._smoke_items = tuple(
            Item(i.id, i.input, i.expected, i.dataset) for i in evaluator.splits.get("train", ())[:SMOKE_ITEMS]
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
            await self._decide()
            while self._flying:
                await self._step(watch)
                if self._inbox.stop_reason is None:
                    await self._decide()
            return "done" if self._inbox.stop_reason is None else f"stopped: {self._inbox.stop_reason}"
        finally:
            watch.cancel()
            await self._abandon()
            await asyncio.gather(watch, return_exceptions=True)

    def stop(self, reason: str) -> None:
        """Ask the loop to end as soon as possible; finished trials are kept."""
        self._inbox.stop_reason = self._inbox.stop_reason or reason
        for flight in self._flying.values():
            flight.task.cancel()

    async def _step(self, watch: asyncio.Task[None]) -> None:
        """Wait until something ends, and apply every plan whose turn has come."""
        await asyncio.wait([f.task for f in self._flying.values()] + [watch], return_when=asyncio.FIRST_COMPLETED)
        if watch.done() and not watch.cancelled():
            watch.result()
        for number in self._ready():
            flight = self._flying[number]
            if self._halted and self._settings.order == "plan":
                del self._flying[number]
                continue
            try:
                results = flight.task.result()
            except asyncio.CancelledError:
                # A plan was cut short: those after it wait for the resumed run, or the order would not be one.
                self._halted = True
                self._inbox.stop_reason = self._inbox.stop_reason or "cancelled"
                del self._flying[number]
            except InfrastructureError as error:
                await self._retry(flight, error)
                return
            except BudgetReached:
                await self._drain(number)
                raise
            else:
                del self._flying[number]
                self._infra_in_a_row = 0
                await self._apply(flight, results)
                # Deciding right after each application keeps the rule exact: plan i sees the verdicts of plans <= i - W.
                await self._decide()

    def _ready(self) -> list[int]:
        """The plans that can be applied now, in order."""
        ended = [n for n, f in sorted(self._flying.items()) if f.task.done()]
        if self._settings.order == "completion":
            return ended
        first = min(self._flying)
        failed = [n for n in ended if self._flying[n].task.cancelled() or self._flying[n].task.exception()]
        return [first] if first in ended else failed[:1]

    async def _decide(self) -> None:
        """Decide and start plans while there is room for one more in flight."""
        while self._inbox.stop_reason is None and not self._halted:
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
            await self._committer.durable()
            self._start(stored, view, self._ordinals)
            self._next += 1
            self._ordinals += origin == "method"

    def _unclaimed(self) -> bool:
        """Whether a submission waits that no plan in flight is about to take."""
        taking = sum(
            isinstance(f.stored.plan, Edit) and f.stored.plan.operator in ("submitted", "external")
            for f in self._flying.values()
        )
        return len(self._submissions) > taking

    def _start(self, stored: StoredPlan, view: Archive, ordinal: int) -> None:
        task = asyncio.create_task(self._work(stored, view))
        self._flying[stored.number] = _Flight(stored, view, ordinal, task)
        self._observe(Event("plan", {"number": stored.number, "plan": stored.plan, "origin": stored.origin}))

    def _resume(self, state: Restored) -> None:
        self.archive = state.archive
        self._next, self._ordinals = state.next_number, state.method_plans
        self._inbox.notes.extend(state.notes)
        self._inbox.poll()
        for stored, view, ordinal in state.in_flight:
            self._start(stored, view, ordinal)

    # -- one plan ------------------------------------------------------------------------------

    async def _work(self, stored: StoredPlan, view: Archive) -> Results:
        plan = stored.plan
        if isinstance(plan, Edit):
            proposals = list(self.store.proposals(stored.number)) or await self._propose(stored, plan, view)
            made = [self._candidate(stored, plan, view, n, proposal) for n, proposal in enumerate(proposals)]
            return Results(candidates=tuple(await _all(made)))
        if isinstance(plan, Measure):
            return Results(measured=await self._measure(plan, view))
        return await self._ask(plan, view)

    async def _propose(self, stored: StoredPlan, plan: Edit, view: Archive) -> list[Proposal]:
        proposer = self._proposers.get(plan.operator)
        if proposer is None:
            raise LeadscrewError(f"the method asks for the proposer {plan.operator!r}, which this run does not have")
        bench = RunBench(
            number=stored.number,
            plan=plan,
            archive=view,
            domain=self.domain,
            evidence=self.method.evidence,
            notes=self._inbox.notes,
            store=self.store,
            seed=self._seed,
            submissions=self._submissions,
            unseal=self._unseal,
            layout=self._layout,
        )
        proposals = list(await proposer.propose(plan, bench))
        if stored.origin == "method" and plan.operator not in ("found", "external"):
            proposals = proposals[: plan.count]
        proposals = [_sound(p, view) for p in proposals] or [Proposal(None, failure="the proposer returned nothing")]
        for index, proposal in enumerate(proposals):
            if proposal.program is not None:
                self.store.put_program(proposal.program)
            self.store.add_proposal(stored.number, index, proposal)
        for message in bench.taken:
            self.store.taken(message)
        await self._committer.durable()
        self._observe(Event("proposal", {"plan": stored.number, "count": len(proposals)}))
        return proposals

    async def _candidate(
        self, stored: StoredPlan, plan: Edit, view: Archive, index: int, proposal: Proposal
    ) -> Candidate:
        program = proposal.program
        candidate = Candidate(
            id=f"{stored.number}.{index}",
            plan=stored.number,
            index=index,
            program=program.digest if program else "",
            name=proposal.name,
            operator=plan.operator,
            status="evaluated",
            outcome=Outcome.OK,
            edges=proposal.edges,
            claim=proposal.claim,
            log=proposal.log[-20_000:],
        )
        finding = await self._checked(plan, view, proposal)
        if program is None or finding.outcome is not Outcome.OK:
            return replace(candidate, status="failed", outcome=finding.outcome, reason=finding.reason)
        approved = any(e.detail.get("approved") for e in proposal.edges)
        if self._settings.approve and plan.operator != "found" and not approved:
            return replace(candidate, status="held", reason="waiting for approval")
        account = self.meter.plan("evaluate")
        champion = view.champion
        known = champion.evaluations.get("val") if champion else None
        reference = known.by_instance() if known else None
        evaluations = await self._evaluator.evaluate(program, account, reference=reference)
        return _settled(replace(candidate, evaluations=evaluations))

    async def _checked(self, plan: Edit, view: Archive, proposal: Proposal) -> Finding:
        program = proposal.program
        base = next((e.source for e in proposal.edges if e.kind in ("base", "parent")), None)
        known = view.first_with(program.digest) if program else None
        if known is not None and view[known].status == "held":
            known = None
        finding = check_static(
            proposal,
            interface=self.domain.interface,
            settings=self._check,
            base=self.store.program(view[base].program) if base and view[base].program else None,
            region=plan.region,
            known=known,
        )
        learner = self.domain.interface.operation == "predict" and self._check.smoke
        if finding.outcome is not Outcome.OK or not learner or program is None:
            return finding
        return await smoke(
            program,
            self._executor,
            interface=self.domain.interface,
            limits=self.domain.limits,
            environment=self.domain.environment,
            masks=self.domain.masks(),
            items=self._smoke_items,
        )

    async def _measure(self, plan: Measure, view: Archive) -> dict[str, Evaluation]:
        account = self.meter.plan("measure")
        found: dict[str, Evaluation] = {}
        for candidate in plan.candidates:
            evaluations = await self._evaluator.evaluate(
                self.store.program(view[candidate].program),
                account,
                split=plan.split,
                purpose=plan.purpose,
                instances=plan.instances,
                repeats=plan.repeats,
            )
            found[candidate] = evaluations[plan.split]
        return found

    async def _ask(self, plan: Ask, view: Archive) -> Results:
        program: Program = self.store.program(view[plan.candidate].program)
        reply, note = await ask(plan, program, self._executor, self.domain)
        return Results(reply=reply, note=note)

    # -- applying ------------------------------------------------------------------------------

    async def _apply(self, flight: _Flight, results: Results) -> None:
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
        await self._committer.durable()
        for candidate in results.candidates:
            self.archive.add(candidate)
        for verdict in judgement.verdicts:
            self.archive.judge(verdict)
        for record in judgement.records:
            self.archive.remember(record)
        self.archive.plan_applied()
        for candidate in results.candidates:
            self._observe(Event("candidate", {"candidate": candidate, "verdict": self.archive.verdict(candidate.id)}))
        self._observe(Event("verdict", {"plan": number, "judgement": judgement, "archive": self.archive}))
        if plan == Edit("found") and not any(c.status == "evaluated" for c in results.candidates):
            reasons = "; ".join(f"{c.name or c.id}: {c.reason}" for c in results.candidates[:3])
            raise ProgramError(
                f"none of the programs to start from could be evaluated, so there is nothing to improve. {reasons}"
            )

    async def _retry(self, flight: _Flight, error: InfrastructureError) -> None:
        """Start a plan again that failed for our own reasons: it costs no iteration and harms no parent."""
        number = flight.stored.number
        del self._flying[number]
        self._infra_in_a_row += 1
        self.store.add_event("infra", {"plan": number, "message": str(error)[:2000]})
        await self._committer.durable()
        self._observe(Event("infra", {"message": str(error), "in_a_row": self._infra_in_a_row}))
        if self._infra_in_a_row >= self._settings.infra_limit:
            raise InfrastructureError(
                f"the run is paused after {self._infra_in_a_row} failures of its own parts in a row, no candidate is "
                f"blamed and nothing is lost. The last one: {error}. Mend the cause, then resume the run."
            ) from error
        await asyncio.sleep(self._settings.infra_pause_s)
        self._start(flight.stored, flight.view, flight.ordinal)

    async def _drain(self, number: int) -> None:
        """At a cap: let the other plans use what they had reserved, and apply those that can be applied in order."""
        del self._flying[number]
        while self._flying:
            first = min(self._flying)
            flight = self._flying.pop(first)
            await asyncio.wait([flight.task])
            whole = not flight.task.cancelled() and flight.task.exception() is None
            if whole and (first < number or self._settings.order == "completion"):
                await self._apply(flight, flight.task.result())

    async def _abandon(self) -> None:
        """Cancel what is in flight and wait for it, so that every finished trial is stored and no box is left."""
        tasks = [f.task for f in self._flying.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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


def _sound(proposal: Proposal, view: Archive) -> Proposal:
    """Refuse edges to candidates that the proposer cannot know."""
    unknown = [e.source for e in proposal.edges if e.source not in view]
    if not unknown:
        return proposal
    edges: tuple[Edge, ...] = tuple(e for e in proposal.edges if e.source in view)
    reason = f"names {', '.join(sorted(set(unknown)))} as its source, which the archive does not hold"
    return Proposal(None, edges, proposal.claim or Claim(), proposal.name, reason, Outcome.INVALID, proposal.log)


def _settled(candidate: Candidate) -> Candidate:
    """A candidate none of whose trials is ok failed as a whole; the most frequent kind of failure is its outcome."""
    val = candidate.evaluations["val"]
    failed = sum(val.failures.values())
    if failed < val.planned or not failed:
        return candidate
    worst = max(sorted(val.failures), key=lambda kind: val.failures[kind])
    return replace(candidate, status="failed", outcome=Outcome(worst), reason=f"every one of {failed} trials failed")


def _numbers(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "split": evaluation.split,
        "planned": evaluation.planned,
        "value": evaluation.value,
        "values": dict(evaluation.by_instance()),
        "failures": dict(evaluation.failures),
    }


async def _all(work: Sequence[Coroutine[Any, Any, Candidate]]) -> list[Candidate]:
    """Await all; if one fails, let the others finish first, so that what they earned is stored."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for result in sorted((r for r in done if isinstance(r, BaseException)), key=_severity):
        raise result
    return [r for r in done if isinstance(r, Candidate)]


def _severity(error: BaseException) -> int:
    """Caps first: a plan that met a cap must not be started again because a box failed beside it."""
    return 0 if isinstance(error, BudgetReached) else 1
