"""The pool of boxes opened ahead."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import py_compile
from collections import OrderedDict, deque
from functools import lru_cache
from pathlib import Path

from leadscrew.adapters.executors.boxes import WarmBox, clear_leftovers, spec_of
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Gateway, Job, Sandbox

_GUEST = Path(__file__).resolve().parents[2] / "guest"


@lru_cache(maxsize=1)
def compile_guest() -> None:
    """Leave byte code beside the guest's modules, as an import would: boxes read the folder but cannot write it.

    Saves each box some 10 ms. Where the package is not writable boxes compile for themselves.
    """
    for source in sorted(_GUEST.glob("*.py")):
        with contextlib.suppress(OSError):
            cached = Path(importlib.util.cache_from_source(str(source)))
            if not cached.exists() or cached.stat().st_mtime < source.stat().st_mtime:
                py_compile.compile(str(source), dfile=f"/guest/{source.name}", doraise=True)


class BoxPool:
    """Boxes opened ahead, `spares` of each kind of job seen lately, each used for one program only."""

    KINDS = 3

    def __init__(self, sandbox: Sandbox, spares: int, root: Path, gateway: Gateway | None = None) -> None:
        compile_guest()
        clear_leftovers(root)
        self.sandbox, self.spares, self.root, self.gateway = sandbox, spares, root, gateway
        self._waiting: OrderedDict[str, deque[asyncio.Task[WarmBox]]] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        self._names = itertools.count()

    async def take(self, job: Job) -> WarmBox:
        """Return an open box for a job, with a door to the gateway if the job has access to a model.

        The door of a box that waits leads nowhere yet: whose calls go through it is said when its visit begins.
        """
        if job.access is not None and self.gateway is None:
            raise InfrastructureError(
                f"programs of this job may call the model of the role {job.access.role!r}, but the executor has no "
                "gateway to lead the calls to; make it with LocalExecutor(..., gateway=...)."
            )
        kind = repr(spec_of(job, "", "" if job.access is None else "door"))
        waiting = self._waiting.setdefault(kind, deque())
        self._waiting.move_to_end(kind)
        while len(self._waiting) > self.KINDS:
            for task in self._waiting.popitem(last=False)[1]:
                self._discard(task)
        while waiting and waiting[0].done() and (waiting[0].cancelled() or waiting[0].exception() is not None):
            waiting.popleft()  # an old failure says nothing about now
        opening = waiting.popleft() if waiting else self._start(job)
        while len(waiting) < self.spares:
            waiting.append(self._start(job))
        try:
            box = await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._discard(opening)
            raise
        if box.box.stdout.at_eof():
            # It died while it waited: not the doing of the program that was to go in.
            self.release(box)
            return await self._open(job)
        return box

    def _start(self, job: Job) -> asyncio.Task[WarmBox]:
        return asyncio.get_running_loop().create_task(self._open(job))

    async def _open(self, job: Job) -> WarmBox:
        gateway = self.gateway if job.access is not None else None
        folder = self.root / f"box-{os.getpid()}-{next(self._names)}"
        return await WarmBox.open(self.sandbox, job, folder, gateway)

    def _discard(self, opening: asyncio.Task[WarmBox]) -> None:
        async def end() -> None:
            try:
                box = await opening
            except (Exception, asyncio.CancelledError):
                return  # it never opened
            await box.kill()

        self._later(asyncio.get_running_loop().create_task(end()))

    def release(self, box: WarmBox) -> None:
        """Kill a used box in the background."""
        self._later(asyncio.get_running_loop().create_task(box.kill()))

    def _later(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Kill every box that waits, and wait until all are gone."""
        for waiting in self._waiting.values():
            for opening in waiting:
                opening.cancel()
                self._discard(opening)
        self._waiting.clear()
        while self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)
