"""A small run to write into any store: programs, trials, candidates and verdicts whose values are known."""

from __future__ import annotations

import math
from array import array

from leadscrew.core.budget import Spend
from leadscrew.core.call import Call, CallReply
from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate, Claim, Edge, Edit, Judgement, Proposal, Record, Verdict
from leadscrew.core.task import Aggregate
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trial
from leadscrew.ports import Store, StoredPlan

PROGRAM = Program.of({"main.py": "def solve(input):\n    return input\n"})
"""The tree of every sample candidate."""


def sample_trial(number: int, outcome: Outcome = Outcome.OK) -> Trial:
    """Return a trial of `PROGRAM` on the val instance `i<number>`."""
    ok = outcome is Outcome.OK
    return Trial(
        key=digest_of(["trial", number]),
        program=PROGRAM.digest,
        instance=f"i{number}",
        split="val",
        dataset="main",
        repeat=0,
        purpose=Purpose.SEARCH,
        outcome=outcome,
        score=0.5 * number if ok else None,
        costs={"tokens": 3.0} if ok else {},
        correct=True if ok else None,
        message="" if ok else "it broke",
        output_digest=digest_of(number) if ok else "",
        spend=Spend(1, 12, 15),
    )


def sample_call(number: int, *, occurrence: int = 0, plan: int = 0) -> Call:
    """Return the model call of `sample_trial(number)`; calls of one number differ by their occurrence alone."""
    body = {"model": "solver", "messages": [{"role": "user", "content": f"What is the sign of {number}?"}]}
    return Call(
        role="solver",
        plan=plan,
        candidate=f"{plan}.0",
        scope=digest_of(["trial", number]),
        request=digest_of(body),
        occurrence=occurrence,
        model="scripted/sample",
        body=body,
        instance=f"i{number}",
        share=digest_of(["solver", f"i{number}", 0]),
        bound=100,
        bound_micro_usd=50,
    )


def sample_reply(text: str = "plus") -> CallReply:
    """Return an ok reply that was paid for."""
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    return CallReply("ok", "upstream", body, 12, 1, Spend(calls=1, tokens_in=12, tokens_out=1, micro_usd=7), wall_ms=30)


def sample_candidate(plan: int, score: float = 0.5, edges: tuple[Edge, ...] = ()) -> Candidate:
    """Return candidate `<plan>.0`, evaluated on the instances `i0` to `i2`."""
    evaluation = Evaluation(
        PROGRAM.digest, "val", 1, 3, ("i0", "i1", "i2"), array("d", [0.0, math.inf, score]),
        Aggregate(score, {"tokens": 3.0}, {"main": score}), {"crash": 1},
    )  # fmt: skip
    return Candidate(
        f"{plan}.0", plan, 0, PROGRAM.digest, f"candidate {plan}", "genetic", "evaluated", Outcome.OK, "", edges,
        Claim("swap", ("a", "b"), "better", {"x": [1]}), {"val": evaluation}, "a log",
    )  # fmt: skip


def write_run(store: Store, *, plans: int, score: float = 0.5, trials: bool = True) -> None:
    """Write a run of so many judged plans with one candidate each, without committing."""
    for number in range(plans):
        candidate = sample_candidate(number, score, sample_edges(number))
        store.add_plan(StoredPlan(number, Edit("genetic"), max(0, number - 1)))
        store.add_proposal(number, 0, sample_proposal(candidate))
        if trials:
            store.add_trial(sample_trial(number))
        store.add_candidate(candidate)
        store.add_measured(number, candidate.id, {"value": 0.1})
        store.add_judgement(number, sample_judgement(number))
        store.add_event("done", {"plan": number})


def sample_edges(number: int) -> tuple[Edge, ...]:
    """Return the edges of candidate `<number>.0`."""
    return (Edge("parent", f"{number - 1}.0", {"why": "best"}), Edge("evidence", "0.0")) if number else ()


def sample_proposal(candidate: Candidate) -> Proposal:
    """Return the proposal from which a sample candidate was made."""
    return Proposal(PROGRAM, candidate.edges, candidate.claim, candidate.name, log=candidate.log)


def sample_judgement(number: int) -> Judgement:
    """Return the judgement of a plan: one verdict and one record."""
    verdict = Verdict(f"{number}.0", "kept", "as good as before", number == 0, {"delta": -0.1})
    return Judgement((verdict,), (Record("visit", f"{number}.0", {"times": number}),))
