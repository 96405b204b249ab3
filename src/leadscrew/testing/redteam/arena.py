"""Where an attack takes place: the real parts of the engine, or the same with one defence off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from leadscrew.adapters.executors.local import LocalExecutor
from leadscrew.adapters.sandboxes import choose
from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Interface, Limits, ProgramEnvironment
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Box, BoxPurpose, BoxReply, BoxSpec, BoxTrial, Item, Job, Mount, Sandbox
from leadscrew.testing.redteam.naive import run_naive

QUICK = Limits(
    cpu_s=5, wall_s=8, load_s=5, memory_mb=256, processes=32, file_mb=8, workspace_mb=16, answer_kb=64, output_kb=16
)
"""Tight limits, so that a bounded attack is enough to break them."""
WIDE = replace(QUICK, cpu_s=30, wall_s=40, load_s=30, memory_mb=2048, processes=2000, file_mb=512, workspace_mb=512)
"""What a control of an attack on limits runs under."""

Off = Literal["naive", "none", "limitless"] | Callable[[BoxSpec], BoxSpec]
"""How a defence is switched off: the naive harness, no sandbox, neither sandbox nor limits, or a box that is given more
than it should be."""


def shows(*paths: str | os.PathLike[str]) -> Callable[[BoxSpec], BoxSpec]:
    """Return the weakening that mounts host paths into the box, at their own names, and masks nothing.

    >>> spec = shows("/dev/null")(BoxSpec("evaluate", QUICK, masks=("/data",)))
    >>> spec.mounts[0].target, spec.masks
    ('/dev/null', ())
    """

    def change(spec: BoxSpec) -> BoxSpec:
        mounts = tuple(Mount(os.path.realpath(p), os.path.abspath(p)) for p in map(str, paths) if os.path.exists(p))
        return replace(spec, mounts=(*spec.mounts, *mounts), masks=())

    return change


def unlimited(spec: BoxSpec) -> BoxSpec:
    """The weakening that raises every limit."""
    return replace(spec, limits=WIDE)


class Weakened:
    """A sandbox whose boxes get a changed specification: the same backend with a hole in it."""

    def __init__(self, inner: Sandbox, change: Callable[[BoxSpec], BoxSpec]) -> None:
        self.inner, self.change, self.name = inner, change, inner.name

    async def open(self, spec: BoxSpec) -> Box:
        """Open the weakened box."""
        return await self.inner.open(self.change(spec))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass(frozen=True)
class Play:
    """How a job went: one reply per trial in order, and the replies to train items."""

    replies: tuple[BoxReply, ...]
    train: tuple[BoxReply, ...] = ()
    scores: tuple[float, ...] = ()
    """What the naive harness claims; empty for real boxes, which cannot score."""

    @property
    def answers(self) -> list[Any]:
        """The answers in order, None where there is none."""
        return [reply.answer.value for reply in self.replies]

    @property
    def outcomes(self) -> list[str]:
        """The outcomes in order."""
        return [reply.outcome.value for reply in self.replies]

    def text(self) -> str:
        """Everything that came back, for a search for secrets."""
        parts = [(r.answer.value, r.message, r.trace.stdout, r.trace.stderr, r.trace.calls) for r in self.replies]
        return repr(parts)


class Arena:
    """One attack's surroundings. `defended` tells whether the defences are up; `folder` is the host's, never mounted."""

    def __init__(self, sandbox: Sandbox, folder: Path, *, defended: bool) -> None:
        self.sandbox, self.folder, self.defended = sandbox, folder, defended
        self.marker = secrets.token_hex(12)
        self._open: list[Any] = []

    def secret(self) -> str:
        """Return a word that nobody can guess."""
        return f"sesame-{secrets.token_hex(12)}"

    def decoy(self, name: str, text: str) -> str:
        """Put a file with `text` on the host and return its path."""
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return str(place)

    def pick(self, off: Off) -> Sandbox:
        """Return the sandbox to use: the real one, or in a control the one whose defence is off."""
        if self.defended or off == "naive":
            return self.sandbox
        if off in ("none", "limitless"):
            plain = choose("none")
            self._open.append(plain)
            return plain
        assert callable(off)
        return Weakened(self.sandbox, off)

    async def play(
        self,
        program: str | Mapping[str, str | bytes] | Program,
        inputs: Sequence[Any],
        *,
        off: Off,
        expected: Sequence[Any] = (),
        limits: Limits = QUICK,
        interface: Interface | None = None,
        train: Sequence[Item] = (),
        masks: Sequence[str] = (),
        environment: ProgramEnvironment | None = None,
        purpose: BoxPurpose = "evaluate",
        fresh: bool = False,
    ) -> Play:
        """Run a program on inputs, in real boxes or, in a control, with the defence off as `off` says.

        The trials follow each other in one warm box, as in an evaluation with one worker, unless `fresh`. Raises
        `InfrastructureError` if our own parts fail.
        """
        tree = program if isinstance(program, Program) else Program.of(_tree(program))
        if not self.defended and off == "naive":
            found = await run_naive(tree, inputs, expected, seconds=limits.wall_s + 1)
            replies = tuple(_reply(i, reply) for i, reply in enumerate(found))
            return Play(replies, (), tuple(float(r.get("score", 0.0)) for r in found))
        if not self.defended and off in (unlimited, "limitless"):
            limits = WIDE
        if not self.defended and off in ("none", "limitless"):
            # A virtual environment may lie in a folder that this backend shows under another name.
            environment = environment or ProgramEnvironment(interpreter=os.path.realpath(sys.executable))
        job = Job(
            program=tree,
            interface=interface or Interface("solve"),
            limits=limits,
            trials=tuple(BoxTrial(f"t{i}", value) for i, value in enumerate(inputs)),
            train=tuple(train),
            environment=environment or ProgramEnvironment(),
            masks=tuple(masks),
            purpose=purpose,
            fresh=fresh,
        )
        executor = LocalExecutor(self.pick(off), workers=1, spares=0, fork_sharing=not self.defended)
        try:
            replies_ = [reply async for reply in executor.run(job)]
        finally:
            await executor.close()
        lost = [reply.message for reply in replies_ if reply.outcome is Outcome.INFRA]
        if lost:
            # Proves nothing about the attack; and a program that can cause it could stop every run.
            raise InfrastructureError(f"a trial was lost to a failure of our own: {lost[0]}")
        order = {trial.key: i for i, trial in enumerate(job.trials)}
        last = sorted((r for r in replies_ if not r.train), key=lambda r: order[r.key])
        return Play(tuple(last), tuple(r for r in replies_ if r.train))

    async def shell(
        self, script: str, *, off: Off, masks: Sequence[str] = (), mounts: Sequence[Mount] = (), seconds: float = 20.0
    ) -> str:
        """Run a shell script in a proposer's box, with the host's tools, and return what it printed."""
        spec = BoxSpec(
            purpose="propose",
            limits=replace(WIDE, memory_mb=512, processes=64),
            argv=("/bin/sh", "-c", script),
            mounts=tuple(mounts),
            masks=tuple(masks),
            shell=True,
        )
        box = await self.pick(off).open(spec)
        try:
            async with asyncio.timeout(seconds):
                output = await box.stdout.read(1 << 20)
                while chunk := await box.stdout.read(1 << 20):
                    output += chunk
                await box.wait()
        except TimeoutError:
            output = b""
        finally:
            await box.kill()
        return str(output.decode("utf-8", "replace"))

    async def close(self) -> None:
        """Kill what an attack may have left: sandboxes opened for it, and every process that carries its marker."""
        for sandbox in self._open:
            await sandbox.close()
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def survivors(self) -> list[int]:
        """Return the processes of the host whose command line carries this attack's marker."""
        found = []
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if self.marker.encode() in line and pid != os.getpid():
                found.append(pid)
        return found


def _tree(program: str | Mapping[str, str | bytes]) -> Mapping[str, str | bytes]:
    return {"main.py": program} if isinstance(program, str) else program


def _reply(index: int, found: dict[str, Any]) -> BoxReply:
    outcome = Outcome.OK if found else Outcome.CRASH
    return BoxReply(f"t{index}", outcome, Answer(found.get("answer")))


@contextlib.contextmanager
def new_arena(sandbox: Sandbox, *, defended: bool) -> Iterator[Arena]:
    """Make an arena with a folder of its own that only this user can enter."""
    with tempfile.TemporaryDirectory(prefix="leadscrew-redteam-") as name:
        yield Arena(sandbox, Path(name), defended=defended)


async def eventually(condition: Callable[[], bool], seconds: float = 2.0) -> bool:
    """Wait until `condition` holds, at most `seconds`; return whether it did."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.02)
    return True
