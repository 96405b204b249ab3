"""One reply of a box turned into a stored trial: checked, graded where the domain asks for it, scored, durable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leadscrew.core.canonical import canonical_json, json_fault
from leadscrew.core.task import Answer, Instance, Score
from leadscrew.core.trial import Outcome, Purpose, Trace, Trial
from leadscrew.engine.commit import Committer
from leadscrew.engine.meter import raise_text
from leadscrew.errors import BudgetReached, InfrastructureError, ModelOutage
from leadscrew.ports import BoxReply, BoxTrial, Domain, Event, Executor, Grading, Job, Observer, Scorer, Store

SMALL_ANSWER = 512
"""Bytes of JSON up to which an answer stands in the trial's own row."""
SHOWN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Due:
    """A trial that an evaluation needs: its cache key, the instance and the repeat."""

    key: str
    instance: Instance
    repeat: int


class Recorder:
    """Turns replies into trials. `grades` says whether answers must be executed in a grading box first."""

    def __init__(
        self,
        domain: Domain,
        executor: Executor,
        scorer: Scorer,
        store: Store,
        committer: Committer,
        observe: Observer,
    ) -> None:
        self.grades = type(domain).grade is not Domain.grade
        self._domain, self._executor, self._scorer = domain, executor, scorer
        self._store, self._committer, self._observe = store, committer, observe
        self._known: tuple[Instance, Answer, Sequence[BoxReply]] | None = None
        """What the scorer could judge last."""

    def hurry(self) -> None:
        """Make durable now what is patient: somebody waits for the last trials of an evaluation."""
        self._committer.hurry()

    async def record(
        self,
        due: Due,
        exposed: str,
        purpose: Purpose,
        reply: BoxReply,
        streaming: Callable[[], bool],
        *,
        plan: int = 0,
    ) -> Trial:
        """Score a reply, store the trial, and return it once it is durable. While `streaming`, that may take a little.

        What a judge is asked goes on the account of `plan`.
        """
        trial = await self._judge(due, exposed, purpose, reply, plan)
        self._store.add_trial(trial)
        await self._committer.durable(patient=streaming())
        self._observe(Event("trial", {"trial": trial}))
        return trial

    async def _judge(self, due: Due, exposed: str, purpose: Purpose, reply: BoxReply, plan: int) -> Trial:
        answer, outcome, message = reply.answer, reply.outcome, reply.message
        score: Score | None = None
        if outcome is Outcome.OK and answer.files is None:
            fault = json_fault(answer.value)
            if fault is not None:
                outcome, message, answer = Outcome.BAD_OUTPUT, f"the answer holds {fault}", Answer()
        if outcome is Outcome.OK:
            graded = await self._graded(due.instance, answer) if self.grades else ()
            judged = await self._scored(due.instance, answer, graded, plan=plan, candidate=exposed)
            if isinstance(judged, str):
                outcome, message = Outcome.BAD_OUTPUT, judged
            elif not math.isfinite(judged.value) or not all(map(math.isfinite, judged.costs.values())):
                outcome, message = Outcome.BAD_OUTPUT, f"the scorer made no finite number of it: {judged.value!r}"
            else:
                score = judged
        return Trial(
            key=due.key,
            program=exposed,
            instance=due.instance.id,
            split=due.instance.split,
            dataset=due.instance.dataset,
            repeat=due.repeat,
            purpose=purpose,
            outcome=outcome,
            score=float(score.value) if score else None,
            costs={**reply.costs, **score.costs} if score else {},
            correct=score.correct if score else None,
            message=message[:2000],
            output_digest=answer.digest if outcome is Outcome.OK else "",
            spend=reply.spend,
            trace=self._store.put_trace(_trace(reply, answer)),
            detail={**(score.detail if score else {}), **_small(answer)},
        )

    async def _scored(
        self, instance: Instance, answer: Answer, graded: Sequence[BoxReply], *, plan: int, candidate: str
    ) -> Score | str:
        """Score an answer. A scorer that fails on it twice, though it still works on another one, shows that it is the answer."""
        try:
            judged = await self._scorer.score(instance, answer, graded, plan=plan, candidate=candidate)
        except ModelOutage:
            raise
        except InfrastructureError:
            if self._known is None:
                raise
            try:
                judged = await self._scorer.score(instance, answer, graded, plan=plan, candidate=candidate)
            except ModelOutage:
                raise
            except InfrastructureError as error:
                await self._scorer.score(*self._known, plan=plan)
                return f"the scorer fails on this answer, though it works on others: {error}"
        if not isinstance(judged, str):
            self._known = (instance, answer, graded)
        return judged

    async def _graded(self, instance: Instance, answer: Answer) -> tuple[BoxReply, ...]:
        grading: Grading | None = await self._scorer.grading(instance, answer)
        if grading is None:
            return ()
        job = Job(
            program=grading.program,
            interface=grading.interface,
            limits=grading.limits,
            trials=tuple(BoxTrial(str(n), value) for n, value in enumerate(grading.inputs)),
            environment=self._domain.environment,
            masks=tuple(self._domain.masks()),
            purpose="grade",
        )
        replies = {reply.key: reply async for reply in self._executor.run(job)}
        raise_infra(list(replies.values()))
        return tuple(replies[trial.key] for trial in job.trials)


def raise_infra(replies: Sequence[BoxReply]) -> None:
    """Raise `InfrastructureError` if one of the replies tells of a failure of our own, `BudgetReached` if of a cap."""
    failed = [r for r in replies if r.outcome is Outcome.INFRA]
    for reply in failed:
        if reply.cap:
            raise BudgetReached(
                f"{reply.message} Everything finished is stored. {raise_text(reply.cap)}",
                resource=reply.cap,
            )
    if failed:
        raise InfrastructureError(f"{len(failed)} trials could not be run: {failed[0].message}")


def _trace(reply: BoxReply, answer: Answer) -> Trace:
    """What is worth keeping apart: nothing, for a program that only returned a short answer."""
    trace = reply.trace
    if answer.files is not None:
        shown = {path: _shown(file.data) for path, file in answer.files.items()}
        return replace(trace, files=shown) if reply.spend.wall_ms or trace.stdout or trace.stderr else trace
    large = bool(answer.value is not None and not _small(answer))
    return replace(trace, answer=answer.value if large else None)


def _small(answer: Answer) -> dict[str, Any]:
    """The answer as part of the trial's row, where it is short."""
    if answer.files is not None or answer.value is None or len(canonical_json(answer.value)) > SMALL_ANSWER:
        return {}
    return {"prediction": answer.value}


def _shown(data: bytes) -> str:
    return data[:SHOWN_BYTES].decode("utf-8", "replace")
