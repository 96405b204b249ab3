"""A bench over a small finished run, with a box for proposers on it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from leadscrew import wire
from leadscrew.adapters.executors.errands import ErrandRunner
from leadscrew.core.program import Program
from leadscrew.core.proposal import Edit
from leadscrew.engine.bench import RunBench, Submissions
from leadscrew.engine.history import History
from leadscrew.methods.harness import HarnessSettings
from leadscrew.operators.scripted import Scripted
from leadscrew.ports import Errand, Evidence, Sandbox
from support.toy import Parts, digits


class Laboratory:
    """A run with three founders' and one more plan's candidates, and benches of the next plans on it."""

    def __init__(self, folder: Path, sandbox: Sandbox, **more: Any) -> None:
        self.folder = folder
        settings = HarnessSettings(iterations=1, candidates=2, promotion="published")
        self.parts = Parts(folder, Scripted([[digits("01----------"), digits("---3--------")]]), settings=settings)
        self.store, self.domain = self.parts.store, self.parts.domain
        self.history: History | None = None
        self.sandbox = sandbox
        self.more = more

    async def begin(self) -> Laboratory:
        """Let the run so far happen."""
        await self.parts.engine.run()
        self.history = History(self.store, self.domain, self.parts.method.evidence)
        self.runner = ErrandRunner(self.sandbox, self.folder / "tmp", history=self.history, **self.more)
        return self

    def bench(self, number: int = 2, evidence: Evidence | None = None, **plan: Any) -> RunBench:
        """Return a bench as the engine makes it for a plan."""
        history = self.history
        assert history is not None
        return RunBench(
            number=number,
            plan=Edit("command", **{"count": 2, **plan}),
            archive=self.parts.engine.archive.snapshot(),
            domain=self.domain,
            evidence=evidence or self.parts.method.evidence,
            notes=["the first digit matters"],
            store=self.store,
            seed=0,
            submissions=Submissions(),
            unseal=lambda message, bench: [],
            layout=lambda bench, place: wire.lay_out(history, bench, place),
            errands=self.runner,
        )

    async def close(self) -> None:
        """End what is open."""
        await self.sandbox.close()
        self.store.close()


def script(text: str, name: str = "agent.py") -> Program:
    """Return tools that hold one executable script."""
    return Program.of({name: text})


def python(text: str, **more: Any) -> Errand:
    """Return an errand that runs a Python script on the box's interpreter."""
    return Errand(("python3", "/tools/agent.py"), tools=script(text), **more)


def run(coroutine: Any) -> Any:
    """Run a coroutine in a loop of its own."""
    return asyncio.run(coroutine)
