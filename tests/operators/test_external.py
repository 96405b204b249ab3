"""The external proposer lays out the bench, waits, and marks what comes back as made outside a box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leadscrew.core.program import Program
from leadscrew.core.proposal import Claim, Edit, Proposal
from leadscrew.operators.external import External, Submitted


class Table:
    """A bench that notes what is asked of it."""

    def __init__(self, proposals: Sequence[Proposal]) -> None:
        self.proposals, self.asked = proposals, []  # type: ignore[var-annotated]

    def folder(self) -> None:
        self.asked.append("folder")

    async def submission(self) -> Sequence[Proposal]:
        self.asked.append("submission")
        return self.proposals


async def test_it_lays_out_first_then_waits_and_marks_everything() -> None:
    claim = Claim("h", extra={"axis": "exploration", "isolation": "in a box, I swear"})
    table: Any = Table([Proposal(Program.of({"a": "1"}), claim=claim), Proposal(None, failure="nothing")])
    taken = await External().propose(Edit("external"), table)
    assert table.asked == ["folder", "submission"]
    assert [p.claim.extra["isolation"] for p in taken] == ["outside a box"] * 2
    assert taken[0].claim.extra["axis"] == "exploration"
    assert taken[1].failure == "nothing"


def test_unasked_submissions_have_a_proposer_of_their_own() -> None:
    assert (External().name, Submitted().name) == ("external", "submitted")
