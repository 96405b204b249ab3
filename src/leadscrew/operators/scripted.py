"""A proposer that follows a script: for tests, demonstrations and replays. Public, deterministic, no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from leadscrew.core.program import File, Patch, Program, apply
from leadscrew.core.proposal import Claim, Edge, Edit, Proposal
from leadscrew.errors import InfrastructureError, NotFoundError, ProgramError
from leadscrew.ports import Bench

Files = Mapping[str, str | bytes | File | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One scripted proposal: a whole `program`, or `change` (files to set, None to delete; or a patch) on a base.

    `base` is a candidate id; empty means the champion.
    """

    program: Program | None = None
    change: Files | Patch | None = None
    base: str = ""
    name: str = ""
    hypothesis: str = ""
    tags: tuple[str, ...] = ()


Act = Callable[[Edit, Bench], "Proposal | Sequence[Proposal]"]
Line = Step | Program | Patch | Files | Proposal | Act


class Scripted:
    """Proposes what the script holds for a plan.

    `script` maps plan numbers to their proposals, or lists them from plan 1 on: a step, a tree, a patch, a mapping of
    files to change on the champion, a ready proposal, or a function of plan and bench. Running out is an
    `InfrastructureError`: a script that is too short is the test's fault and never an idle iteration.
    """

    name = "scripted"

    def __init__(self, script: Sequence[Sequence[Line]] | Mapping[int, Sequence[Line]]) -> None:
        self.script: Mapping[int, Sequence[Line]] = (
            script if isinstance(script, Mapping) else {number: lines for number, lines in enumerate(script, 1)}
        )

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Return the proposals of this plan's script, all of them."""
        if bench.number not in self.script:
            raise InfrastructureError(
                f"the script has nothing for plan {bench.number}; it covers the plans "
                f"{', '.join(map(str, self.script)) or '(none)'}. Write longer scripts or ask for fewer iterations."
            )
        out: list[Proposal] = []
        for line in self.script[bench.number]:
            out.extend(_played(line, plan, bench))
        return out


def _played(line: Line, plan: Edit, bench: Bench) -> Sequence[Proposal]:
    if isinstance(line, Proposal):
        return [line]
    if isinstance(line, Program):
        line = Step(program=line)
    elif isinstance(line, (Patch, Mapping)):
        line = Step(change=line)
    elif not isinstance(line, Step):
        said = line(plan, bench)
        return [said] if isinstance(said, Proposal) else list(said)
    claim = Claim(line.hypothesis, line.tags)
    base = line.base or next(iter(plan.parents), "") or (bench.archive.champion.id if bench.archive.champion else "")
    edges = (Edge("base", base),) if base and (line.change is not None or line.base) else ()
    if line.change is None:
        return [Proposal(line.program, edges, claim, line.name)]
    try:
        tree = bench.program(base)
        changed = apply(tree, line.change) if isinstance(line.change, Patch) else tree.with_files(line.change)
    except (ProgramError, NotFoundError) as error:
        return [Proposal(None, (), claim, line.name, failure=f"the scripted change does not fit: {error}")]
    return [Proposal(changed, edges, claim, line.name)]
