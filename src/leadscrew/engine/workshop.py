"""One plan carried out: proposals asked for and recorded, checked, evaluated; measurements; questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program
from leadscrew.core.proposal import Ask, Candidate, Claim, Edge, Edit, Measure, Proposal, Results
from leadscrew.core.trial import Evaluation, Outcome
from leadscrew.engine.ask import ask
from leadscrew.engine.bench import Errands, Layout, RunBench, Submissions
from leadscrew.engine.check import CheckSettings, Finding, check_static, smoke
from leadscrew.engine.commit import Committer
from leadscrew.engine.evaluate import Evaluator
from leadscrew.engine.meter import Meter
from leadscrew.errors import BudgetReached, DomainError, LeadscrewError
from leadscrew.ports import Domain, Event, Evidence, Executor, Item, Message, Observer, Proposer, Store, StoredPlan

SMOKE_ITEMS = 4


class Workshop:
    """Carries out plans. What a proposer returned is recorded before anything is done with it, and never asked for again.

    `hold` keeps every new candidate back until a person approves it. `notes` is the live list of what people wrote.
    """

    def __init__(
        self,
        *,
        domain: Domain,
        proposers: Mapping[str, Proposer],
        evaluator: Evaluator,
        executor: Executor,
        store: Store,
        committer: Committer,
        meter: Meter,
        seed: int,
        evidence: Evidence,
        check: CheckSettings,
        hold: bool,
        submissions: Submissions,
        notes: Sequence[str],
        unseal: Callable[[Message, RunBench], Sequence[Proposal]],
        layout: Layout | None,
        observe: Observer,
        errands: Errands | None = None,
    ) -> None:
        self._domain, self._proposers, self._evaluator, self._executor = domain, proposers, evaluator, executor
        self._store, self._committer, self._meter, self._seed = store, committer, meter, seed
        self._evidence, self._check, self._hold, self._notes = evidence, check, hold, notes
        self._submissions, self._unseal, self._layout, self._observe = submissions, unseal, layout, observe
        self._errands = errands
        train = evaluator.splits.get("train", ())[:SMOKE_ITEMS]
        self.timings: dict[int, dict[str, float]] = {}
        """Seconds that the edits of a plan took: to propose, to evaluate, in all. Taken out by whoever records them."""
        self._smoke_items = tuple(Item(i.id, i.input, i.expected, i.dataset) for i in train)

    async def carry_out(self, stored: StoredPlan, view: Archive) -> Results:
        """Return what came back for a plan. `view` is the archive as it was when the plan was decided.

        Raises `BudgetReached` and `InfrastructureError`; whatever was finished is stored.
        """
        plan, began = stored.plan, self._meter.seconds
        if isinstance(plan, Edit):
            known = list(self._store.proposals(stored.number))
            proposals = known or await self._propose(stored, plan, view)
            proposed = self._meter.seconds
            made = [self._candidate(stored, plan, view, n, proposal) for n, proposal in enumerate(proposals)]
            candidates = tuple(await _all(made))
            wall = self._meter.seconds - began
            parts = {} if known else {"propose": round(proposed - began, 3), "bench": round(wall - proposed + began, 3)}
            self.timings[stored.number] = {**parts, "wall": round(wall, 3)}
            return Results(candidates=candidates)
        if isinstance(plan, Measure):
            return Results(measured=await self._measure(stored.number, plan, view))
        return await self._ask(plan, view)

    async def _propose(self, stored: StoredPlan, plan: Edit, view: Archive) -> list[Proposal]:
        proposer = self._proposers.get(plan.operator)
        if proposer is None:
            raise LeadscrewError(f"the method asks for the proposer {plan.operator!r}, which this run does not have")
        bench = RunBench(
            number=stored.number,
            plan=plan,
            archive=view,
            domain=self._domain,
            evidence=self._evidence,
            notes=self._notes,
            store=self._store,
            seed=self._seed,
            submissions=self._submissions,
            unseal=self._unseal,
            layout=self._layout,
            errands=self._errands,
        )
        proposals = list(await proposer.propose(plan, bench))
        if stored.origin == "method" and plan.operator not in ("found", "external"):
            # A failed entry beyond what was asked for costs nothing but its row, and tells what was not taken.
            proposals = proposals[: plan.count] + [p for p in proposals[plan.count :] if p.program is None]
        proposals = [_sound(p, view) for p in proposals] or [Proposal(None, failure="the proposer returned nothing")]
        for index, proposal in enumerate(proposals):
            if proposal.program is not None:
                self._store.put_program(proposal.program)
            self._store.add_proposal(stored.number, index, proposal)
        for message in bench.taken:
            self._store.taken(message)
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
        finding = await self._checked(stored.number, plan, view, proposal)
        if program is None or finding.outcome is not Outcome.OK:
            return replace(candidate, status="failed", outcome=finding.outcome, reason=finding.reason)
        approved = any(e.detail.get("approved") for e in proposal.edges)
        if self._hold and plan.operator != "found" and not approved:
            return replace(candidate, status="held", reason="waiting for approval")
        account = self._meter.plan("evaluate")
        champion = view.champion
        known = champion.evaluations.get("val") if champion else None
        reference = known.by_instance() if known else None
        evaluations = await self._evaluator.evaluate(program, account, reference=reference, plan=stored.number)
        if plan.operator == "found":
            self._check_floor(program, proposal.name or candidate.id)
        return _settled(replace(candidate, evaluations=evaluations))

    def _check_floor(self, program: Program, name: str) -> None:
        """Raise `DomainError` if a founding program scores below the floor: the search would see no difference there."""
        primary = self._domain.objectives[0]
        exposed = program.part(self._domain.interface.region).digest
        for trial in self._store.trials(exposed, "val"):
            if trial.score is not None and primary.better(primary.floor, trial.score):
                raise DomainError(
                    f"{name} scored {trial.score:g} on {trial.instance}, which is worse than the floor {primary.floor:g} of "
                    f"{primary.name!r}. A failed trial counts as the floor, so a crash would beat this honest answer. "
                    "Give the objective a floor that is clearly bad (floor = ...)."
                )

    async def _checked(self, number: int, plan: Edit, view: Archive, proposal: Proposal) -> Finding:
        program = proposal.program
        base = next((e.source for e in proposal.edges if e.kind in ("base", "parent")), None)
        known = view.first_with(program.digest) if program else None
        if known is not None and view[known].status == "held":
            known = None
        finding = check_static(
            proposal,
            interface=self._domain.interface,
            settings=self._check,
            base=self._store.program(view[base].program) if base and view[base].program else None,
            region=plan.region,
            known=known,
        )
        learner = self._domain.interface.operation == "predict" and self._check.smoke
        if finding.outcome is not Outcome.OK or not learner or program is None:
            return finding
        return await smoke(
            program,
            self._executor,
            interface=self._domain.interface,
            limits=self._domain.limits,
            environment=self._domain.environment,
            masks=self._domain.masks(),
            items=self._smoke_items,
            access=self._evaluator.access(program.part(self._domain.interface.region), number),
        )

    async def _measure(self, number: int, plan: Measure, view: Archive) -> dict[str, Evaluation]:
        account = self._meter.plan("measure")
        found: dict[str, Evaluation] = {}
        for candidate in plan.candidates:
            evaluations = await self._evaluator.evaluate(
                self._store.program(view[candidate].program),
                account,
                split=plan.split,
                purpose=plan.purpose,
                instances=plan.instances,
                repeats=plan.repeats,
                plan=number,
            )
            found[candidate] = evaluations[plan.split]
        return found

    async def _ask(self, plan: Ask, view: Archive) -> Results:
        program: Program = self._store.program(view[plan.candidate].program)
        reply, note = await ask(plan, program, self._executor, self._domain)
        return Results(reply=reply, note=note)


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


async def _all(work: Sequence[Coroutine[Any, Any, Candidate]]) -> list[Candidate]:
    """Await all; if one fails, let the others finish first, so that what they earned is stored."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for result in sorted((r for r in done if isinstance(r, BaseException)), key=_severity):
        raise result
    return [r for r in done if isinstance(r, Candidate)]


def _severity(error: BaseException) -> int:
    """Caps first: a plan that met a cap must not be started again because a box failed beside it."""
    return 0 if isinstance(error, BudgetReached) else 1
