"""A small run in a real store, written row by row: a seed, a baseline, an improvement, a failure, a held candidate."""

from __future__ import annotations

from array import array
from dataclasses import asdict
from pathlib import Path

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.config import config_from, to_dict, to_toml
from leadscrew.core.budget import Spend
from leadscrew.core.program import File, Program
from leadscrew.core.proposal import Candidate, Claim, Edge, Edit, Judgement, Proposal, Verdict
from leadscrew.core.task import Aggregate, Objective
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trace, Trial
from leadscrew.ports import StoredPlan

SEED = Program.of({"main.py": "def solve(x):\n    return x\n", "lib/old.py": "OLD = 1\n"})
OTHER = Program.of({"main.py": "def solve(x):\n    return 2 * x\n"})
BETTER = Program.of(
    {"main.py": "def solve(x):\n    return x + 1\n", "run.sh": File(b"#!/bin/sh\necho hi\n", executable=True)}
)
HELD = Program.of({"main.py": "def solve(x):\n    return x + 2\n"})
INSTANCES = ("a", "b", "c", "d")


def make_run(folder: Path, *, close: bool = True) -> Path:
    """Write the run into `folder` and return it."""
    config = config_from(
        {"domain": {"name": "docstrings"}, "run": {"out": str(folder), "seed": 3}, "budget": {"trials": 50}}, folder
    )
    store = SQLiteStore.create(folder, config=to_dict(config), seed=3, record_kinds={})
    (folder / "config.toml").write_text(to_toml(config), "utf-8")
    objective = Objective("accuracy", ceiling=1.0)
    store.add_event("created", {"run": "r", "when": "now", "objectives": [asdict(objective)]})
    store.add_plan(StoredPlan(0, Edit("found"), 0))
    _candidate(store, 0, 0, SEED, "seed", [0, 0, 1, 0])
    _candidate(store, 0, 1, OTHER, "double", [0, 1, 1, 0])
    store.add_judgement(
        0,
        Judgement(
            (Verdict("0.0", "rejected", "not better than 0.1"), Verdict("0.1", "promoted", "the best", champion=True))
        ),
    )
    store.add_plan(StoredPlan(1, Edit("genetic", count=3), 1))
    claim = Claim("adding one is right", ("arithmetic",), "+0.25", {"move": "constant"})
    _candidate(store, 1, 0, BETTER, "plus one", [1, 1, 1, 0], (Edge("base", "0.0"), Edge("donor", "0.1")), claim)
    store.add_candidate(
        Candidate(
            "1.1",
            1,
            1,
            "",
            "broken",
            "genetic",
            "failed",
            Outcome.INVALID,
            "main.py: invalid syntax",
            (Edge("base", "0.1"),),
        )
    )
    store.put_program(HELD)
    store.add_candidate(
        Candidate(
            "1.2",
            1,
            2,
            HELD.digest,
            "waits",
            "genetic",
            "held",
            Outcome.OK,
            "waiting for approval",
            (Edge("base", "0.0"),),
        )
    )
    verdicts = (
        Verdict("1.0", "promoted", "a gain beyond chance", champion=True, facts={"gain": 0.25, "p": 0.01}),
        Verdict("1.1", "failed", "main.py: invalid syntax"),
        Verdict("1.2", "held", "waiting for approval"),
    )
    store.add_judgement(1, Judgement(verdicts))
    store.add_event("note", {"text": "try subtraction"})
    store.add_event("sitting", {"seconds": 12.5})
    store.commit()
    if close:
        store.close()
    return folder


def _candidate(
    store: SQLiteStore,
    plan: int,
    index: int,
    program: Program,
    name: str,
    scores: list[float],
    edges: tuple[Edge, ...] = (),
    claim: Claim | None = None,
) -> None:
    claim = claim or Claim()
    store.add_proposal(plan, index, Proposal(program, edges, claim, name))
    for instance, score in zip(INSTANCES, scores, strict=True):
        store.add_trial(
            Trial(
                key=f"{program.digest}:{instance}",
                program=program.digest,
                instance=instance,
                split="val",
                dataset="main",
                repeat=0,
                purpose=Purpose.SEARCH,
                outcome=Outcome.OK,
                score=float(score),
                correct=bool(score),
                spend=Spend(trials=1, cpu_ms=2, wall_ms=3),
                trace=store.put_trace(
                    Trace(stdout=f"{name} on {instance}\n", calls=({"prompt": "p", "response": "r"},))
                ),
                detail={"prediction": score},
            )
        )
    mean = sum(scores) / len(scores)
    evaluation = Evaluation(
        program.digest, "val", 0, len(scores), INSTANCES, array("d", scores), Aggregate(mean, {}, {"main": mean})
    )
    store.add_candidate(
        Candidate(
            f"{plan}.{index}",
            plan,
            index,
            program.digest,
            name,
            "found" if plan == 0 else "genetic",
            "evaluated",
            Outcome.OK,
            "",
            edges,
            claim,
            {"val": evaluation},
        )
    )
