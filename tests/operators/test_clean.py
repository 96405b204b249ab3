"""The rules that proposers are told are kept: flagged or rejected, with the tree kept for whoever reads the history."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate, Claim, Edge, Edit, Proposal
from leadscrew.core.task import Objective
from leadscrew.core.trial import Outcome
from leadscrew.operators.clean import Clean
from leadscrew.operators.scripted import Scripted
from leadscrew.policies.hygiene import DataNames

BASE = Program.of({"main.py": "k = 1\n"})
TUNED = Program.of({"main.py": "k = 2\n"})
NAMING = Program.of({"main.py": "k = f('LawBench')\n"})


def bench() -> Any:
    archive = Archive((Objective("a"),))
    archive.add(Candidate("0.0", 0, 0, BASE.digest, "seed", "found", "evaluated", Outcome.OK))
    return SimpleNamespace(number=1, archive=archive, program=lambda i: BASE)


def of(program: Program | None, **more: Any) -> Proposal:
    return Proposal(program, (Edge("base", "0.0"),), **more)


async def clean(proposal: Proposal, **options: Any) -> Proposal:
    rules = Clean(Scripted([[proposal]]), DataNames(["LawBench"]))
    return (await rules.propose(Edit("scripted", options=options), bench()))[0]


async def test_tuned_constants_are_flagged_and_on_request_rejected() -> None:
    flagged = await clean(of(TUNED, claim=Claim(extra={"flags": ["made up"], "axis": "x"})))
    assert flagged.failure == ""
    assert flagged.claim.extra["flags"] == ["constants_only: changes only constants in main.py"]
    assert flagged.claim.extra["axis"] == "x"
    rejected = await clean(of(TUNED), constants_only="reject")
    assert "only constants" in rejected.failure
    assert rejected.outcome is Outcome.INVALID
    assert rejected.program == TUNED, "what was rejected can still be read"


async def test_planted_names_are_rejected_unless_the_plan_says_otherwise() -> None:
    assert "lawbench" in (await clean(of(NAMING))).failure
    assert (await clean(of(NAMING), dataset_names="flag")).failure == ""
    assert (await clean(of(NAMING), dataset_names="off")).claim.extra == {}


async def test_honest_and_failed_proposals_pass_through() -> None:
    honest = of(Program.of({"main.py": "k = f(1)\n"}))
    assert await clean(honest) == honest
    failed = of(None, failure="cut off")
    assert await clean(failed) == failed
    assert Clean(Scripted([]), DataNames([])).name == "scripted"
