"""The zygote: loads the program, learns, then forks one process per trial.

Everything here may be spoilt by the program; nothing that others rely on is decided here (the supervisor keeps time,
kills, and clears up).
"""

from __future__ import annotations

import gc
import os
import random
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    from leadscrew.guest import leadscrew_command, leadscrew_guest, leadscrew_loader
    from leadscrew.guest import leadscrew_wire as wire
else:
    import _signal as signal

    import leadscrew_command
    import leadscrew_guest
    import leadscrew_loader
    import leadscrew_wire as wire

# Taken before any program is loaded, so that a program which replaces them breaks only itself.
_dumps, _loads, _fork, _waitpid, _leave = wire.dumps, wire.loads, os.fork, os.wait4, os._exit


def serve(cmd: int, res: int, ctl: int) -> None:
    """Obey frames from `cmd`; results go to `res`, ends of trials to `ctl`."""
    # A broken pipe stays an error, as in any Python program: who calls a model may be cut off.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if "LEADSCREW_SOCKET" in os.environ:
        leadscrew_guest._prepare()  # now, while the box waits for a program
    Zygote(cmd, res, ctl).serve()


class Zygote:
    """One loaded program."""

    def __init__(self, cmd: int, res: int, ctl: int) -> None:
        self.cmd, self.res, self.ctl = cmd, res, ctl
        self.program: Any = None
        self.limits: dict[str, Any] = {}
        self.pending: tuple[Any, Any, dict[str, Any]] = (None, None, {})
        self.log_left = 1 << 20
        self.pipes = wire.pipe_state((0, 1, 2, cmd, res))
        leadscrew_guest._sink = self.log

    def serve(self) -> None:
        """Serve until the supervisor closes the pipe."""
        while True:
            try:
                letter, payload = wire.receive(self.cmd)
            except (EOFError, OSError):
                _leave(0)
            value = _loads(payload)
            if letter == b"C":
                self.attempt(self.configure, value, b"K")
            elif letter == b"I":
                self.attempt(self.foretell, value, b"A")
            elif letter == b"R":
                self.attempt(self.reveal, value, b"K")
            elif letter == b"B":
                self.attempt(self.study, value, b"K")
            elif letter == b"G":
                self.attempt(self.freeze, value, b"K")
            elif letter == b"T":
                self.trial(value)

    # -- loading and learning ------------------------------------------------------------------

    def configure(self, spec: dict[str, Any]) -> None:
        self.limits = spec["limits"]
        self.log_left = max(self.limits["output_kb"] * 1024 * 16, 1 << 20)
        _limit_cpu(self.limits["load_s"], hard=False)
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        random.seed(0)
        os.environ.update(spec.get("env", ()))
        if spec["command"]:
            self.program = leadscrew_command.CommandProgram(spec)
        else:
            self.program = leadscrew_loader.PythonProgram(spec)
        self.program.load()
        if spec["smoke"]:
            self.program.smoke(spec.get("probe"))

    def foretell(self, value: Any) -> bytes:
        self.pending = (value, None, {})
        answer, metadata = self.program.predict(value)
        self.note(metadata)
        text = encode(answer)
        self.pending = (value, answer, metadata)
        return text

    def reveal(self, expected: Any) -> None:
        value, answer, metadata = self.pending
        self.program.learn([_item(value, answer, expected, metadata)])

    def study(self, items: list[dict[str, Any]]) -> None:
        batch = [_item(i["input"], None, i["expected"], {}) for i in items]
        for entry in batch:
            entry["was_correct"] = None
        self.program.learn(batch)

    def freeze(self, _: None) -> None:
        self.program.ready()
        _limit_cpu(None, hard=False)
        gc.freeze()

    # -- trials --------------------------------------------------------------------------------

    def trial(self, spec: dict[str, Any]) -> None:
        wire.restore_pipes(self.pipes)
        pid = _fork()
        if pid == 0:
            try:
                self.run(spec)
            finally:
                _leave(1)
        _, status, usage = _waitpid(pid, 0)
        micros = int((usage.ru_utime + usage.ru_stime) * 1e6)
        record = spec["number"].to_bytes(4, "little") + status.to_bytes(4, "little") + micros.to_bytes(8, "little")
        wire.write_all(self.ctl, record + b"DONE")

    def run(self, spec: dict[str, Any]) -> None:
        os.close(self.ctl)
        if spec["operation"] != "act":
            os.close(self.cmd)
        os.setsid()
        _limit_cpu(self.limits["cpu_s"], hard=True)
        os.chdir(spec["work"])
        random.seed(spec["seed"])
        self.attempt(self.answer, spec, b"A")
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception as error:  # the program may have put anything in its place
                os.write(2, f"(what was printed is lost: {type(error).__name__})\n".encode())
        _leave(0)

    def answer(self, spec: dict[str, Any]) -> bytes:
        operation = spec["operation"]
        if operation == "solve":
            return encode(self.program.solve(spec["input"], spec["seed"]))
        if operation == "predict":
            answer, metadata = self.program.predict(spec["input"])
            self.note(metadata)
            return encode(answer)
        if operation == "workspace":
            self.program.work(spec["input"], spec["folder"])
            return b"null"
        observation, agent = spec["observation"], self.program.agent()
        while True:
            wire.send(self.res, b"S", encode(agent(observation)))
            while True:
                letter, payload = wire.receive(self.cmd)
                if letter == b"N":
                    break
            reply = _loads(payload)
            if reply["over"]:
                return b"null"
            observation = reply["observation"]

    # -- reports -------------------------------------------------------------------------------

    def attempt(self, action: Callable[[Any], bytes | None], value: Any, letter: bytes) -> None:
        """Do something the program has a hand in, and send its result or its failure."""
        try:
            result = action(value)
        except wire.Invalid as error:
            failure = b"i" + str(error).encode("utf-8", "replace")
        except wire.BadOutput as error:
            failure = b"b" + str(error).encode("utf-8", "replace")
        except MemoryError as error:
            failure = b"o" + wire.describe(error).encode("utf-8", "replace")
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the program's doing too
            failure = b"c" + wire.describe(error).encode("utf-8", "replace")
        else:
            wire.send(self.res, letter, result or b"")
            return
        wire.send(self.res, b"F", failure)

    def note(self, metadata: dict[str, Any]) -> None:
        """Metadata of a prediction that tell of a model call go into the trace."""
        if "prompt" in metadata or "response" in metadata:
            self.log(metadata)

    def log(self, call: dict[str, Any]) -> None:
        data = _dumps(wire.cut(call, max(self.limits.get("output_kb", 64), 1) * 1024), anything=True)
        if len(data) <= self.log_left:
            self.log_left -= len(data)
            wire.send(self.res, b"L", data)


def encode(answer: Any) -> bytes:
    """Turn an answer into JSON text; raises `BadOutput` if it is none."""
    fault = wire.json_fault(answer)
    if fault is not None:
        raise wire.BadOutput(f"the answer holds {fault}")
    try:
        return _dumps(answer)
    except (ValueError, TypeError, RecursionError) as error:
        raise wire.BadOutput(f"the answer is no JSON: {error}") from None


def _item(value: Any, answer: Any, expected: Any, metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        "input": value,
        "prediction": answer,
        "ground_truth": expected,
        "was_correct": answer == expected,
        "metadata": metadata,
    }


def _limit_cpu(seconds: float | None, *, hard: bool) -> None:
    # The clock of a forked process starts at 0; the kernel counts whole seconds, the supervisor finer ones.
    _, ceiling = resource.getrlimit(resource.RLIMIT_CPU)
    if seconds is None:
        resource.setrlimit(resource.RLIMIT_CPU, (ceiling, ceiling))
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(seconds + used.ru_utime + used.ru_stime) + 1
    if ceiling != resource.RLIM_INFINITY:
        soft = min(soft, ceiling)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1 if hard and ceiling == resource.RLIM_INFINITY else ceiling))
