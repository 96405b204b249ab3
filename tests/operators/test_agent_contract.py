"""One contract for every back-end: four styles of command-line agents, and the built-in coder over a scripted model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.core.proposal import Proposal
from leadscrew.errors import SandboxUnavailable
from leadscrew.operators.coder import CoderProposer
from leadscrew.operators.command import CommandProposer
from leadscrew.ports import Access, Proposer
from support.agents import GOOD, agent
from support.benches import Laboratory
from support.coder_script import Step, Working, deliverable, shell, write
from support.gateway_world import World, role

STYLES = ("claude", "codex", "opencode", "mini", "text", "coder")
SUMMARY = "/bench/history/evolution_summary.jsonl"
ENTRIES = [
    {"name": name, "file": f"candidates/{name}", "hypothesis": f"{name} is better", "base_system": "0.1"}
    for name in ("first", "second")
]
BREAK = 'open("/work/pending_eval.json", "w").write("[1, 2")'
MEND = f'if "as you left it" in sys.argv[1]:\n    {GOOD}\nelse:\n    {BREAK}'
BODIES = {
    "delivers": GOOD,
    "mends": MEND,
    "stays broken": BREAK,
    "says nothing": "pass",
    "stalls": GOOD + "\nos.execvp('sleep', ['sleep', '1005.5'])",
}
READ: tuple[Step, ...] = (("read", {"path": SUMMARY}),)
FILES = (
    write("candidates/first/digits.txt", "012---------"),
    write("candidates/second/digits.txt", "0123--------"),
    deliverable(*ENTRIES),
)
BROKEN = write("pending_eval.json", "[1, 2")
STEPS: Mapping[str, tuple[Step, ...]] = {
    "delivers": READ + FILES,
    "mends": (*READ, BROKEN),
    "stays broken": (*READ, BROKEN),
    "says nothing": READ,
    "stalls": (*READ, *FILES, shell("exec sleep 1005.5")),
}


class Scripted(Working):
    """Follows the steps of a case; asked to mend, it does so where the case says so."""

    def __init__(self, case: str) -> None:
        super().__init__(STEPS[case])
        self.case = case

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        mending = self.case == "mends" and "as you left it" in json.dumps(request["messages"])
        self.steps = FILES if mending else STEPS[self.case]
        return await super().complete(request)


@pytest.fixture
async def laboratory(tmp_path: Path, style: str, case: str) -> AsyncIterator[Laboratory]:
    sandbox = BubblewrapSandbox()
    try:
        sandbox.probe()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    world = World(tmp_path / "world", {"proposer": role(Scripted(case), "proposer", max_tokens=512)})
    access = {"proposer": Access("proposer")}
    made = await Laboratory(tmp_path / "run", sandbox, gateway=world.gateway, access=access).begin()
    yield made
    await made.close()
    await world.close()


def proposer(style: str, case: str) -> Proposer:
    more: dict[str, Any] = {"repair": 1, "timeout_s": 6 if case == "stalls" else 60}
    if style == "coder":
        return CoderProposer(**more)
    events = ".agent/trajectory.json" if style == "mini" else ""
    files = {"agent.py": agent(style, BODIES[case])}
    command = ["python3", "/tools/agent.py", "{prompt}"]
    return CommandProposer(command, files=files, stream=style, events_file=events, **more)


@pytest.mark.parametrize(
    ("style", "case"),
    # A stall takes its time and is no matter of style.
    [(s, c) for s in STYLES for c in BODIES if c != "stalls" or s in ("claude", "coder")],
)
async def test_the_contract(laboratory: Laboratory, style: str, case: str) -> None:
    bench = laboratory.bench()
    proposals: Sequence[Proposal] = await proposer(style, case).propose(bench.plan, bench)
    sessions = sorted(path.name for path in (laboratory.folder / "sessions").iterdir())
    metas = [json.loads((laboratory.folder / "sessions" / s / "meta.json").read_text()) for s in sessions]
    if case in ("stays broken", "says nothing"):
        (failed,) = proposals
        assert failed.program is None
        assert ("is no valid JSON" if case == "stays broken" else "is missing") in failed.failure
        assert sessions == ["2-1", "2-2"]
        return
    assert [(p.name, p.failure, p.edges[0].source) for p in proposals] == [("first", "", "0.1"), ("second", "", "0.1")]
    assert all(p.program is not None and set(p.program) == {"digits.txt"} for p in proposals)
    assert sessions == (["2-1", "2-2"] if case == "mends" else ["2-1"])
    if case == "stalls":
        assert metas[0]["outcome"] in ("timeout", "crash"), "the coder keeps its own time, and says so by its exit code"
        assert all(p.claim.extra["salvaged"] for p in proposals)
    else:
        assert metas[-1]["outcome"] == "ok"
        assert all("salvaged" not in p.claim.extra for p in proposals)
    if style not in ("text", "mini") or (style == "mini" and case != "stalls"):
        assert SUMMARY in metas[0]["files_read"]
    assert metas[0]["skill"] == metas[-1]["skill"]
