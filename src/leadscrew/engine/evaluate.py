"""Evaluation: which trials are due, which are known already, running the rest in boxes, scoring, the ladder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leadscrew.core.budget import Account, Spend
from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Instance, Limits, Split
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trial, evaluation_of, trial_key
from leadscrew.engine.commit import Committer
from leadscrew.engine.meter import FINAL_PLAN, reached
from leadscrew.engine.record import Due, Recorder, raise_infra
from leadscrew.errors import InfrastructureError
from leadscrew.policies.ladder import passes, rung_sizes
from leadscrew.ports import Access, BoxReply, BoxTrial, Domain, Executor, Item, Job, Observer, Scorer, Store


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """`ladder` are the sizes of the rungs below the full split; `gate_margin` is how much worse than the reference a
    program may be on a rung and still climb; `fresh` gives every trial a box of its own."""

    ladder: tuple[int, ...] = ()
    gate_margin: float = 0.05
    repeats: int = 1
    fresh: bool = False
    train_log: bool = True
    """Whether what an online learner predicts on train is scored and stored."""


class Evaluator:
    """Turns a program into an evaluation. Every finished trial is durable before anything is decided on it.

    `splits` holds the instances that may be used now (never test before `finalize`). `models` pins what answers model
    calls, for the key; `access` is the right of programs to make some, None without a solver model. `runtime` names the
    interpreter and sandbox that programs run on.
    """

    def __init__(
        self,
        *,
        domain: Domain,
        splits: Mapping[Split, Sequence[Instance]],
        executor: Executor,
        scorer: Scorer,
        store: Store,
        committer: Committer,
        seed: int,
        settings: EvaluationSettings = EvaluationSettings(),
        limits: Limits | None = None,
        runtime: str = "",
        models: str = "",
        access: Access | None = None,
        observe: Observer = lambda event: None,
    ) -> None:
        self.domain = domain
        self.settings = settings
        self.splits = splits
        self.executor, self.scorer, self.store = executor, scorer, store
        self._seed, self._access = seed, access
        self._limits = limits or domain.limits
        self._interface = domain.interface
        self.operation = self._interface.operation
        self.learns = self.operation == "predict"
        self.recorder = Recorder(domain, executor, scorer, store, committer, observe)
        train = splits.get("train", ()) if self.learns else ()
        self._train = tuple(Item(i.id, i.input, i.expected, i.dataset) for i in train)
        self.train_by_id = {i.id: i for i in train}
        self.logs_train = self.learns and self._interface.mode == "online" and settings.train_log
        self._fixed = {
            "scorer": domain.scorer_digest(),
            "train": digest_of([[t.id, t.input, t.expected, t.dataset] for t in self._train]) if self._train else "",
            "environment": digest_of([repr(domain.environment), repr(self._interface), runtime]),
            "limits": digest_of(repr(self._limits)),
            "models": models,
        }
        self._inputs: dict[str, str] = {}
        self._order: dict[Split, tuple[Instance, ...]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    # -- what is due ---------------------------------------------------------------------------

    def instances(self, split: Split) -> tuple[Instance, ...]:
        """Return a split in the run's seeded order: a rung is a prefix of it."""
        if split not in self._order:
            ranked = sorted(self.splits[split], key=lambda i: digest_of([self._seed, split, i.id]))
            self._order[split] = tuple(ranked)
        return self._order[split]

    def due(self, exposed: Program, instances: Sequence[Instance], repeats: Sequence[int]) -> list[Due]:
        """Return the trials that an evaluation needs, in order."""
        return [self._due(exposed.digest, instance, repeat) for repeat in repeats for instance in instances]

    def _due(self, program: str, instance: Instance, repeat: int) -> Due:
        known = self._inputs.get(instance.id)
        if known is None:
            known = self._inputs[instance.id] = digest_of([instance.input, instance.dataset])
        seed = self.trial_seed(instance.id, repeat)
        key = trial_key(
            program=program, instance=instance.id, input_digest=known, seed=seed, repeat=repeat, **self._fixed
        )
        return Due(key, instance, repeat)

    def trial_seed(self, instance: str, repeat: int) -> int:
        """Return the seed of a trial: the same for every program, so that programs meet the same luck."""
        return int(digest_of([self._seed, instance, repeat])[:12], 16)

    # -- evaluating ----------------------------------------------------------------------------

    async def evaluate(
        self,
        program: Program,
        account: Account,
        *,
        split: Split = "val",
        purpose: Purpose = Purpose.SEARCH,
        instances: Sequence[str] = (),
        repeats: Sequence[int] | None = None,
        reference: Mapping[str, float] | None = None,
        fresh: bool | None = None,
        plan: int = 0,
    ) -> dict[Split, Evaluation]:
        """Evaluate on a split and return the evaluation by split (train too where a learner predicts it online).

        With `reference` (value per instance, normally the champion's) the ladder is climbed rung by rung. Model calls go on
        the account of `plan`. Raises
        `BudgetReached` at a cap and `InfrastructureError` when our own parts fail; finished trials are stored either way.
        """
        exposed = program.part(self._interface.region)
        everything = self.instances(split)
        if instances:
            wanted = set(instances)
            everything = tuple(i for i in everything if i.id in wanted)
        counts = tuple(repeats) if repeats is not None else tuple(range(self.settings.repeats))
        ladder = self.settings.ladder if reference is not None and not instances else ()
        sizes = rung_sizes(len(everything), ladder)
        async with self._locks.setdefault(exposed.digest, asyncio.Lock()):
            boxed = self.settings.fresh if fresh is None else fresh
            work = _Work(self, exposed, account, purpose, fresh=boxed, plan=plan)
            try:
                for rung, size in enumerate(sizes):
                    due = self.due(exposed, everything[:size], counts)
                    trials = await work.finish(due, everything if self.learns else everything[:size], counts)
                    last = rung == len(sizes) - 1
                    found = self._fold(exposed, split, trials, rung, passed=last)
                    if not last and not self._climbs(found, reference or {}):
                        break
                out: dict[Split, Evaluation] = {split: found}
                train = [t for d in work.train_due if (t := self.store.find_trial(d.key)) is not None]
                if train and len(train) == len(work.train_due):
                    out["train"] = self._fold(exposed, "train", train, rung, passed=True)
                return out
            finally:
                await work.close()

    async def recheck(self, program: Program, split: Split, count: int) -> tuple[int, list[str]]:
        """Run `count` known trials again, each in a fresh box; return how many, and the instances that came out otherwise.

        Raises `InfrastructureError` if a box fails. Nothing is stored as a trial: what is compared is the answer.
        """
        exposed = program.part(self._interface.region)
        everything = self.instances(split)
        stride = max(1, len(everything) // count)
        # Taken from the end of the order: state that was carried over has had time to gather there.
        chosen = everything[::-stride][:count]
        due = [d for d in self.due(exposed, chosen, (0,)) if self.store.find_trial(d.key) is not None]
        if not due:
            return 0, []
        wrong = []
        names = {d.key: d for d in due}
        acts = self.operation == "act"

        async def step(key: str, action: Any) -> tuple[Any, bool]:
            return await self.scorer.step(
                names[key].instance, f"recheck:{exposed.digest}:{key}", action, action is None
            )

        job = self.job(exposed, due, fresh=True, plan=FINAL_PLAN)
        async for reply in self.executor.run(job, step if acts else None):
            if reply.train:
                continue
            if acts:
                result = await self.scorer.result(f"recheck:{exposed.digest}:{reply.key}")
                reply = replace(reply, answer=Answer(value=result))
            known = self.store.find_trial(reply.key)
            assert known is not None
            raise_infra([reply])
            again = reply.answer.digest if reply.outcome is Outcome.OK else reply.outcome.value
            before = known.output_digest or known.outcome.value
            if again != before and known.outcome is not Outcome.BAD_OUTPUT:
                wrong.append(names[reply.key].instance.id)
        return len(due), wrong

    def _climbs(self, found: Evaluation, reference: Mapping[str, float]) -> bool:
        return passes(found.by_instance(), reference, self.domain.objectives[0], margin=self.settings.gate_margin)

    def _fold(self, exposed: Program, split: Split, trials: Sequence[Trial], rung: int, *, passed: bool) -> Evaluation:
        aggregate = self.domain.aggregate(trials, len(trials))
        primary = self.domain.objectives[0]
        return evaluation_of(
            exposed.digest, split, trials, primary, aggregate, planned=len(trials), rung=rung, passed=passed
        )

    # -- boxes ---------------------------------------------------------------------------------

    def access(self, exposed: Program, plan: int) -> Access | None:
        """Return the right of a program to call the solver model on the account of a plan, or None without one.

        What it calls while learning has a scope of its own, the same in every box: it is asked and paid for once.
        """
        if self._access is None:
            return None
        learning = "learn:" + digest_of([exposed.digest, *self._fixed.values()])
        return replace(self._access, plan=plan, candidate=exposed.digest, learning=learning)

    def job(self, exposed: Program, due: Sequence[Due], *, fresh: bool, plan: int) -> Job:
        """Return the job that runs these trials."""
        return Job(
            program=exposed,
            interface=self._interface,
            limits=self._limits,
            trials=tuple(
                BoxTrial(
                    d.key,
                    d.instance.input,
                    self.trial_seed(d.instance.id, d.repeat),
                    d.instance.dataset,
                    f"{d.instance.split}:{d.instance.id}",
                    d.repeat,
                )
                for d in due
            ),
            train=self._train,
            environment=self.domain.environment,
            masks=tuple(self.domain.masks()),
            fresh=fresh,
            access=self.access(exposed, plan),
        )


class _Work:
    """One program being evaluated. A learner's box stays open between rungs, so that it learns once."""

    def __init__(
        self, owner: Evaluator, exposed: Program, account: Account, purpose: Purpose, *, fresh: bool, plan: int
    ) -> None:
        self._owner, self._exposed, self._account = owner, exposed, account
        self._purpose, self._fresh, self._plan = purpose, fresh, plan
        self._stream: Any = None
        self._early: dict[str, BoxReply] = {}
        self._streaming = False
        self._reserved: set[str] = set()
        self._sessions: dict[str, Instance] = {}
        self.train_due: list[Due] = []
        """What an online learner predicts of train, in order; part of its evaluation when it is first searched."""
        if owner.logs_train and purpose is Purpose.SEARCH:
            self.train_due = owner.due(exposed, owner.splits["train"], (0,))

    async def finish(self, due: Sequence[Due], whole: Sequence[Instance], repeats: Sequence[int]) -> list[Trial]:
        """Return the trials of `due` in order, running those that are not in the store. `whole` is what a later rung
        may still ask for: a learner gets all of it as one job."""
        owner = self._owner
        known = {d.key: owner.store.find_trial(d.key) for d in due}
        missing = [d for d in due if known[d.key] is None]
        allowed: list[Due] = []
        short = None
        for item in missing:
            short = self._account.reserve(trials=1)
            if short is not None:
                break
            allowed.append(item)
        self._reserved = {item.key for item in allowed}
        train = {d.key: d for d in self.train_due if owner.store.find_trial(d.key) is None}
        try:
            if allowed or (train and not missing):
                for done in await self._run(allowed, whole, repeats, train):
                    known[done.key] = done
        finally:
            for _ in self._reserved:
                self._account.settle(Spend(), trials=1)
            self._reserved = set()
        if short is not None:
            caps = self._account.caps if self._account.caps.trials is not None else _root(self._account).caps
            raise reached(short, getattr(caps, short))
        return [trial for d in due if (trial := known[d.key]) is not None]

    async def _run(
        self, due: Sequence[Due], whole: Sequence[Instance], repeats: Sequence[int], train: dict[str, Due]
    ) -> list[Trial]:
        """Run trials and return them stored; raise for infrastructure failures only after all others are durable.

        `train` are the predictions on train that are not stored yet; they come by the way.
        """
        owner = self._owner
        if owner.operation == "artifact":
            replies = (BoxReply(d.key, Outcome.OK, Answer(files=self._exposed), spend=Spend(trials=1)) for d in due)
            return list(await asyncio.gather(*(self._record(d, r) for d, r in zip(due, replies, strict=True))))
        if self._stream is None or not owner.learns:
            await self._open(due, whole, repeats)
        waiting = {d.key: d for d in due}
        tasks = [
            asyncio.create_task(self._record(waiting.pop(key), self._early.pop(key)))
            for key in list(waiting)
            if key in self._early
        ]
        self._streaming = True
        infra: list[BoxReply] = []
        held: list[tuple[Due, BoxReply]] = []
        try:
            while waiting or train:
                reply: BoxReply | None = await anext(self._stream, None)
                if reply is None and not waiting:
                    break
                if reply is None:
                    raise InfrastructureError(f"the executor gave no reply for {len(waiting)} trials")
                if reply.outcome is Outcome.INFRA:
                    infra.append(reply)
                    waiting.pop(reply.key, None)
                    train.pop(reply.key if not reply.train else self._train_key(reply), None)
                    if owner.access(self._exposed, self._plan) is not None and not reply.cap:
                        # The evaluation is incomplete anyway; asking a model that is down for the rest helps nobody.
                        # At a cap nothing more is paid for, and what was paid for already comes to its end.
                        break
                elif reply.train:
                    row = train.pop(self._train_key(reply), None)
                    if row is not None:
                        free = replace(reply, spend=replace(reply.spend, trials=0))
                        tasks.append(asyncio.create_task(self._record(row, free)))
                elif reply.key not in waiting:
                    self._early[reply.key] = reply
                elif owner.recorder.grades:
                    held.append((waiting.pop(reply.key), reply))
                else:
                    tasks.append(asyncio.create_task(self._record(waiting.pop(reply.key), reply)))
            if held:
                # Answers are executed only when no process of the program that gave them is left.
                await self.close()
                tasks += [asyncio.create_task(self._record(d, reply)) for d, reply in held]
        finally:
            self._streaming = False
            owner.recorder.hurry()
            # What a box has answered is kept, even if we are about to stop.
            done = await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))
        raise_infra(infra)
        for result in done:
            if isinstance(result, BaseException):
                raise result
        return [trial for trial in done if isinstance(trial, Trial)]

    def _train_key(self, reply: BoxReply) -> str:
        instance = self._owner.train_by_id.get(reply.key)
        return self._owner.due(self._exposed, (instance,), (0,))[0].key if instance is not None else ""

    async def _open(self, due: Sequence[Due], whole: Sequence[Instance], repeats: Sequence[int]) -> None:
        await self.close()
        owner = self._owner
        if owner.learns:
            due = [d for d in owner.due(self._exposed, whole, repeats) if owner.store.find_trial(d.key) is None]
        self._sessions = {d.key: d.instance for d in due}
        steps = self._step if owner.operation == "act" else None
        job = owner.job(self._exposed, due, fresh=self._fresh, plan=self._plan)
        self._stream = owner.executor.run(job, steps)

    async def _record(self, due: Due, reply: BoxReply) -> Trial:
        owner = self._owner
        if owner.operation == "act":
            result = await owner.scorer.result(self._session(due.key))
            if reply.outcome is Outcome.OK:
                reply = replace(reply, answer=Answer(value=result))
        trial = await owner.recorder.record(
            due, self._exposed.digest, self._purpose, reply, self._streams, plan=self._plan
        )
        if due.key in self._reserved:
            self._reserved.discard(due.key)
            # Model calls were settled where they were made: at the gateway.
            own = Spend(trial.spend.trials, trial.spend.cpu_ms, trial.spend.wall_ms)
            self._account.settle(own, trials=1)
        return trial

    async def _step(self, key: str, action: Any) -> tuple[Any, bool]:
        return await self._owner.scorer.step(self._sessions[key], self._session(key), action, action is None)

    def _streams(self) -> bool:
        return self._streaming

    def _session(self, key: str) -> str:
        return f"{self._exposed.digest}:{key}"

    async def close(self) -> None:
        """End the box that is still open."""
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


def _root(account: Account) -> Account:
    while account.parent is not None:
        account = account.parent
    return account
