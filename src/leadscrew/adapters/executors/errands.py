"""Runs errands: one command in a proposer's box, on a bench, with a door to the gateway, and its files brought back."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from leadscrew.adapters.executors.boxes import ENDPOINT, START_S
from leadscrew.core.budget import Spend
from leadscrew.core.program import File, Program, check_path, is_noise
from leadscrew.core.task import ProgramEnvironment
from leadscrew.core.trial import Outcome
from leadscrew.engine.bench import RunBench
from leadscrew.engine.folders import write_folder
from leadscrew.engine.history import History
from leadscrew.engine.meter import raise_text
from leadscrew.errors import BudgetReached, InfrastructureError, ProgramError
from leadscrew.ports import (
    Access,
    Box,
    BoxSpec,
    Door,
    Errand,
    ErrandResult,
    Gateway,
    Mount,
    Sandbox,
    Visit,
    Visited,
)

STDOUT_BYTES = 16 << 20
STDERR_BYTES = 512 << 10
BACK_BYTES = 64 << 20
BACK_FILES = 4000
GRACE_S = 30.0
"""Seconds beyond its own limit that the runner in the box gets to kill the tree and to bring the files back."""
LINE_BYTES = 8 << 20
"""The longest line is the list of files that come back."""
PROMPT = "prompt.json"
_RUNNER = ("/py/bin/python3", "-s", "/guest/leadscrew_errand.py")
Line = dict[str, Any]
NO_PACKAGES = ProgramEnvironment()


class ErrandRunner:
    """Carries out errands in boxes of `sandbox`; call it with an errand and the bench it works on.

    `access` holds the right to a model by role: an errand of a role that is not in it has no door. `masks` and
    `environment` are the domain's, as in every box. Nothing is written outside `root`, and nothing there stays.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        root: Path,
        *,
        history: History | None = None,
        gateway: Gateway | None = None,
        access: Mapping[str, Access] | None = None,
        masks: Sequence[str] = (),
        environment: ProgramEnvironment = NO_PACKAGES,
    ) -> None:
        self._sandbox, self._root, self._history, self._gateway = sandbox, root, history, gateway
        self._access, self._masks, self._environment = dict(access or {}), tuple(masks), environment
        self._names = itertools.count()
        self._isolated: bool | None = None

    async def __call__(self, errand: Errand, bench: RunBench) -> ErrandResult:
        """Run an errand. Raises `InfrastructureError` if the box or the model behind it fails, `BudgetReached` at a cap."""
        if self._isolated is None:
            self._isolated = (await asyncio.to_thread(self._sandbox.probe)).isolated
        # The folder tells the engine's process, so that one which was killed leaves nothing behind for good.
        folder = self._root.resolve() / f"box-{os.getpid()}-e{next(self._names)}"
        folder.mkdir(parents=True)
        try:
            mounts = self._lay_out(errand, bench, folder)
            return await self._go(errand, bench, folder, mounts)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # -- what the box sees ---------------------------------------------------------------------

    def _lay_out(self, errand: Errand, bench: RunBench, folder: Path) -> list[Mount]:
        """Write what only this errand sees, and return all mounts of its box."""
        for name, program in (("given", errand.work), ("tools", errand.tools), ("papers", errand.papers)):
            write_folder(program, folder / name)
        laid = bench.folder().resolve()
        entries = {entry.name: str(entry) for entry in sorted(laid.iterdir())}
        if PROMPT in entries:
            prompt = json.loads((laid / PROMPT).read_text("utf-8"))
            entries["history"] = str(laid / prompt.get("history", "history"))
            prompt["history"] = "history/"
            (folder / PROMPT).write_text(json.dumps(prompt, indent=2) + "\n", encoding="utf-8")
            entries[PROMPT] = str(folder / PROMPT)
        if self._history is not None:
            place = self._history.snapshot(bench.archive, folder / "history", link=bool(self._isolated))
            entries["history"] = str(place)
        for name in {path.split("/")[0] for path in errand.papers}:
            entries[name] = str(folder / "papers" / name)
        mounts = [Mount(source, f"/bench/{name}") for name, source in entries.items() if os.path.exists(source)]
        mounts += [Mount(str(folder / "tools"), "/tools"), Mount(str(folder / "given"), "/given")]
        return mounts + [Mount(source, target) for source, target in errand.mounts]

    # -- the box -------------------------------------------------------------------------------

    async def _go(self, errand: Errand, bench: RunBench, folder: Path, mounts: list[Mount]) -> ErrandResult:
        access = self._access.get(errand.role)
        door: Door | None = None
        visited = Visited()
        began = time.monotonic()
        try:
            if self._gateway is not None and access is not None:
                door = await self._gateway.door(folder / "door")
                mounts = [*mounts, Mount(door.path, ENDPOINT)]
                own = replace(access, plan=bench.number, candidate="", learning="")
                door.enter(Visit(own, f"plan:{bench.number}:{errand.scope}"))
            report, spend = await self._in_box(errand, folder, mounts)
        finally:
            if door is not None:
                try:
                    visited = await door.leave()
                finally:
                    await door.close()
        if visited.cap:
            raise BudgetReached(f"{visited.void} {raise_text(visited.cap)}", resource=visited.cap)
        if visited.void:
            raise InfrastructureError(f"the model behind the proposer failed: {visited.void}")
        result = _result(report, time.monotonic() - began)
        return replace(
            result,
            exhausted=visited.exhausted,
            isolated=bool(self._isolated),
            spend=spend + visited.spend,
            calls=visited.calls,
        )

    async def _in_box(self, errand: Errand, folder: Path, mounts: Sequence[Mount]) -> tuple[_Report, Spend]:
        spec = BoxSpec(
            purpose="propose",
            limits=errand.limits,
            argv=_RUNNER,
            mounts=tuple(mounts),
            masks=self._masks,
            environment=self._environment,
            shell=True,
            init=True,
        )
        box = await self._sandbox.open(spec)
        try:
            box.allow(errand.limits.cpu_s + GRACE_S, START_S + errand.timeout_s + GRACE_S)
            report = await self._talk(box, errand, folder, mounts)
        finally:
            await box.kill()
        return report, box.usage()

    async def _talk(self, box: Box, errand: Errand, folder: Path, mounts: Sequence[Mount]) -> _Report:
        nonce = secrets.token_hex(16)
        order = _order(box, errand, folder, mounts, nonce)
        if any(m.target == ENDPOINT for m in mounts):
            order["socket"] = box.path(ENDPOINT)
        report = _Report(nonce, errand.on_output)
        errors = asyncio.create_task(box.stderr.read(4000))
        try:
            box.stdin.write(json.dumps(order).encode() + b"\n")
            with suppress(ConnectionError):  # a box that is gone shows in what is read
                await box.stdin.drain()
            async with asyncio.timeout(START_S):
                await report.read(box, until="started")
            async with asyncio.timeout(errand.timeout_s + GRACE_S):
                await report.read(box, until="done")
        except TimeoutError:
            report.late = True
        finally:
            await box.kill()
            said = (await errors).decode("utf-8", "replace").strip()
        if report.broken or not report.started:
            why = report.broken or said or "it did not answer"
            raise InfrastructureError(f"a proposer's box did not start: {why}")
        report.breach = box.breach()
        return report


