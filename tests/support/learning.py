"""A learner's domain without a box: programs are one-word rules that a fake executor follows, model calls included."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Caps, Spend
from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Instance, Interface, Objective, Score, Split
from leadscrew.core.trial import Outcome, Trace
from leadscrew.engine.check import CheckSettings
from leadscrew.engine.commit import Committer
from leadscrew.engine.evaluate import EvaluationSettings, Evaluator
from leadscrew.engine.history import History
from leadscrew.engine.loop import Engine, LoopSettings
from leadscrew.engine.meter import Meter
from leadscrew.methods.harness import Harness, HarnessSettings
from leadscrew.operators.found import Found
from leadscrew.ports import BoxReply, Domain, Event, Job, Proposer
from support.toy import DirectScorer, Inboxed

SETS = ("colours", "fruits")
TEST_SECRET = "sealed-input"


class Labels(Domain):
    """Two data sets of words with a label each: the first letter decides. The test split carries a telling input."""

    name = "labels"

    def __init__(self, mode: Literal["online", "offline"] = "online", train: int = 4, val: int = 6) -> None:
        self.interface = Interface("predict", entry="rule.txt", mode=mode)
        self.objectives = (Objective("accuracy", ceiling=1.0), Objective("context_chars", "min"))
        self.sizes: dict[Split, int] = {"train": train, "val": val, "test": 5}

    def instances(self, split: Split) -> Sequence[Instance]:
        out = []
        for name in SETS:
            for i in range(self.sizes[split]):
                word = f"{'abc'[i % 3]}{i}-{name}" + (f"-{TEST_SECRET}" if split == "test" else "")
                out.append(Instance(f"{split}:{name}:{i}", split, {"word": word}, word[0].upper(), name))
        return out

    def baselines(self) -> dict[str, Program]:
        return {"majority": rule("majority"), "always-b": rule("always B")}

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        right = answer.value == instance.expected
        return Score(float(right), {"context_chars": float(len(str(answer.value)))}, right)


def rule(text: str) -> Program:
    """Return the program that follows a rule: `majority`, `always X`, `letter`, `first N` or `crash`."""
    return Program.of({"rule.txt": text})


class Rules:
    """The executor port, following rules instead of running code. `spied` notes what each learner knew at each answer."""

    workers = 1

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.spied: list[tuple[str, bool, int]] = []

    async def run(self, job: Job, steps: Any = None) -> AsyncIterator[BoxReply]:
        self.jobs.append(job)
        text = job.program.text("rule.txt")
        for name in dict.fromkeys([t.dataset for t in job.train] + [t.dataset for t in job.trials]):
            learnt: Counter[str] = Counter()
            for item in (t for t in job.train if t.dataset == name):
                if job.interface.mode == "online":
                    self.spied.append((name, True, sum(learnt.values())))
                    yield self.reply(item.id, text, item.input, learnt, train=True)
                learnt[item.expected] += 1
            for trial in (t for t in job.trials if t.dataset == name):
                self.spied.append((name, False, sum(learnt.values())))
                yield self.reply(trial.key, text, trial.input, learnt)

    def reply(self, key: str, text: str, given: Any, learnt: Counter[str], *, train: bool = False) -> BoxReply:
        spend = Spend(trials=1)
        if text == "crash":
            return BoxReply(
                key, Outcome.CRASH, message="boom", trace=Trace(stderr="Traceback: boom\n"), train=train, spend=spend
            )
        word = given["word"]
        if text == "majority":
            answer = max(sorted(learnt), key=lambda k: learnt[k]) if learnt else "A"
        elif text.startswith("always "):
            answer = text.split()[1]
        elif text.startswith("first "):
            answer = word[0].upper() if int(word[1]) < int(text.split()[1]) else "?"
        else:
            answer = word[0].upper()
        call = {"prompt": f"Which label has {word}?", "response": f"I say {answer}"}
        return BoxReply(key, Outcome.OK, Answer(answer), trace=Trace(calls=(call,)), train=train, spend=spend)

    async def close(self) -> None:
        pass


class Workshop:
    """A harness run on `Labels` over a real store, with its history kept up to date."""

    def __init__(
        self,
        folder: Path,
        proposer: Proposer,
        *,
        settings: HarnessSettings,
        domain: Labels | None = None,
        in_flight: int = 1,
        unseal: Any = None,
        layout: Any = None,
    ) -> None:
        self.domain = domain or Labels()
        self.method = Harness(settings, proposer=proposer.name)
        fresh = not (folder / "run.db").exists()
        kinds = self.method.record_kinds
        self.store = (
            SQLiteStore.create(folder, config={}, seed=0, record_kinds=kinds)
            if fresh
            else SQLiteStore.open(folder, record_kinds=kinds)
        )
        self.executor = Rules()
        committer = Committer(self.store)
        splits: dict[Split, Sequence[Instance]] = {s: self.domain.instances(s) for s in ("train", "val")}
        evaluator = Evaluator(
            domain=self.domain,
            splits=splits,
            executor=self.executor,
            scorer=DirectScorer(self.domain),
            store=self.store,
            committer=committer,
            seed=0,
            settings=EvaluationSettings(),
        )
        self.history = History(self.store, self.domain, self.method.evidence, splits=splits)
        self.engine = Engine(
            method=self.method,
            domain=self.domain,
            proposers={proposer.name: proposer, "found": Found(), "submitted": Inboxed()},
            evaluator=evaluator,
            executor=self.executor,
            store=self.store,
            committer=committer,
            meter=Meter(Caps(), before=self.store.spend(), seconds_before=0.0),
            seed=0,
            settings=LoopSettings(plans_in_flight=in_flight, infra_pause_s=0),
            check=CheckSettings(smoke=False),
            unseal=unseal or (lambda message, bench: []),
            layout=layout,
            observe=self._seen,
        )

    def _seen(self, event: Event) -> None:
        if event.kind == "verdict":
            self.history.update(self.engine.archive)

    def run(self) -> str:
        """Run to the end and close the store."""
        import asyncio

        try:
            return asyncio.run(self.engine.run())
        finally:
            self.store.close()
