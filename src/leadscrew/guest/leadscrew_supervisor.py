"""The supervisor of a box: obeys the host, watches the zygote, clears up after each trial. Never runs a program's code.

Host and supervisor speak JSON lines. A request carries `id` and `nonce`; every line of the reply repeats both. The host
drops lines without them. Programs hold neither the pipe nor a nonce: the zygote is forked before the first request is
read, and the supervisor's memory is closed to other processes of the same user (PR_SET_DUMPABLE 0).
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import select
import signal
import sys
import time

import leadscrew_files
import leadscrew_wire as wire
import leadscrew_zygote

# Imported here only so that the zygote has them before it is forked: random.seed() precedes every trial.
_WARM = (random, resource)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

HIGH = 200
TICK = 0.05
KILL_SECONDS = 5.0
LETTERS = b"AFLSK"
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG = 4, 36, 1


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raises `OSError` if the kernel refuses."""
    import _ctypes

    class Function(_ctypes.CFuncPtr):  # type: ignore[misc]
        _flags_ = _ctypes.FUNCFLAG_CDECL

    call = Function(_ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl"))
    if call(option, value, 0, 0, 0) != 0:
        raise OSError(f"prctl({option}, {value}) was refused")


def start() -> None:
    """Set the processes up and serve until the host closes the pipe."""
    source = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, HIGH)
    sink = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, HIGH)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_DUMPABLE, 0)
    cmd, res, ctl, out, err = (_pipe() for _ in range(5))
    pid = os.fork()
    if pid == 0:
        # dup2 onto fixed numbers drops CLOEXEC only for 0, 1 and 2; everything else the host gave is closed.
        os.dup2(out[1], 1)
        os.dup2(err[1], 2)
        keep = {cmd[0], res[1], ctl[1]}
        for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
            if fd > 2 and fd not in keep:
                _close(fd)
        leadscrew_zygote.serve(cmd[0], res[1], ctl[1])
        os._exit(0)
    for fd in (cmd[0], res[1], ctl[1], out[1], err[1], null):
        os.close(fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Supervisor(source, sink, pid, cmd[1], res[0], ctl[0], out[0], err[0]).serve()


def _pipe() -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    high = (fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, HIGH), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, HIGH))
    os.close(ends[0])
    os.close(ends[1])
    return high


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return  # the descriptor of the listing itself


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


