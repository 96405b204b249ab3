"""One box with a guest worker in it, as the executor sees it, and the pool of boxes opened ahead."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import os
import py_compile
import secrets
import shutil
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from leadscrew.adapters.executors.replies import Unacceptable, parse
from leadscrew.adapters.executors.shared import shared_by
from leadscrew.core.program import Program
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Box, BoxSpec, BoxTrial, Item, Job, Mount, Sandbox, Steps

START_S = 60.0
"""Wall seconds a box may take until its worker answers; longer is our failure."""
GRACE_S = 3.0
"""Wall seconds beyond a limit until the host stops waiting for the worker to report the breach itself."""
_GUEST = Path(__file__).resolve().parents[2] / "guest"
ENDPOINT = "/run/leadscrew.sock"
Line = dict[str, Any]


class Broken(Exception):
    """A box that can serve no longer, and what that means for the trial at hand."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


def spec_of(job: Job, program_folder: str) -> BoxSpec:
    """Return the box a job needs, with the program folder mounted read-only at /program."""
    mounts = [Mount(program_folder, "/program")]
    return BoxSpec(
        purpose="grade" if job.purpose == "grade" else "evaluate",
        limits=job.limits,
        mounts=tuple(mounts),
        masks=job.masks,
        environment=job.environment,
    )


