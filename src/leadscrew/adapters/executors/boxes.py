"""One box with a guest worker in it, as the executor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from leadscrew.adapters.executors.replies import Unacceptable, parse
from leadscrew.adapters.executors.shared import shared_by
from leadscrew.adapters.executors.visits import Lessons
from leadscrew.core.program import Program
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Box, BoxSpec, BoxTrial, Door, Gateway, Item, Job, Mount, Sandbox, Steps

START_S = 60.0
"""Wall seconds a box may take until its worker answers; longer is our failure."""
GRACE_S = 3.0
"""Wall seconds beyond a limit until the host stops waiting for the worker to report the breach itself."""
LOOK_S = 0.02
"""The least wall seconds between two looks at a clock that may have stood still."""
BACKSTOP_S = 24 * 3600.0
"""The most wall seconds beyond its own that a program may wait for models."""
ENDPOINT = "/run/leadscrew.sock"
"""Where a box has its door to the gateway."""
Line = dict[str, Any]


class Broken(Exception):
    """A box that can serve no longer, and what that means for the trial at hand."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


@dataclass(frozen=True, slots=True)
class Loaded:
    """How loading and learning ended; `cap` names the cap that made it void. `shares` says what stands against forking the
    loaded process (`shared_by`)."""

    outcome: Outcome
    message: str = ""
    cpu_ms: int = 0
    shares: str = ""
    cap: str = ""


def spec_of(job: Job, program_folder: str, socket: str = "") -> BoxSpec:
    """Return the box a job needs: the program folder read-only at /program, the socket of its door at `ENDPOINT`."""
    mounts = [Mount(program_folder, "/program")]
    if socket:
        mounts.append(Mount(socket, ENDPOINT))
    return BoxSpec(
        purpose="grade" if job.purpose == "grade" else "evaluate",
        limits=job.limits,
        mounts=tuple(mounts),
        masks=job.masks,
        # The right path comes when the program is loaded; this makes the worker ready for calls while it waits.
        env={"LEADSCREW_SOCKET": ENDPOINT} if socket else {},
        environment=job.environment,
    )