def _order(box: Box, errand: Errand, folder: Path, mounts: Sequence[Mount], nonce: str) -> Line:
    """Return what the runner is told. Where a sandbox has no mounts, paths are rewritten to where things really are."""
    moved = {place: box.path(place) for place in ("/work", "/tools", "/tmp")}
    # The bench is mounted in pieces, so its own place is that of any piece.
    piece = next((m.target for m in mounts if m.target.startswith("/bench/")), "")
    moved["/bench"] = str(Path(box.path(piece)).parent) if piece else "/bench"
    moved |= {target: box.path(target) for _, target in errand.mounts}
    if all(here == there for here, there in moved.items()):
        move: Callable[[str], str] = str
    else:
        pattern = re.compile(r"(?<![\w/.-])(" + "|".join(map(re.escape, moved)) + r")(?![\w-])")

        def move(text: str) -> str:
            return pattern.sub(lambda found: moved[found[1]], text)

        for place in (folder / "given", folder / "papers", folder / "tools"):
            for path in (p for p in place.rglob("*") if p.is_file() and p.suffix in (".json", ".md", ".txt", "")):
                with suppress(UnicodeDecodeError):  # no text, so no path is meant
                    path.write_text(move(path.read_text("utf-8")), encoding="utf-8")
    return {
        "nonce": nonce,
        "argv": [move(word) for word in errand.argv],
        # Settings and caches of a command are not its work.
        "env": {"HOME": box.path("/tmp"), **{name: move(value) for name, value in errand.env.items()}},
        "cwd": box.path("/work"),
        "given": box.path("/given"),
        "work": box.path("/work"),
        "seconds": errand.timeout_s,
        "cpu_s": errand.limits.cpu_s,
        "stdout_bytes": STDOUT_BYTES,
        "stderr_bytes": STDERR_BYTES,
        "back_bytes": min(BACK_BYTES, errand.limits.workspace_mb << 20),
        "back_files": BACK_FILES,
    }


