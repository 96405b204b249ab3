"""What the supervisor sees of a box: pipes, frames of the program, the processes below it and what they use."""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from leadscrew.guest import leadscrew_wire as wire
    from leadscrew.guest.leadscrew_forward import Forwarder
else:
    import _signal as signal

    import leadscrew_wire as wire

TICK = 0.05
KILL_SECONDS = 5.0
LETTERS = b"AFLSK"


class Tail:
    """The last bytes of a stream, and how many there were."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.data = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self.data += data
        if len(self.data) > 2 * self.limit + 65536:
            del self.data[: len(self.data) - self.limit]

    def take(self) -> str:
        """Return the tail as text and start anew."""
        kept = bytes(self.data[-self.limit :]) if self.limit else b""
        lost = self.total - len(kept)
        self.data.clear()
        self.total = 0
        text = kept.decode("utf-8", "replace")
        return f"[... {lost} bytes cut ...]\n{text}" if lost else text


class Watch:
    """The zygote and all processes below it, seen from above."""

    def __init__(self, source: int, sink: int, zygote: int, cmd: int, res: int, ctl: int, out: int, err: int) -> None:
        self.source, self.sink, self.zygote = source, sink, zygote
        self.cmd, self.res, self.ctl, self.out, self.err = cmd, res, ctl, out, err
        self.inbox = bytearray()
        self.frames = bytearray()
        self.control = bytearray()
        self.stdout, self.stderr = Tail(65536), Tail(65536)
        self.calls: list[str] = []
        self.call_bytes = 0
        self.number = self.serving = 0
        self.forwarder: Forwarder | None = None
        self.finished: tuple[int, float] | None = None
        self.answer_bytes = self.log_bytes = 1 << 20
        self.dead: int | None = None
        self.reaped_cpu = 0.0
        self.ticks = os.sysconf("SC_CLK_TCK")
        for fd in (source, res, ctl, out, err):
            os.set_blocking(fd, False)
        self.poll = select.poll()
        for fd in (source, res, ctl, out, err):
            self.poll.register(fd, select.POLLIN)

    def forward(self, forwarder: Forwarder) -> None:
        """Carry the program's connections to the gateway while we wait for anything."""
        self.forwarder = forwarder
        self.poll.register(forwarder.fileno(), select.POLLIN)

    def begin(self, number: int) -> None:
        """Forget what came from the trial before; `number` names the next one."""
        self.number = number
        self.finished = None
        self.frames.clear()
        self.control.clear()
        self.calls = []
        self.call_bytes = 0

    def end(self, code: int) -> None:
        """Kill what is left and leave; the host replaces the box."""
        for pid in wire.descendants(os.getpid()):
            kill(pid)
        os._exit(code)

    # -- waiting -------------------------------------------------------------------------------

    def turn(self, seconds: float | None) -> None:
        """Wait for anything to read, up to `seconds`, and take it in. Ends the process when the host is gone."""
        for fd, _ in self.poll.poll(None if seconds is None else max(int(seconds * 1000), 1)):
            if self.forwarder is not None and fd == self.forwarder.fileno():
                self.forwarder.work()
                continue
            try:
                data = os.read(fd, 1 << 18)
            except BlockingIOError:
                continue
            if fd == self.source:
                if not data:
                    self.end(0)
                self.inbox += data
            elif not data:
                self.poll.unregister(fd)
                self.reap()
            elif fd == self.res:
                self.frames += data
            elif fd == self.ctl:
                self.control += data
            elif fd == self.out:
                self.stdout.add(data)
            else:
                self.stderr.add(data)

    def frame(self) -> tuple[bytes, bytes] | None:
        """Take the next complete frame of the program; (b"!", why) if it broke the rules."""
        if len(self.frames) < wire.HEADER:
            return None
        letter, size = bytes(self.frames[:1]), int.from_bytes(self.frames[1:5], "little")
        if letter not in LETTERS:
            return b"!", b"it wrote into the descriptor that carries answers"
        if size > (self.log_bytes if letter == b"L" else self.answer_bytes):
            return b"!", b"an answer of %d KiB, more than the %d KiB allowed" % (size >> 10, self.answer_bytes >> 10)
        if len(self.frames) < wire.HEADER + size:
            return None
        payload = bytes(self.frames[wire.HEADER : wire.HEADER + size])
        del self.frames[: wire.HEADER + size]
        return letter, payload

    def event(self, wall: float, cpu: float, base: float) -> tuple[bytes, bytes]:
        """Wait for a frame or a reason to stop: t (time), e (trial process ended), g (zygote gone), ! (broke rules)."""
        looked = time.monotonic()
        while True:
            found = self.frame()
            if found is not None:
                if found[0] != b"L":
                    return found
                self.call_bytes += len(found[1])
                if self.call_bytes > 4 * self.log_bytes:
                    return b"!", b"it logged more than the trace can hold"
                self.calls.append(found[1].decode("utf-8", "replace"))
                continue
            if self.ended() is not None:
                # The result may have come in together with the news of the end.
                self.drain()
                if self.frames and self.whole():
                    continue
                return b"e", b""
            if self.dead is not None:
                self.drain()
                if self.frames and self.whole():
                    continue
                return b"g", b""
            now = time.monotonic()
            if now >= wall or self.stopped_by_host():
                return b"t", b"wall"
            if now - looked >= TICK:
                looked = now
                self.reap()
                if self.cpu() - base > cpu:
                    return b"t", b"cpu"
            self.turn(min(TICK, wall - now))

    def line(self) -> dict[str, Any] | None:
        """Take the next line of the host, if there is a whole one."""
        if b"\n" not in self.inbox:
            return None
        line, _, rest = self.inbox.partition(b"\n")
        self.inbox = bytearray(rest)
        request: dict[str, Any] = wire.loads(bytes(line))
        return request

    def stopped_by_host(self) -> bool:
        """Whether the host, which keeps the clock of programs that call models, says that the time is up."""
        line = self.line()
        return line is not None and line["op"] == "stop" and line["id"] == self.serving

    def whole(self) -> bool:
        """Whether a complete frame, or a broken one, lies in the buffer."""
        if len(self.frames) < wire.HEADER:
            return False
        size = int.from_bytes(self.frames[1:5], "little")
        return bytes(self.frames[:1]) not in LETTERS or size > self.answer_bytes or len(self.frames) >= 5 + size

    def drain(self) -> None:
        """Take in everything that lies in the pipes."""
        for fd in (self.res, self.ctl, self.out, self.err):
            for _ in range(1024):
                try:
                    data = os.read(fd, 1 << 18)
                except OSError:
                    break
                if not data:
                    break
                if fd == self.res:
                    if len(self.frames) <= 2 * self.answer_bytes + self.log_bytes:
                        self.frames += data
                elif fd == self.ctl:
                    self.control += data
                elif fd == self.out:
                    self.stdout.add(data)
                else:
                    self.stderr.add(data)

    def ended(self) -> tuple[int, float] | None:
        """Return (wait status, CPU seconds) once the zygote has reaped the trial at hand."""
        while len(self.control) >= 20:
            record = bytes(self.control[:20])
            del self.control[:20]
            number, status, micros = (int.from_bytes(record[a:b], "little") for a, b in ((0, 4), (4, 8), (8, 16)))
            if record[16:] == b"DONE" and number == self.number:
                self.finished = (status, micros / 1e6)
        return self.finished

    # -- processes -----------------------------------------------------------------------------

    def reap(self) -> None:
        """Collect dead children: orphans of trials come to us, because we are their subreaper."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.zygote:
                self.dead = status
            self.reaped_cpu += usage.ru_utime + usage.ru_stime

    def cpu(self) -> float:
        """CPU seconds of everything below us so far, the dead included."""
        total = 0
        for pid in wire.descendants(os.getpid()):
            fields = wire.stat(pid)
            if fields:
                total += sum(int(f) for f in fields[11:15])
        return total / self.ticks + self.reaped_cpu

    def sweep(self) -> None:
        """Kill every process below us but the zygote, until none is left; give the box up if they do not die."""
        me, deadline = os.getpid(), time.monotonic() + KILL_SECONDS
        while True:
            self.reap()
            # A dead trial waits for the zygote to collect it: nothing of it runs any more.
            left = [
                pid
                for pid in wire.descendants(me)
                if pid != self.zygote and (wire.stat(pid) or [b"Z"])[0] not in (b"Z", b"X")
            ]
            if not left:
                return
            for pid in left:
                kill(pid)
            if time.monotonic() > deadline:
                self.end(3)

    def cut(self) -> None:
        """Cut every connection to the gateway."""
        if self.forwarder is not None:
            self.forwarder.drop()

    def settle(self) -> tuple[int, float]:
        """See to it that all of a trial is dead, the pipes are empty and the zygote is back in its loop.

        Returns the wait status and the CPU seconds of the trial, or (-1, 0.0) if the zygote is lost.
        """
        self.sweep()
        deadline = time.monotonic() + KILL_SECONDS
        while self.ended() is None and self.dead is None and time.monotonic() < deadline:
            self.turn(TICK)
            self.reap()
        if self.ended() is None:
            if self.dead is None:
                kill(self.zygote)
            return -1, 0.0
        self.sweep()
        self.cut()
        self.drain()
        return self.finished or (-1, 0.0)


def kill(pid: int) -> None:
    """Send SIGKILL to a process that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