class WarmBox:
    """An open box: load one program, then run trials one at a time, then kill it. Never used for a second program."""

    def __init__(self, box: Box, folder: Path, limits: Limits, door: Door | None = None) -> None:
        self.box, self.folder, self.limits, self.door = box, folder, limits, door
        self.dead = False
        self._ids = itertools.count(1)
        self._buffer = bytearray()
        self._seen = self._scanned = 0
        self._deadline = self._backstop = 0.0
        self._serving: Line = {}
        self._waits_at: Door | None = None
        self._stopping = False
        log_kb = max(16 * limits.output_kb, 1024)
        # Bytes may be escaped to six in JSON, log entries twice over.
        self._line_limit = (6 * limits.answer_kb + 12 * limits.output_kb + 12 * log_kb + 1024) << 10
        self._total_limit = 2 * self._line_limit + (2 * limits.workspace_mb << 20)

    @classmethod
    async def open(cls, sandbox: Sandbox, job: Job, folder: Path, gateway: Gateway | None = None) -> WarmBox:
        """Start a box with an empty program folder, and with a door if there is a gateway.

        Raises `InfrastructureError` if it does not answer.
        """
        program = folder / "program"
        program.mkdir(parents=True)
        warm: WarmBox | None = None
        door: Door | None = None
        try:
            if gateway is not None:
                door = await gateway.door(folder / "llm.sock")
            spec = spec_of(job, str(program), door.path if door is not None else "")
            warm = cls(await sandbox.open(spec), folder, job.limits, door)
            await warm._hello()
        except BaseException:
            if warm is not None:
                await warm.kill()
            elif door is not None:
                await door.close()
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

    async def load(self, job: Job, train: Sequence[Item], lessons: Lessons) -> Loaded:
        """Lay the program in, load it and let it learn; `lessons` gets each train prediction."""
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
        if self.door is not None:
            request |= {"socket": self.inside(ENDPOINT), "paced": lessons.paced}
        lessons.begin()
        loaded = await self._loading(request, lessons)
        await lessons.end()
        if lessons.stopped is not None:
            self.dead = True
            return Loaded(lessons.stopped.outcome, lessons.stopped.message, loaded.cpu_ms, cap=lessons.stopped.cap)
        return loaded

    async def _loading(self, request: Line, lessons: Lessons) -> Loaded:
        try:
            await self._begin(request, self.limits.load_s, 3 * self.limits.load_s)
            while True:
                line = await self._next(request)
                if "item" in line:
                    lessons.item(line["item"], line)
                elif "next" in line and not self._stopping:
                    if not await self._turn(line["next"], lessons):
                        return Loaded(Outcome.CRASH, "the worker asked for an item that is none")
                    await self._say({"op": "go", "id": line["id"]})
                elif "loaded" in line:
                    self._allow(None, None)
                    outcome = Outcome(line["outcome"])
                    shares = shared_by(self.box.pid, line["zygote"], line["pipes"]) if outcome is Outcome.OK else ""
                    return Loaded(outcome, line["message"], int(line["cpu_ms"]), shares)
        except Broken as error:
            return Loaded(error.outcome, f"while loading, {error.message}")

    async def _turn(self, index: int, lessons: Lessons) -> bool:
        """Go from one visit to the next; neither that nor the calls of the one that ends are the program's time."""
        asked, busy = time.monotonic(), self.door.busy_s if self.door is not None else 0.0
        goes_on = await lessons.turn(index)
        self._deadline += busy + time.monotonic() - asked
        return goes_on

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
        files: dict[int, list[str]] = {}
        await self._begin(request, self.limits.cpu_s, self.limits.wall_s)
        while True:
            line = await self._next(request)
            if "file" in line:
                files.setdefault(line["file"], []).append(line["data"])
            elif "step" in line and steps is not None and not self._stopping:
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
        left = BACKSTOP_S if self.door is not None else max(self._deadline - time.monotonic(), 0.1)
        self._allow(self.limits.cpu_s + GRACE_S, left)
        await self._say({"op": "observe", "id": line["id"], "observation": observation, "over": over})

    # -- lines ---------------------------------------------------------------------------------

    async def _begin(self, request: Line, cpu_s: float, wall_s: float) -> None:
        """Start work that has limits. Without a door the worker keeps them and the host waits a little longer.

        With one the host keeps the wall clock, because only it knows when the program waits for a model.
        """
        if self.door is None:
            self._allow(cpu_s + GRACE_S, wall_s + GRACE_S)
            await self._ask(request, wall_s + GRACE_S)
            return
        self._allow(cpu_s + GRACE_S, wall_s + BACKSTOP_S)
        request["wall_s"] = wall_s + BACKSTOP_S
        await self._ask(request, wall_s, self.door)

    async def _ask(self, request: Line, wall_s: float, waits_at: Door | None = None) -> Line:
        request["id"], request["nonce"] = next(self._ids), secrets.token_hex(16)
        self._deadline, self._seen = time.monotonic() + wall_s, 0
        self._serving, self._waits_at, self._stopping = request, waits_at, False
        self._backstop = self._deadline + BACKSTOP_S
        await self._say(request)
        return request

    async def _say(self, line: Line) -> None:
        self.box.stdin.write(json.dumps(line).encode() + b"\n")
        try:
            async with asyncio.timeout(max(self._left(), LOOK_S)):
                await self.box.stdin.drain()
        except TimeoutError:
            raise self._broken(Outcome.TIMEOUT, "it did not take its input in time") from None
        except ConnectionError:
            return  # what happened shows when the reply is read

    def _left(self) -> float:
        """Wall seconds until the time is up; calls that are being answered stop the clock."""
        until = self._deadline
        if self._waits_at is not None:
            until = min(until + self._waits_at.busy_s, self._backstop)
        return until - time.monotonic()

    async def _read(self) -> bytes:
        """Return what the box says next; raises `Broken` when its time is up."""
        while True:
            try:
                async with asyncio.timeout(max(self._left(), LOOK_S)):
                    data: bytes = await self.box.stdout.read(1 << 18)
                    return data
            except TimeoutError:
                if self._left() > 0:
                    continue
                if self._waits_at is None:
                    raise self._broken(Outcome.TIMEOUT, "the box did not answer within the wall time") from None
            # The worker ends the program itself then, so that its output is kept and the box stays of use.
            self._waits_at, self._stopping, self._deadline = None, True, time.monotonic() + GRACE_S
            await self._say({"op": "stop", "id": self._serving["id"]})

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
            data = await self._read()
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
        """Kill the box, close its door and remove its folder."""
        self.dead = True
        try:
            await self.box.kill()
        finally:
            try:
                if self.door is not None:
                    await self.door.close()
            finally:
                shutil.rmtree(self.folder, ignore_errors=True)


def write_program(folder: Path, program: Program) -> None:
    """Write a program's files into an empty folder."""
    for path, file in program.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(0o755 if file.executable else 0o644)


def clear_leftovers(root: Path) -> None:
    """Remove the folders of boxes whose engine was killed. The name of a box's folder tells the engine's process."""
    for folder in root.glob("box-*-*"):
        engine = folder.name.split("-")[1]
        if not os.path.exists(f"/proc/{engine}"):
            shutil.rmtree(folder, ignore_errors=True)
