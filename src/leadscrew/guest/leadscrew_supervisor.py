"""The supervisor of a box: obeys the host, watches the zygote, clears up after each trial. Never runs a program's code.

Host and supervisor speak JSON lines. A request carries `id` and `nonce`; every line of the reply repeats both. The host
drops lines without them. Programs hold neither the pipe nor a nonce: the zygote is forked before the first request is
read, and the supervisor's memory is closed to other processes of the same user (PR_SET_DUMPABLE 0).
"""

from __future__ import annotations

import fcntl
import os
import random
import resource
import time

# Imported here only so that the zygote has them before it is forked: random.seed() precedes every trial.
_WARM = (random, resource)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from leadscrew.guest import leadscrew_files, leadscrew_zygote
    from leadscrew.guest import leadscrew_wire as wire
    from leadscrew.guest.leadscrew_watch import Watch, kill

    Json = dict[str, Any]
else:
    import _signal as signal

    import leadscrew_files
    import leadscrew_wire as wire
    import leadscrew_zygote
    from leadscrew_watch import Watch, kill

HIGH = 200
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG = 4, 36, 1


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raises `OSError` if the kernel refuses."""
    import _ctypes

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL

    program = _ctypes.dlopen(None, 2)  # type: ignore[arg-type]
    call = Function(_ctypes.dlsym(program, "prctl"))
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
    if "LEADSCREW_SOCKET" in os.environ:
        _forwarding()  # imported now, while the box waits for a program
    Supervisor(source, sink, pid, cmd[1], res[0], ctl[0], out[0], err[0]).serve()


def _forwarding() -> Any:
    # Only boxes with a door pay for it.
    if TYPE_CHECKING:
        from leadscrew.guest import leadscrew_forward
    else:
        import leadscrew_forward
    return leadscrew_forward


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


class Supervisor(Watch):
    """One box: one program, one data set, any number of trials."""

    def __init__(self, source: int, sink: int, zygote: int, cmd: int, res: int, ctl: int, out: int, err: int) -> None:
        super().__init__(source, sink, zygote, cmd, res, ctl, out, err)
        self.limits: Json = {}
        self.scratch: list[str] = []
        self.work = "/work"
        self.wall = self.base = 0.0

    # -- the host ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer requests until the host closes the pipe."""
        while True:
            request = self.request()
            operation, self.serving = request["op"], request["id"]
            if operation == "hello":
                self.reply(request, {"hello": os.getpid()})
            elif operation == "load":
                self.load(request)
            elif operation == "trial":
                self.trial(request)

    def request(self) -> Json:
        """Wait for the next request."""
        while (request := self.line()) is None:
            self.turn(None)
        return request

    def go(self, request: Json, operation: str) -> Json | None:
        """Wait for what the host has to say in the midst of `request`; None if it says stop."""
        while True:
            line = self.request()
            if line["id"] == request["id"] and line["op"] in (operation, "stop"):
                return line if line["op"] == operation else None

    def reply(self, request: Json, more: Json) -> None:
        """Send one line of the reply to `request`."""
        line = wire.dumps({"id": request["id"], "nonce": request["nonce"], **more})
        try:
            wire.write_all(self.sink, line + b"\n")
        except OSError:
            self.end(0)

    # -- operations ----------------------------------------------------------------------------

    def load(self, request: Json) -> None:
        """Have the zygote load the program and learn; one line per train item (online), then one `loaded` line."""
        limits = self.limits = request["limits"]
        self.answer_bytes = limits["answer_kb"] * 1024 + 64
        self.log_bytes = max(limits["output_kb"] * 1024 * 16, 1 << 20)
        self.stdout.limit = self.stderr.limit = limits["output_kb"] * 1024
        # Should a folder that is not the box's own ever be named here, it would not be empty before the first trial.
        self.work = request["work"]
        self.scratch = [place for place in request["scratch"] if os.path.isdir(place) and not os.listdir(place)]
        train = request.pop("train")
        self.begin(0)
        start = time.monotonic()
        self.wall, self.base = start + (request.get("wall_s") or 3 * limits["load_s"]), self.cpu()
        configuration = {k: v for k, v in request.items() if k not in ("id", "nonce")}
        if request.get("socket"):
            configuration["env"] = self.connect(request["socket"])
        if request["smoke"] and train:
            configuration["probe"] = train[0]["input"]
        fault = self.exchange(b"C", configuration)
        if request["operation"] == "predict" and fault is None:
            fault = self.learn(request, train)
        if fault is None:
            fault = self.exchange(b"G", None)
        if fault is not None and fault[0] != "ok":
            kill(self.zygote)
        self.sweep()
        self.cut()
        if not all([leadscrew_files.empty(place) for place in self.scratch]):
            self.end(5)
        report: Json = {"loaded": True, "outcome": "ok", "message": "", "zygote": self.zygote, "pipes": self.pipes()}
        if fault is not None:
            report.update(outcome=fault[0], message=fault[1])
        self.finish(request, report, start, self.cpu() - self.base)

    def connect(self, socket: str) -> dict[str, str]:
        """Open the way to the gateway; returns the variables that show it to the program."""
        module = _forwarding()
        forwarder = module.Forwarder(socket)
        self.forward(forwarder)
        variables: dict[str, str] = module.environment(forwarder.port, socket)
        return variables

    def learn(self, request: Json, train: list[Json]) -> tuple[str, str] | None:
        """Online: predict each item, report it, then reveal its label. Offline: one batch of all. Returns the fault.

        `paced`: the host is asked before each item, so that it knows which one a model call is for.
        """
        if request["mode"] == "offline":
            return self.exchange(b"B", [{"input": t["input"], "expected": t["expected"]} for t in train])
        for index, item in enumerate(train):
            if request.get("paced"):
                self.reply(request, {"next": index})
                if self.go(request, "go") is None:
                    return self.stopped(b"t", b"wall", "learning from the train split")
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
        deadline = start + (request["wall_s"] if "wall_s" in request else limits["wall_s"])
        result: Json | None = None
        while result is None:
            letter, payload = self.event(deadline, limits["cpu_s"], base)
            if letter == b"S":
                asked = time.monotonic()
                self.reply(request, {"step": payload.decode("utf-8", "replace")})
                observed = self.go(request, "observe")
                deadline += time.monotonic() - asked
                if observed is None:
                    deadline = 0.0
                else:
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
        if folder and result["outcome"] == "ok":
            self.collect(request, folder, result)
        spoilt = self.dead is not None or status < 0 or not all([leadscrew_files.empty(p) for p in self.scratch])
        # The host must know before it sends another trial here, which would be blamed for the end of this box.
        self.finish(request, {"done": True, "last": spoilt, **result}, start, max(used, micros))
        if spoilt:
            self.end(4)

    def collect(self, request: Json, folder: str, result: Json) -> None:
        """Send the files of a workspace ahead of the report, or say in the report why they are no answer."""
        try:
            files, fault = leadscrew_files.describe(folder, self.limits["workspace_mb"] << 20)
            for chunk in leadscrew_files.chunks(folder, files):
                self.reply(request, chunk)
        except OSError as error:
            files, fault = [], f"the folder cannot be read: {error.strerror}"
        result["files"] = files
        if fault:
            result.update(outcome="bad_output", message=fault)

    def pause(self, letter: bytes) -> None:
        """Give a trial that has answered a moment to leave by itself, so that its status and CPU time are known."""
        deadline = time.monotonic() + 0.5
        while letter in (b"A", b"F") and self.ended() is None and self.dead is None and time.monotonic() < deadline:
            self.turn(0.05)

    def send(self, letter: bytes, value: object) -> None:
        """Send a frame down; a zygote that is gone or does not read is noticed by the wait that follows."""
        try:
            wire.send(self.cmd, letter, wire.dumps(value))
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

    def pipes(self) -> list[list[int]]:
        """Return mount and inode number of what the zygote has from us; anything else it holds is the program's."""
        return [wire.identity(fd) for fd in (0, self.cmd, self.res, self.ctl, self.out, self.err)]