class WarmBox:
    """An open box: load one program, then run trials one at a time, then kill it. Never used for a second program."""

    def __init__(self, box: Box, folder: Path, limits: Limits) -> None:
        self.box, self.folder, self.limits = box, folder, limits
        self.dead = False
        self._ids = itertools.count(1)
        self._buffer = bytearray()
        self._seen = self._scanned = 0
        self._deadline = 0.0
        log_kb = max(16 * limits.output_kb, 1024)
        # Bytes may be escaped to six in JSON, log entries twice over.
        self._line_limit = (6 * limits.answer_kb + 12 * limits.output_kb + 12 * log_kb + 1024) << 10
        self._total_limit = 2 * self._line_limit + (2 * limits.workspace_mb << 20)

    @classmethod
    async def open(cls, sandbox: Sandbox, job: Job, folder: Path) -> WarmBox:
        """Start a box with an empty program folder; raises `InfrastructureError` if it does not answer."""
        program = folder / "program"
        program.mkdir(parents=True)
        warm: WarmBox | None = None
        try:
            warm = cls(await sandbox.open(spec_of(job, str(program))), folder, job.limits)
            await warm._hello()
        except BaseException:
            if warm is not None:
                await warm.kill()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return warm

    async def _hello(self) -> None:
        try:
            request = await self._ask({"op": "hello"}, START_S)
            while "hello" not in await self._next(request):
                pass
        except Broken as error:
            said = await self._last_words()
            raise InfrastructureError(f"a box did not start: {error.message}. {said}".strip()) from None
        self._allow(None, None)

    async def _last_words(self) -> str:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1):
                text: bytes = await self.box.stderr.read(4000)
                return "It said: " + text.decode("utf-8", "replace").strip()
        return ""

    def inside(self, target: str) -> str:
        """Return where a path of the box is for its processes; a sandbox without mounts says so by `path`."""
        translate = getattr(self.box, "path", None)
        return str(translate(target)) if callable(translate) else target

    def _allow(self, cpu_s: float | None, wall_s: float | None) -> None:
        allow = getattr(self.box, "allow", None)
        if callable(allow):
            allow(cpu_s, wall_s)

    # -- requests ------------------------------------------------------------------------------

    async def load(
        self, job: Job, train: Sequence[Item], item: Callable[[int, Line], None]
    ) -> tuple[Outcome, str, int, str]:
        """Lay the program in, load it and let it learn; `item` gets each train prediction.

        Returns outcome, message, CPU milliseconds, and what stands against forking the loaded process (`shared_by`).
        """
        write_program(self.folder / "program", job.program)
        limits, work = self.limits, self.inside("/work")
        request: Line = {
            "op": "load",
            "operation": job.interface.operation,
            "program": self.inside("/program"),
            "entry": job.interface.entry,
            "command": list(job.interface.command),
            "mode": job.interface.mode,
            "train": [{"input": t.input, "expected": t.expected} for t in train],
            "limits": asdict(limits),
            "work": work,
            "scratch": ["/work", "/tmp", "/dev/shm"] if work == "/work" else [work, self.inside("/tmp")],
            "smoke": job.purpose == "smoke",
        }
        self._allow(limits.load_s + GRACE_S, 3 * limits.load_s + GRACE_S)
        try:
            await self._ask(request, 3 * limits.load_s + GRACE_S)
            while True:
                line = await self._next(request)
                if "item" in line:
                    item(line["item"], line)
                elif "loaded" in line:
                    self._allow(None, None)
                    outcome = Outcome(line["outcome"])
                    shared = shared_by(self.box.pid, line["zygote"], line["pipes"]) if outcome is Outcome.OK else ""
                    return outcome, line["message"], int(line["cpu_ms"]), shared
        except Broken as error:
            return error.outcome, f"while loading, {error.message}", 0, ""

    async def trial(self, job: Job, trial: BoxTrial, steps: Steps | None) -> tuple[Line, dict[int, list[str]]]:
        """Run one trial; returns the report and the pieces of files. Raises `Broken`."""
        request: Line = {
            "op": "trial", "operation": job.interface.operation, "input": trial.input, "seed": trial.seed,
        }  # fmt: skip
        if job.interface.operation == "act":
            if steps is None:
                raise Broken(Outcome.INFRA, "a trial of operation 'act' was started without an environment")
            request["observation"], over = await steps(trial.key, None)
            if over:
                return {"outcome": "ok"}, {}
        self._allow(self.limits.cpu_s + GRACE_S, self.limits.wall_s + GRACE_S)
        files: dict[int, list[str]] = {}
        await self._ask(request, self.limits.wall_s + GRACE_S)
        while True:
            line = await self._next(request)
            if "file" in line:
                files.setdefault(line["file"], []).append(line["data"])
            elif "step" in line and steps is not None:
                await self._step(trial, line, steps)
            elif "done" in line:
                self._allow(None, None)
                self._blame(line)
                self.dead = self.dead or bool(line.get("last"))
                return line, files

    def _blame(self, line: Line) -> None:
        # The kernel kills one process of a box that uses too much memory; only the sandbox knows why it died.
        killed = line.get("outcome") == "crash" and "signal 9" in line.get("message", "")
        if killed and self.box.breach() is Outcome.OOM:
            line["outcome"], line["message"] = "oom", f"more than {self.limits.memory_mb} MiB of memory"
            self.dead = True

    async def _step(self, trial: BoxTrial, line: Line, steps: Steps) -> None:
        try:
            action = parse(line["step"])
        except Unacceptable as error:
            raise self._broken(Outcome.BAD_OUTPUT, str(error).replace("the answer", "the action", 1)) from None
        self._allow(None, None)
        before = time.monotonic()
        observation, over = await steps(trial.key, action)
        self._deadline += time.monotonic() - before
        self._allow(self.limits.cpu_s + GRACE_S, max(self._deadline - time.monotonic(), 0.1))
        self._write({"op": "observe", "id": line["id"], "observation": observation, "over": over})
        await self._flush()

    # -- lines ---------------------------------------------------------------------------------

    async def _ask(self, request: Line, wall_s: float) -> Line:
        request["id"], request["nonce"] = next(self._ids), secrets.token_hex(16)
        self._deadline, self._seen = time.monotonic() + wall_s, 0
        self._write(request)
        await self._flush()
        return request

    def _write(self, request: Line) -> None:
        self.box.stdin.write(json.dumps(request).encode() + b"\n")

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout_at(self._deadline):
                await self.box.stdin.drain()
        except TimeoutError:
            raise self._broken(Outcome.TIMEOUT, "it did not take its input in time") from None
        except ConnectionError:
            return  # what happened shows when the reply is read

    async def _next(self, request: Line) -> Line:
        """Return the next line of the reply to `request`; lines without its nonce are dropped. Raises `Broken`."""
        nonce = request["nonce"].encode()
        while True:
            line = await self._line(nonce)
            if line.get("id") == request["id"] and line.get("nonce") == request["nonce"]:
                return line

    async def _line(self, nonce: bytes) -> Line:
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                raw = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._scanned = 0
                if nonce not in raw:
                    continue
                try:
                    line = json.loads(raw)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict):
                    return line
                continue
            self._scanned = len(self._buffer)
            if self._scanned > self._line_limit or self._seen > self._total_limit:
                raise self._broken(Outcome.BAD_OUTPUT, "its box wrote more than any answer may hold")
            try:
                async with asyncio.timeout_at(self._deadline):
                    data = await self.box.stdout.read(1 << 18)
            except TimeoutError:
                raise self._broken(Outcome.TIMEOUT, "the box did not answer within the wall time") from None
            if not data:
                await self._ended()
            self._seen += len(data)
            self._buffer += data
            last = self._buffer.rfind(b"\n") if b"\n" in data else -1
            if last >= 0 and self._buffer.find(nonce, 0, last) < 0:
                del self._buffer[: last + 1]  # a flood of lines that are none of ours
                self._scanned = 0

    async def _ended(self) -> NoReturn:
        try:
            async with asyncio.timeout(GRACE_S):
                code = await self.box.wait()
        except TimeoutError:
            code = None
        breach = self.box.breach()
        if breach is Outcome.OOM:
            raise self._broken(breach, f"more than {self.limits.memory_mb} MiB of memory")
        if breach is Outcome.TIMEOUT:
            raise self._broken(breach, "the box used up its time")
        if breach is not None:
            raise self._broken(breach, f"the box broke its limit of {getattr(self.box, 'reason', '') or 'processes'}")
        raise self._broken(Outcome.CRASH, f"the program brought its box down (exit code {code})")

    def _broken(self, outcome: Outcome, message: str) -> Broken:
        self.dead = True
        return Broken(outcome, message)

    async def kill(self) -> None:
        """Kill the box and remove its folder."""
        self.dead = True
        try:
            await self.box.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def write_program(folder: Path, program: Program) -> None:
    """Write a program's files into an empty folder."""
    for path, file in program.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(0o755 if file.executable else 0o644)


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


