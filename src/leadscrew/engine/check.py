"""What a proposal must pass before it is evaluated: region, size, parse, novelty, the interface smoke in a box."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leadscrew.core.program import EVERYTHING, Program, Region, diff
from leadscrew.core.proposal import Proposal
from leadscrew.core.task import Interface, Limits, ProgramEnvironment
from leadscrew.core.trial import Outcome
from leadscrew.engine.record import raise_infra
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Access, BoxTrial, Executor, Item, Job

MAX_SOURCE_BYTES = 512 << 10
MAX_CHAIN = 1000
"""Operands or dotted names in a row: far beyond what anybody writes, and below what brings a parser down."""
# A dotted name of 100,000 parts takes the parser minutes, and the syntax tree that LibCST makes of it has no end of levels.
_DOTS = re.compile(rb"(?:\.[\s\\]*+\w++[\s\\]*+){%d}" % MAX_CHAIN)


@dataclass(frozen=True, slots=True)
class Finding:
    """How a check ended: `outcome` ok, or the kind of failure with its reason."""

    outcome: Outcome = Outcome.OK
    reason: str = ""


PASSED = Finding()


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Bounds on a proposed tree, whether a tree already recorded is refused, and whether learners are smoke-tested."""

    max_files: int = 500
    max_bytes: int = 4 << 20
    refuse_known: bool = True
    smoke: bool = True


def check_static(
    proposal: Proposal,
    *,
    interface: Interface,
    settings: CheckSettings,
    base: Program | None = None,
    region: Region = EVERYTHING,
    known: str | None = None,
) -> Finding:
    """Check a proposal without running anything. `base` is the tree it started from, `known` a candidate with the same tree."""
    program = proposal.program
    if program is None or proposal.failure:
        outcome = Outcome.INVALID if proposal.outcome is Outcome.OK else proposal.outcome
        return Finding(outcome, proposal.failure or "the proposer returned no program")
    if known is not None and settings.refuse_known:
        return Finding(Outcome.INVALID, f"no change: candidate {known} already has exactly this tree")
    if len(program) > settings.max_files or program.size > settings.max_bytes:
        return Finding(
            Outcome.INVALID,
            f"the tree has {len(program)} files and {program.size} bytes; "
            f"at most {settings.max_files} files and {settings.max_bytes} bytes are taken",
        )
    if base is not None and region != EVERYTHING:
        outside = [path for path in diff(base, program).paths if not region.covers(path)]
        if outside:
            return Finding(Outcome.INVALID, f"changes outside the region that may change: {', '.join(outside[:5])}")
    return _check_entry(program, interface, base)


def _check_entry(program: Program, interface: Interface, base: Program | None) -> Finding:
    if interface.operation == "artifact" or interface.command:
        return PASSED
    exposed = program.part(interface.region)
    if interface.entry not in exposed:
        return Finding(Outcome.INVALID, f"the entry file {interface.entry!r} is missing from the tree")
    for path, file in exposed.items():
        if not path.endswith(".py") or (base is not None and path in base and base[path].data == file.data):
            continue
        fault = source_fault(file.data)
        if fault is not None:
            return Finding(Outcome.INVALID, f"{path}: {fault}")
    return PASSED


def source_fault(source: bytes) -> str | None:
    """Say why Python source cannot be parsed, or return None. The source is only parsed, never compiled or run."""
    if len(source) > MAX_SOURCE_BYTES:
        return f"{len(source)} bytes of source; at most {MAX_SOURCE_BYTES} are taken"
    if _DOTS.search(source):
        return f"a dotted name of more than {MAX_CHAIN} parts"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        return f"syntax error in line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"cannot be parsed: {error or type(error).__name__}"
    for node in ast.walk(tree):
        # `ast` holds these flat, but a concrete syntax tree nests them, one level of the stack each.
        chain = node.values if isinstance(node, ast.BoolOp) else getattr(node, "generators", ())
        if len(chain) > MAX_CHAIN:
            return (
                f"a chain of {len(chain)} parts in line {getattr(node, 'lineno', '?')}; at most {MAX_CHAIN} are taken"
            )
    return None


async def smoke(
    program: Program,
    executor: Executor,
    *,
    interface: Interface,
    limits: Limits,
    environment: ProgramEnvironment,
    masks: Sequence[str],
    items: Sequence[Item],
    access: Access | None = None,
) -> Finding:
    """Load the program in a box and try its operation: a cold-start prediction, learning on a few items, the round trip
    of its state. Raises `InfrastructureError` if the box fails."""
    exposed = program.part(interface.region)
    job = Job(
        program=exposed,
        interface=interface,
        limits=limits,
        trials=tuple(BoxTrial(f"smoke:{exposed.digest}", item.input, 0, item.dataset) for item in items[:1]),
        train=tuple(items),
        environment=environment,
        masks=tuple(masks),
        purpose="smoke",
        access=replace(access, learning=f"smoke:{access.candidate}") if access is not None else None,
    )
    async for reply in executor.run(job):
        if reply.cap:
            raise_infra([reply])
        if reply.outcome is Outcome.INFRA:
            raise InfrastructureError(f"the smoke test could not run: {reply.message}")
        if reply.outcome is not Outcome.OK:
            tail = reply.trace.stderr[-2000:]
            return Finding(reply.outcome, f"smoke test: {reply.message}" + (f"\n{tail}" if tail else ""))
    return PASSED