class Supervisor:
    """One box: one program, one data set, any number of trials."""

    def __init__(self, source: int, sink: int, zygote: int, cmd: int, res: int, ctl: int, out: int, err: int) -> None:
        self.source, self.sink, self.zygote = source, sink, zygote
        self.cmd, self.res, self.ctl, self.out, self.err = cmd, res, ctl, out, err
        self.inbox = bytearray()
        self.frames = bytearray()
        self.control = bytearray()
        self.stdout, self.stderr = Tail(65536), Tail(65536)
        self.calls: list[str] = []
        self.call_bytes = 0
        self.limits: Json = {}
        self.scratch: list[str] = []
        self.work = "/work"
        self.number = 0
        self.answer_bytes = self.log_bytes = 1 << 20
        self.dead: int | None = None
        self.reaped_cpu = 0.0
        self.ticks = os.sysconf("SC_CLK_TCK")
        for fd in (source, res, ctl, out, err):
            os.set_blocking(fd, False)
        self.poll = select.poll()
        for fd in (source, res, ctl, out, err):
            self.poll.register(fd, select.POLLIN)

    # -- the host ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer requests until the host closes the pipe."""
        while True:
            request = self.request()
            operation = request["op"]
            if operation == "hello":
                self.reply(request, {"hello": os.getpid()})
            elif operation == "load":
                self.load(request)
            elif operation == "trial":
                self.trial(request)

    def request(self) -> Json:
        """Wait for the next request."""
        while b"\n" not in self.inbox:
            self.turn(None)
        line, _, rest = self.inbox.partition(b"\n")
        self.inbox = bytearray(rest)
        request: Json = json.loads(bytes(line))
        return request

    def reply(self, request: Json, more: Json) -> None:
        """Send one line of the reply to `request`."""
        line = json.dumps({"id": request["id"], "nonce": request["nonce"], **more})
        try:
            wire.write_all(self.sink, line.encode() + b"\n")
        except OSError:
            self.end(0)

    def end(self, code: int) -> None:
        """Kill what is left and leave; the host replaces the box."""
        for pid in wire.descendants(os.getpid()):
            _kill(pid)
        os._exit(code)

    # -- waiting -------------------------------------------------------------------------------

    def turn(self, seconds: float | None) -> None:
        """Wait for anything to read, up to `seconds`, and take it in. Ends the process when the host is gone."""
        for fd, _ in self.poll.poll(None if seconds is None else max(int(seconds * 1000), 1)):
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
        """Wait for a frame or for a reason to stop: t (time), e (trial process ended), g (zygote gone), ! (broke rules)."""
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
            if now >= wall:
                return b"t", b"wall"
            if now - looked >= TICK:
                looked = now
                self.reap()
                if self.cpu() - base > cpu:
                    return b"t", b"cpu"
            self.turn(min(TICK, wall - now))

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
                self.finished: tuple[int, float] | None = (status, micros / 1e6)
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
                _kill(pid)
            if time.monotonic() > deadline:
                self.end(3)

    def settle(self) -> tuple[int, float]:
        """After a trial: everything of it dead, pipes empty, the zygote back in its loop. Returns status and CPU seconds."""
        self.sweep()
        deadline = time.monotonic() + KILL_SECONDS
        while self.ended() is None and self.dead is None and time.monotonic() < deadline:
            self.turn(TICK)
            self.reap()
        if self.ended() is None:
            if self.dead is None:
                _kill(self.zygote)
            return -1, 0.0
        self.sweep()
        self.drain()
        return self.finished or (-1, 0.0)

    # -- operations ----------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        self.number = number
        self.finished = None
        self.frames.clear()
        self.control.clear()
        self.calls = []
        self.call_bytes = 0

    def load(self, request: Json) -> None:
        """Have the zygote load the program and learn; one line per train item (online), then one `loaded` line."""
        limits = self.limits = request["limits"]
        self.answer_bytes = limits["answer_kb"] * 1024 + 64
        self.log_bytes = max(limits["output_kb"] * 1024 * 16, 1 << 20)
        self.stdout.limit = self.stderr.limit = limits["output_kb"] * 1024
        self.work, self.scratch = request["work"], request["scratch"]
        train = request.pop("train")
        self.begin(0)
        start = time.monotonic()
        self.wall, self.base = start + 3 * limits["load_s"], self.cpu()
        configuration = {k: v for k, v in request.items() if k not in ("id", "nonce")}
        if request["smoke"] and train:
            configuration["probe"] = train[0]["input"]
        fault = self.exchange(b"C", configuration)
        if request["operation"] == "predict" and fault is None:
            fault = self.learn(request, train)
        if fault is None:
            fault = self.exchange(b"G", None)
        if fault is not None and fault[0] != "ok":
            _kill(self.zygote)
        self.sweep()
        more = {"outcome": fault[0], "message": fault[1]} if fault else {"outcome": "ok", "message": ""}
        self.finish(request, {"loaded": True, **more, "threads": self.threads()}, start, self.cpu() - self.base)

    def learn(self, request: Json, train: list[Json]) -> tuple[str, str] | None:
        """Online: predict each item, report it, then reveal its label. Offline: one batch of all. Returns the fault."""
        if request["mode"] == "offline":
            return self.exchange(b"B", [{"input": t["input"], "expected": t["expected"]} for t in train])
        for index, item in enumerate(train):
            began, used = time.monotonic(), self.cpu_quick()
            self.send(b"I", item["input"])
            letter, payload = self.event(self.wall, self.limits["load_s"], self.base)
            if letter == b"A":
                reply: Json = {"outcome": "ok", "raw": payload.decode("utf-8", "replace")}
            elif letter == b"F":
                reply = dict(zip(("outcome", "message"), self.failure(payload), strict=True))
            else:
                return self.stopped(letter, payload, "learning from the train split")
            self.drain()
            self.finish(request, {"item": index, **reply}, began, self.cpu_quick() - used)
            fault = self.exchange(b"R", item["expected"])
            if fault is not None:
                return fault
        return None

    def exchange(self, letter: bytes, value: object) -> tuple[str, str] | None:
        """Send a frame to the zygote and wait for K; returns the fault otherwise."""
        self.send(letter, value)
        got, payload = self.event(self.wall, self.limits["load_s"], self.base)
        if got == b"K":
            return None
        if got == b"F":
            return self.failure(payload)
        return self.stopped(got, payload, "loading" if letter == b"C" else "learning from the train split")

    def stopped(self, letter: bytes, payload: bytes, when: str) -> tuple[str, str]:
        if letter == b"t":
            wall = payload == b"wall"
            limit = self.limits["load_s"] * (3 if wall else 1)
            return "timeout", f"{when} took more than {limit:g} s of {'wall' if wall else 'CPU'} time"
        if letter == b"!":
            return "bad_output", f"while {when}, {payload.decode()}"
        return self.signalled(self.dead, when)

    def signalled(self, status: int | None, when: str) -> tuple[str, str]:
        if status is not None and status >= 0 and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGXCPU:
                return "timeout", f"{when} used up its CPU time"
            return "crash", f"{when} was ended by signal {number} ({signal.strsignal(number)})"
        code = os.WEXITSTATUS(status) if status is not None and status >= 0 else "unknown"
        if when == "loading":
            return "invalid", f"the program left the process while loading (exit code {code})"
        return "crash", f"{when} ended without an answer (exit code {code})"

    def failure(self, payload: bytes) -> tuple[str, str]:
        return wire.FAILURES.get(payload[:1], "crash"), payload[1:].decode("utf-8", "replace")

    def trial(self, request: Json) -> None:
        """Run one trial in a process forked from the zygote and report it."""
        self.begin(request["id"])
        self.stdout.take()
        self.stderr.take()
        limits, start, base = self.limits, time.monotonic(), self.cpu()
        folder = ""
        if request["operation"] == "workspace":
            folder = os.path.join(self.work, "task")
            os.mkdir(folder)
        body = {k: request.get(k) for k in ("operation", "input", "seed", "observation")}
        self.send(b"T", {**body, "number": self.number, "folder": folder, "work": self.work})
        deadline, result = start + limits["wall_s"], None
        while result is None:
            letter, payload = self.event(deadline, limits["cpu_s"], base)
            if letter == b"S":
                asked = time.monotonic()
                self.reply(request, {"step": payload.decode("utf-8", "replace")})
                observed = self.request()
                deadline += time.monotonic() - asked
                self.send(b"N", {"observation": observed.get("observation"), "over": observed["over"]})
            elif letter == b"A":
                result = {"outcome": "ok", "raw": payload.decode("utf-8", "replace")}
            elif letter == b"F":
                result = dict(zip(("outcome", "message"), self.failure(payload), strict=True))
            elif letter == b"t":
                limit = limits["wall_s"] if payload == b"wall" else limits["cpu_s"]
                result = {"outcome": "timeout", "message": f"more than {limit:g} s of {payload.decode()} time"}
            elif letter == b"!":
                result = {"outcome": "bad_output", "message": payload.decode()}
            elif letter == b"K":
                continue
            else:
                result = {}
        used = self.cpu() - base if letter == b"t" else 0.0
        self.pause(letter)
        status, micros = self.settle()
        if not result:
            killed = status if status >= 0 else self.dead
            result = dict(zip(("outcome", "message"), self.signalled(killed, "the trial"), strict=True))
        if folder:
            if result["outcome"] == "ok":
                result.update(leadscrew_files.describe(folder, limits["workspace_mb"] << 20))
            for chunk in leadscrew_files.chunks(folder, result.get("files", ())):
                self.reply(request, chunk)
        self.finish(request, {"done": True, **result}, start, max(used, micros))
        if self.dead is not None or status < 0:
            self.end(4)
        for place in self.scratch:
            if not leadscrew_files.empty(place):
                self.end(5)

    def pause(self, letter: bytes) -> None:
        """Give a trial that has answered a moment to leave by itself, so that its status and CPU time are known."""
        deadline = time.monotonic() + 0.5
        while letter in (b"A", b"F") and self.ended() is None and self.dead is None and time.monotonic() < deadline:
            self.turn(0.05)

    def send(self, letter: bytes, value: object) -> None:
        """Send a frame down; a zygote that is gone or does not read is noticed by the wait that follows."""
        try:
            wire.send(self.cmd, letter, json.dumps(value).encode())
        except OSError:
            self.reap()

    def finish(self, request: Json, more: Json, start: float, cpu: float) -> None:
        self.drain()
        self.reply(
            request,
            {
                **more,
                "stdout": self.stdout.take(),
                "stderr": self.stderr.take(),
                "calls": self.calls,
                "cpu_ms": round(cpu * 1000),
                "wall_ms": round((time.monotonic() - start) * 1000),
            },
        )
        self.calls, self.call_bytes = [], 0

    def cpu_quick(self) -> float:
        fields = wire.stat(self.zygote)
        return sum(int(f) for f in fields[11:15]) / self.ticks if fields else 0.0

    def threads(self) -> int:
        """Return how many threads the loaded program keeps (1 is the normal case)."""
        try:
            return len(os.listdir(f"/proc/{self.zygote}/task"))
        except OSError:
            return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