def clear_leftovers(root: Path) -> None:
    """Remove the folders of boxes whose engine was killed. The name of a box's folder tells the engine's process."""
    for folder in root.glob("box-*-*"):
        engine = folder.name.split("-")[1]
        if not os.path.exists(f"/proc/{engine}"):
            shutil.rmtree(folder, ignore_errors=True)


class BoxPool:
    """Boxes opened ahead, `spares` of each kind of job seen lately, each used for one program only."""

    KINDS = 3

    def __init__(self, sandbox: Sandbox, spares: int, root: Path) -> None:
        compile_guest()
        clear_leftovers(root)
        self.sandbox, self.spares, self.root = sandbox, spares, root
        self._waiting: OrderedDict[str, deque[asyncio.Task[WarmBox]]] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        self._names = itertools.count()

    async def take(self, job: Job) -> WarmBox:
        """Return an open box for a job."""
        kind = repr(spec_of(job, ""))
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
            return await WarmBox.open(self.sandbox, job, self._folder())
        return box

    def _start(self, job: Job) -> asyncio.Task[WarmBox]:
        return asyncio.get_running_loop().create_task(WarmBox.open(self.sandbox, job, self._folder()))

    def _folder(self) -> Path:
        return self.root / f"box-{os.getpid()}-{next(self._names)}"

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
