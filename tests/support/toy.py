"""A domain small enough to reason about, and the parts that run a method on it without a box."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Caps
from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Instance, Interface, Objective, Score, Split
from leadscrew.engine.commit import Committer
from leadscrew.engine.evaluate import EvaluationSettings, Evaluator
from leadscrew.engine.loop import Engine, LoopSettings
from leadscrew.engine.meter import Meter
from leadscrew.errors import InfrastructureError
from leadscrew.methods.harness import Harness, HarnessSettings
from leadscrew.operators.found import Found
from leadscrew.ports import BadAnswer, BoxReply, Domain, Grading, Job, Proposer


class Digits(Domain):
    """The program is a file `digits.txt`; it scores on instance i when its i-th character is the digit i mod 10."""

    name = "digits"
    interface = Interface("artifact", entry="digits.txt")
    objectives = (Objective("matches", ceiling=1.0),)

    def __init__(self, size: int = 12) -> None:
        self.size = size

    def instances(self, split: Split) -> Sequence[Instance]:
        return [Instance(f"{split}-{i}", split, {"place": i}, str(i % 10)) for i in range(self.size)]

    def seed(self) -> Program:
        return digits("-" * self.size)

    def baselines(self) -> dict[str, Program]:
        return {"dashes": self.seed(), "first": digits("0" + "-" * (self.size - 1))}

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        assert answer.files is not None
        text = answer.files.text("digits.txt")
        if len(text) <= instance.input["place"]:
            raise BadAnswer("the text is too short")
        hit = text[instance.input["place"]] == instance.expected
        return Score(float(hit), correct=hit)


def digits(text: str) -> Program:
    """Return the program of one text."""
    return Program.of({"digits.txt": text})


class DirectScorer:
    """The scorer port in this process. `outages` scores fail first, as if the scorer's process had died."""

    def __init__(self, domain: Domain, outages: int = 0) -> None:
        self.domain, self.outages, self.calls = domain, outages, 0

    async def score(
        self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = (), *, plan: int = 0, candidate: str = ""
    ) -> Score | str:
        self.calls += 1
        await asyncio.sleep(0)
        if self.outages > 0:
            self.outages -= 1
            raise InfrastructureError("the scorer is away")
        try:
            return self.domain.score(instance, answer, graded)
        except BadAnswer as error:
            return str(error)

    async def grading(self, instance: Instance, answer: Answer) -> Grading | None:
        return self.domain.grade(instance, answer)

    async def step(self, instance: Instance, session: str, action: Any, first: bool) -> tuple[Any, bool]:
        raise AssertionError("no environment here")

    async def result(self, session: str) -> Any:
        raise AssertionError("no environment here")

    async def call(self, function: str, *args: Any) -> Any:
        return getattr(self.domain, function)(*args)

    async def close(self) -> None:
        pass


class NoBoxes:
    """The executor port where nothing may run: artifact domains need no box."""

    workers = 1

    async def run(self, job: Job, steps: Any = None) -> AsyncIterator[BoxReply]:
        raise AssertionError("no box was to be used")
        yield

    async def close(self) -> None:
        pass


class Parts:
    """An engine over a run folder with everything that a test may want to look at."""

    def __init__(
        self,
        folder: Path,
        proposer: Proposer,
        *,
        domain: Domain | None = None,
        settings: HarnessSettings = HarnessSettings(iterations=3, candidates=1, promotion="published"),
        loop: LoopSettings = LoopSettings(infra_pause_s=0),
        caps: Caps = Caps(),
        seed: int = 0,
        evaluation: EvaluationSettings = EvaluationSettings(),
        outages: int = 0,
        unseal: Any = None,
        observe: Any = lambda event: None,
    ) -> None:
        self.domain = domain or Digits()
        self.method = Harness(settings, proposer=proposer.name)
        fresh = not (folder / "run.db").exists()
        kinds = self.method.record_kinds
        self.store = (
            SQLiteStore.create(folder, config={}, seed=seed, record_kinds=kinds)
            if fresh
            else SQLiteStore.open(folder, record_kinds=kinds)
        )
        self.scorer = DirectScorer(self.domain, outages)
        self.committer = Committer(self.store)
        seconds = max((float(d["seconds"]) for _, _, d in self.store.events("sitting")), default=0.0)
        self.meter = Meter(caps, before=self.store.spend(), seconds_before=seconds)
        splits: dict[Split, Sequence[Instance]] = {s: self.domain.instances(s) for s in ("train", "val")}
        self.evaluator = Evaluator(
            domain=self.domain,
            splits=splits,
            executor=NoBoxes(),
            scorer=self.scorer,
            store=self.store,
            committer=self.committer,
            seed=seed,
            settings=evaluation,
            observe=observe,
        )
        self.engine = Engine(
            method=self.method,
            domain=self.domain,
            proposers={proposer.name: proposer, "found": Found(), "submitted": Inboxed()},
            evaluator=self.evaluator,
            executor=NoBoxes(),
            store=self.store,
            committer=self.committer,
            meter=self.meter,
            seed=seed,
            settings=loop,
            unseal=unseal or (lambda message, bench: []),
            observe=observe,
        )

    def run(self) -> str:
        """Run the loop to its end and close the store, whatever happens."""
        try:
            return asyncio.run(self.engine.run())
        finally:
            self.store.close()


class Inboxed:
    """Takes what lies in the inbox."""

    name = "submitted"

    async def propose(self, plan: Any, bench: Any) -> Any:
        return await bench.submission()