@dataclass(slots=True)
class _Report:
    """What the runner has said so far. Lines without the nonce are none of its."""

    nonce: str
    on_output: Callable[[bytes], None] | None = None
    started: bool = False
    done: bool = False
    late: bool = False
    broken: str = ""
    breach: Outcome | None = None
    ended: Line = field(default_factory=dict)
    files: list[Line] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    parts: dict[str, bytearray] = field(default_factory=dict)
    content: dict[int, bytearray] = field(default_factory=dict)
    _buffer: bytearray = field(default_factory=bytearray)
    _seen: int = 0

    async def read(self, box: Box, until: Literal["started", "done"]) -> None:
        """Read lines until one says `until`, or the box ends, or says that it is broken."""
        while not getattr(self, until) and not self.broken:
            end = self._buffer.find(b"\n")
            if end >= 0:
                raw = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._take(raw)
                continue
            if len(self._buffer) > LINE_BYTES or self._seen > 2 * (STDOUT_BYTES + STDERR_BYTES + BACK_BYTES):
                return
            data = await box.stdout.read(1 << 18)
            if not data:
                return
            self._seen += len(data)
            self._buffer += data

    def _take(self, raw: bytes) -> None:
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            return
        if not isinstance(line, dict) or line.get("nonce") != self.nonce:
            return
        for name in ("out", "err", "out_tail", "err_tail"):
            if name in line:
                data = base64.b64decode(line[name])
                self.parts.setdefault(name, bytearray()).extend(data)
                if name == "out" and self.on_output is not None:
                    self.on_output(data)
        if "file" in line:
            if "fault" in line:
                self.left_out.append(f"{self.files[line['file']]['path']}: {line['fault']}")
            else:
                self.content.setdefault(line["file"], bytearray()).extend(base64.b64decode(line["data"]))
        elif "files" in line:
            self.files, self.left_out = line["files"], line["left_out"]
        elif "ended" in line:
            self.ended = line
        self.broken = str(line.get("broken", ""))
        self.started = self.started or bool(line.get("started"))
        self.done = self.done or bool(line.get("done"))

    def text(self, name: str) -> str:
        """Return one output of the command, with a note where its middle was left out."""
        head, tail = self.parts.get(name, b""), self.parts.get(name + "_tail", b"")
        told = self.ended.get("streams", {}).get(name, {})
        note = f"\n[... {told['cut']} of {told['total']} bytes left out ...]\n" if told.get("cut") else ""
        return bytes(head).decode("utf-8", "replace") + note + bytes(tail).decode("utf-8", "replace")


def _result(report: _Report, seconds: float) -> ErrandResult:
    work, left_out = _work(report) if report.done else (None, [])
    lost = ""
    if not report.done:
        lost = {
            Outcome.OOM: "the box ran out of memory, and its files with it",
            Outcome.TIMEOUT: "the box used up its time before the files were back",
            Outcome.CRASH: "the box broke its limit of processes and was killed",
        }.get(report.breach or Outcome.OK, "") or (
            "the box did not report in time" if report.late else "the box ended before its files were back"
        )
    killed, status = report.ended.get("ended", ""), report.ended.get("status")
    code = None if status is None else os.waitstatus_to_exitcode(status)
    outcome: Literal["ok", "crash", "timeout", "oom"]
    if report.breach is Outcome.OOM:
        outcome = "oom"
    elif killed or report.late or report.breach is Outcome.TIMEOUT:
        outcome = "timeout"
    else:
        outcome = "ok" if code == 0 else "crash"
    return ErrandResult(
        outcome, code, report.text("out"), report.text("err"), round(seconds, 3), work, lost, tuple(left_out)
    )


def _work(report: _Report) -> tuple[Program, list[str]]:
    """Return the files that came back as a tree; whatever no tree can hold is named with its reason."""
    files: dict[str, File] = {}
    left_out = list(report.left_out)
    for index, told in enumerate(report.files):
        path = str(told["path"])
        data = bytes(report.content.get(index, b""))
        try:
            if is_noise(check_path(path)):
                continue
        except ProgramError:
            left_out.append(f"{path[:200]!r}: no path of a program")
            continue
        if len(data) == told["size"]:
            files[path] = File(data, bool(told["executable"]))
    return Program(files), left_out
