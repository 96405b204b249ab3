"""The external proposer: the engine lays out the bench and waits; a person or any agent edits and submits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leadscrew.core.proposal import Edit, Proposal
from leadscrew.ports import Bench

ISOLATION = "outside a box"


class External:
    """Waits for a submission. What it brings was made outside a box, and every proposal says so in its claim."""

    name = "external"
    isolation = ISOLATION

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Lay out the bench, wait for one submitted folder and return what it holds, marked as unisolated."""
        bench.folder()
        return [_marked(proposal) for proposal in await bench.submission()]


class Submitted(External):
    """Takes what a person submitted without being asked: as `External`, in a plan of its own."""

    name = "submitted"


def _marked(proposal: Proposal) -> Proposal:
    extra = {**proposal.claim.extra, "isolation": ISOLATION}
    return replace(proposal, claim=replace(proposal.claim, extra=extra))
