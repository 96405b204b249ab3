"""The coder proposer: the built-in coder in the real box, asking a scripted model through the real gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.adapters.sandboxes.none import PlainSandbox
from leadscrew.core.budget import Caps
from leadscrew.core.proposal import Proposal
from leadscrew.errors import BudgetReached, ConfigError, InfrastructureError, SandboxUnavailable
from leadscrew.operators.coder import CoderProposer
from leadscrew.operators.turns import Asked
from leadscrew.ports import Access
from support.benches import Laboratory
from support.coder_script import Step, Working, deliverable, shell, write
from support.gateway_world import World, role

ENTRY = {"name": "counting", "file": "candidates/counting", "hypothesis": "more digits", "base_system": "0.1"}
GOOD: tuple[Step, ...] = (
    shell("grep -c '' /bench/history/evolution_summary.jsonl; ls /bench/history/candidates"),
    ("read", {"path": "/bench/history/frontier_val.json"}),
    ("search", {"pattern": "true", "path": "/bench/history/candidates", "glob": "log.jsonl"}),
    write("candidates/counting/digits.txt", "01234-------"),
    deliverable(ENTRY),
    ("finish", {"summary": "counting"}),
)

PLAIN: tuple[Step, ...] = (
    shell('grep -c "" "$(dirname "$PWD")/bench/history/evolution_summary.jsonl"'),
    *GOOD[3:],
)
"""Without mounts there is no /bench: a model is told where things are, and this one looks beside its own folder."""


@asynccontextmanager
async def laboratory(folder: Path, model: Any, *, allowance: Caps = Caps(), **more: Any) -> AsyncIterator[Laboratory]:
    sandbox = BubblewrapSandbox()
    try:
        sandbox.probe()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    world = World(folder / "world", {"proposer": role(model, "proposer", max_tokens=512)}, **more)
    access = {"proposer": Access("proposer", allowance=allowance)}
    made = await Laboratory(folder / "run", sandbox, gateway=world.gateway, access=access).begin()
    made.world = world  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        await made.close()
        await world.close()


async def propose(made: Laboratory, number: int = 2, **more: Any) -> Sequence[Proposal]:
    bench = made.bench(number)
    return await CoderProposer(**{"repair": 0, "timeout_s": 60, **more}).propose(bench.plan, bench)


def test_the_task_names_files_of_the_bench_only() -> None:
    errand = CoderProposer(model="local/smollm2", protocol="tags").errand(Asked("P", "S", 1, 100.0))
    assert errand.argv == ("python3", "/tools/main.py", "/work/task.json")
    task = json.loads(errand.work.text("task.json"))
    assert (task["system_file"], task["prompt_file"]) == ("/bench/SKILL.md", "/bench/PROMPT.md")
    assert (task["protocol"], task["seconds"], task["model"]) == ("tags", 95, "local/smollm2")
    assert {"main.py", "coder/run.py", "coder/prompt.md"} <= set(errand.tools)
    assert not any("__pycache__" in path for path in errand.tools)
    with pytest.raises(ConfigError):
        CoderProposer(protocol="xml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tool_calls"):
        CoderProposer(tool_calls=0)


async def test_the_coder_reads_the_history_and_delivers(tmp_path: Path) -> None:
    model = Working(GOOD)
    async with laboratory(tmp_path, model) as made:
        (proposal,) = await propose(made)
        assert proposal.failure == ""
        assert proposal.program is not None
        assert proposal.program.text("digits.txt") == "01234-------"
        assert proposal.edges[0].source == "0.1"
        folder = made.folder / "sessions" / "2-1"
        meta = json.loads((folder / "meta.json").read_text())
        assert (meta["outcome"], meta["exit_code"], meta["calls"]) == ("ok", 0, len(GOOD))
        assert meta["tokens"] == {"in": 900 * len(GOOD), "out": 40 * len(GOOD), "metered": True}
        assert meta["cost_usd"] is None, "nobody knows the price of this model"
        assert meta["read_share"]["scores"] > 0
        assert "/bench/history/frontier_val.json" in meta["files_read"]
        assert (folder / "tools" / "001_shell.txt").read_text().startswith("shell: ok")
        calls = [call for _, call, _ in made.world.store.calls()]  # type: ignore[attr-defined]
        assert {(c.role, c.plan, c.candidate, c.scope) for c in calls} == {("proposer", 2, "", "plan:2:propose:1")}
        system = json.dumps(model.asked[0]["messages"][:2])
        assert "Improve a program: one iteration" in system, "the skill is its standing order"
        assert "/work/pending_eval.json" in system
        # Asked once more, as after a kill: the record answers, and nothing is paid.
        before = len(model.asked)
        (again,) = await propose(made)
        assert again.program is not None
        assert (again.program.digest, again.log) == (proposal.program.digest, proposal.log)
        assert len(model.asked) == before


async def test_a_turn_cut_short_goes_on_from_its_recorded_replies(tmp_path: Path) -> None:
    class Stuck(Working):
        stuck = asyncio.Event()

        async def complete(self, request: Any) -> Any:
            if len(self.asked) == 3 and not self.stuck.is_set():
                self.stuck.set()
                await asyncio.Event().wait()
            return await super().complete(request)

    model = Stuck(GOOD)
    async with laboratory(tmp_path, model) as made:
        first = asyncio.create_task(propose(made))
        await model.stuck.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(model.asked) == 3
        (proposal,) = await propose(made)
        assert proposal.program is not None
        assert len(model.asked) == len(GOOD), "three replies came from the record, the rest was asked once"


async def test_a_broken_deliverable_is_mended_by_the_coder_too(tmp_path: Path) -> None:
    class Mending(Working):
        async def complete(self, request: Any) -> Any:
            mend = "as you left it" in json.dumps(request["messages"])
            self.steps = (shell("ls"), deliverable(ENTRY)) if mend else (*GOOD[:4], write("pending_eval.json", "{"))
            return await super().complete(request)

    async with laboratory(tmp_path, Mending(())) as made:
        (proposal,) = await propose(made, repair=1)
        assert proposal.failure == ""
        assert proposal.program is not None, "the candidate's folder was still there"
        scopes = [call.scope for _, call, _ in made.world.store.calls()]  # type: ignore[attr-defined]
        assert sorted(set(scopes)) == ["plan:2:propose:1", "plan:2:propose:2"]


async def test_a_model_that_is_down_is_no_proposal(tmp_path: Path) -> None:
    class Down(Working):
        async def complete(self, request: Any) -> Any:
            raise InfrastructureError("the line is dead")

    async with laboratory(tmp_path, Down(())) as made:
        with pytest.raises(InfrastructureError, match=r"the model behind the proposer failed.*the line is dead"):
            await propose(made)


async def test_a_cap_ends_the_run_and_an_allowance_ends_the_turn(tmp_path: Path) -> None:
    async with laboratory(tmp_path / "cap", Working(GOOD), caps=Caps(calls=2)) as made:
        with pytest.raises(BudgetReached) as caught:
            await propose(made)
        assert caught.value.resource == "calls"
    async with laboratory(tmp_path / "allowance", Working(GOOD), allowance=Caps(calls=2)) as made:
        (failed,) = await propose(made)
        assert failed.program is None
        assert "is missing" in failed.failure
        assert "allowance" in failed.failure
    async with laboratory(tmp_path / "late", Working(GOOD), allowance=Caps(calls=5)) as made:
        (salvaged,) = await propose(made)
        assert salvaged.program is not None, "it delivered before its allowance ended"


async def test_without_a_model_the_coder_is_not_to_blame(tmp_path: Path) -> None:
    sandbox = BubblewrapSandbox()
    try:
        sandbox.probe()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    made = await Laboratory(tmp_path / "run", sandbox).begin()
    try:
        with pytest.raises(InfrastructureError, match="exit code"):
            await propose(made)
    finally:
        await made.close()


async def test_without_a_sandbox_it_works_and_says_so(tmp_path: Path) -> None:
    world = World(tmp_path / "world", {"proposer": role(Working(PLAIN), "proposer", max_tokens=512)})
    access = {"proposer": Access("proposer")}
    made = await Laboratory(tmp_path / "run", PlainSandbox(), gateway=world.gateway, access=access).begin()
    try:
        (proposal,) = await propose(made)
        assert proposal.failure == "", proposal.log
        assert proposal.program is not None
        assert proposal.program.text("digits.txt") == "01234-------"
        assert proposal.claim.extra["isolation"] == "outside a box"
        meta = json.loads((made.folder / "sessions" / "2-1" / "meta.json").read_text())
        assert meta["isolated"] is False
        assert meta["calls"] == len(PLAIN)
    finally:
        await made.close()
        await world.close()
