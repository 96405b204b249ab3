"""The scripted proposer plays what it was given, and says when the script is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program, diff
from leadscrew.core.proposal import Candidate, Edit, Proposal, Verdict
from leadscrew.core.task import Objective
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError
from leadscrew.operators.scripted import Scripted, Step

BASE = Program.of({"main.py": "x = 0\n", "old.py": ""})


def bench(number: int = 1) -> Any:
    archive = Archive((Objective("a"),))
    archive.add(Candidate("0.0", 0, 0, BASE.digest, "seed", "found", "evaluated", Outcome.OK))
    archive.judge(Verdict("0.0", "promoted", "", champion=True))
    return SimpleNamespace(number=number, archive=archive, program=lambda i: BASE)


async def test_every_kind_of_line() -> None:
    whole = Program.of({"main.py": "x = 9\n"})
    changed = Program.of({"main.py": "x = 1\n"})
    script = [
        [
            whole,
            {"main.py": "x = 1\n", "old.py": None},
            diff(BASE, changed),
            Step(change={"main.py": "x = 2\n"}, base="0.0", name="n", hypothesis="h", tags=("t",)),
            Proposal(None, failure="f"),
            lambda plan, bench: Proposal(whole, name=f"of {bench.number}"),
            lambda plan, bench: [Proposal(whole), Proposal(whole)],
        ]
    ]
    out = list(await Scripted(script).propose(Edit("scripted", 9), bench()))
    assert [p.program for p in out[:3]] == [whole, changed, changed]
    assert [tuple(e.source for e in p.edges) for p in out[:4]] == [(), ("0.0",), ("0.0",), ("0.0",)]
    assert (out[3].name, out[3].claim.hypothesis, out[3].claim.tags) == ("n", "h", ("t",))
    assert out[4].failure == "f"
    assert out[5].name == "of 1"
    assert len(out) == 8


async def test_a_patch_for_another_program_is_a_failed_proposal() -> None:
    other = Program.of({"main.py": "y\n"})
    out = await Scripted([[diff(other, BASE)]]).propose(Edit("scripted"), bench())
    assert out[0].program is None
    assert "does not fit" in out[0].failure


async def test_running_out_is_never_an_idle_iteration() -> None:
    with pytest.raises(InfrastructureError, match="nothing for plan 2"):
        await Scripted([[BASE]]).propose(Edit("scripted"), bench(2))
    assert await Scripted({2: [BASE]}).propose(Edit("scripted"), bench(2))
