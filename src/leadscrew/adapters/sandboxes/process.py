"""A running box as a process tree of the host: pipes, limits in time, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from leadscrew.adapters.sandboxes.limits import Meter, own_processors
from leadscrew.core.budget import Spend
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError

_LOST = 255
"""The exit code of a process that somebody else has waited for."""
_PATIENCE_S = 10.0
"""How long a killed tree may take to vanish before we call it our own failure."""


class ProcessBox:
    """A box whose first process is a child of the engine.

    From the start it may use `load_s + cpu_s` CPU seconds and `3 load_s + wall_s` wall seconds; `allow` sets a new
    allowance from now on, as an executor does for each trial, or takes the clock off while the box waits in a pool.
    """

    pid: int
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits,
        meter: Meter,
        codes: Callable[[int], int],
        places: Callable[[str], str],
        cleanup: Callable[[ProcessBox], None],
    ) -> None:
        self.pid = process.pid
        self._codes, self._places, self._cleanup = codes, places, cleanup
        self._process = process
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._started = time.monotonic()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._wall_s: float | None = None
        self._waited_cpu_s = 0.0
        self._breach: Outcome | None = None
        self._reason = ""
        self._timer: asyncio.TimerHandle | None = None
        self._killing: asyncio.Task[None] | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._cpu_end: float | None = None
        self._wall_end: float | None = None
        meter.attach(process.pid)
        self.allow(limits.load_s + limits.cpu_s, 3 * limits.load_s + limits.wall_s)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        limits: Limits,
        meter: Meter,
        *,
        env: Mapping[str, str],
        cwd: str = "/",
        pass_fds: Sequence[int] = (),
        codes: Callable[[int], int] = lambda code: code,
        places: Callable[[str], str] = lambda target: target,
        cleanup: Callable[[ProcessBox], None] = lambda box: None,
    ) -> Self:
        """Start `argv` and connect its pipes.

        `codes` translates exit codes, `places` paths in the box to what its processes must write; `cleanup` is called
        once after the end.
        """
        # In this thread on purpose: a box dies with the thread that started it, so that no engine leaves one behind.
        try:
            process = subprocess.Popen(  # noqa: ASYNC220
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(env),
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        except OSError as error:
            meter.close()
            raise InfrastructureError(f"a box could not be started: {error}") from error
        box = cls(process, limits, meter, codes, places, cleanup)
        # Before anything is awaited: a box whose opening is cancelled is killed, and its end must be noticed.
        box._watch()
        try:
            await box._connect(limits)
        except BaseException:
            await box.kill()
            raise
        return box

    async def _connect(self, limits: Limits) -> None:
        loop, process = self._loop, self._process
        assert process.stdin is not None
        size = (6 * limits.answer_kb + 1024) << 10  # every byte of an answer may be escaped to six in JSON
        self.stdout = await self._reader(process.stdout, size)
        self.stderr = await self._reader(process.stderr, size)
        outgoing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), process.stdin
        )
        self._transports.append(outgoing)
        self.stdin = asyncio.StreamWriter(outgoing, protocol, None, loop)

    def _watch(self) -> None:
        """Have the end of the first process noticed."""
        loop, process = self._loop, self._process
        try:
            watch = os.pidfd_open(process.pid)
        except OSError:  # before Linux 5.3
            waiting = loop.run_in_executor(None, os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            waiting.add_done_callback(lambda _: self._reap())
            return

        def ended() -> None:
            loop.remove_reader(watch)
            os.close(watch)
            self._reap()

        loop.add_reader(watch, ended)

    async def _reader(self, pipe: Any, size: int) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(size)
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._transports.append(transport)
        return reader

    def _reap(self) -> None:
        try:
            _, status, used = os.wait4(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._waited_cpu_s = used.ru_utime + used.ru_stime
        except ChildProcessError:  # a `waitpid(-1)` elsewhere in the engine's process took it
            code = _LOST
        self._process.returncode = code
        self._wall_s = time.monotonic() - self._started
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set_result(self._codes(code))
        self._look()

    def allow(self, cpu_s: float | None, wall_s: float | None) -> None:
        """Let the tree use so many more CPU and wall seconds from now; None takes that clock off."""
        self._cpu_end = None if cpu_s is None else self._meter.cpu_s() + cpu_s
        self._wall_end = None if wall_s is None else time.monotonic() + wall_s
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended.done():
            self._timer = self._loop.call_later(self._pause(), self._tick)

    def _pause(self) -> float:
        """Return how long nothing can go wrong: a tree cannot use CPU faster than all processors together."""
        pause = self._meter.interval
        if self._cpu_end is not None:
            pause = min(pause, (self._cpu_end - self._meter.cpu_s()) / own_processors())
        if self._wall_end is not None:
            pause = min(pause, self._wall_end - time.monotonic())
        return max(pause, 0.005)

    def _tick(self) -> None:
        if self._ended.done():
            return
        self._look()
        if self._breach is not None:
            self._strike()
        else:
            self._timer = self._loop.call_later(self._pause(), self._tick)

    def _look(self) -> None:
        if self._breach is not None:
            return
        self._breach = self._meter.broken()
        if self._breach is not None:
            self._reason = "memory" if self._breach is Outcome.OOM else "processes"
        elif not self._ended.done():
            if self._cpu_end is not None and self._meter.cpu_s() > self._cpu_end:
                self._breach, self._reason = Outcome.TIMEOUT, "cpu"
            elif self._wall_end is not None and time.monotonic() > self._wall_end:
                self._breach, self._reason = Outcome.TIMEOUT, "wall"

    def _strike(self) -> None:
        """Send SIGKILL to everything, without waiting."""
        self._meter.kill()
        with contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.kill(self.pid, signal.SIGKILL)  # Popen.kill() may reap the process, whose usage is then lost

    async def wait(self) -> int:
        """Wait for the end of the first process and return its exit code (negative: signal)."""
        return await asyncio.shield(self._ended)

    def usage(self) -> Spend:
        """CPU and wall time of the whole tree so far."""
        wall = self._wall_s if self._wall_s is not None else time.monotonic() - self._started
        cpu = max(self._meter.cpu_s(), self._waited_cpu_s)
        return Spend(cpu_ms=round(cpu * 1000), wall_ms=round(wall * 1000))

    def breach(self) -> Outcome | None:
        """Say which limit ended, or is about to end, the tree: `oom`, `timeout`, or `crash` for too many processes."""
        if self._killing is None:
            self._look()
        return self._breach

    def path(self, target: str) -> str:
        """Return where a path of the box is for its processes: the same, but in a box without mounts."""
        return self._places(target)

    @property
    def reason(self) -> str:
        """Name the limit that was broken: `memory`, `processes`, `cpu`, `wall`, or nothing."""
        return self._reason

    async def kill(self) -> None:
        """Kill the whole tree, wait until it is gone, and free what the box used. Calling it again does nothing."""
        if self._killing is None:
            self._look()
            self._killing = self._loop.create_task(self._kill())
        await asyncio.shield(self._killing)

    async def _kill(self) -> None:
        self._strike()
        await self._ended
        for transport in self._transports:
            if transport.is_closing():
                continue
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()  # whatever is unsent has no reader any more
            else:
                transport.close()
        for pipe in (self._process.stdout, self._process.stderr, self._process.stdin)[len(self._transports) :]:
            if pipe is not None:
                pipe.close()  # the opening was cut off before it got a transport
        try:
            await self._vanish()
        finally:
            self._cleanup(self)

    async def _vanish(self) -> None:
        """Wait until nothing of the tree is left, and free the meter."""
        pause, until = 0.001, time.monotonic() + _PATIENCE_S
        while True:
            try:
                if not self._meter.alive():
                    self._meter.cpu_s()
                    self._meter.close()
                    return
                self._meter.kill()
            except OSError:
                pass  # a group stays busy for a moment after its last process
            if time.monotonic() > until:
                raise InfrastructureError(
                    f"the tree of box {self.pid} is still there {_PATIENCE_S:.0f} s after SIGKILL: see `ps`."
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.05)
