"""Programs in any language: a command that is spoken to in JSON lines on its standard input and output.

Requests: `{"op": "solve", "input": ..., "seed": ...}` -> `{"answer": ...}`; `{"op": "predict", "input": ...}` ->
`{"answer": ..., "metadata": {...}}`; `{"op": "learn", "batch": [...]}` -> `{"ok": true}`;
`{"op": "act", "observation": ...}` -> `{"action": ...}`; `{"op": "work", "input": ..., "folder": ...}` ->
`{"ok": true}`. Optional: `{"op": "get_state"}` -> `{"state": "..."}` and `{"op": "set_state", "state": "..."}` ->
`{"ok": true}`; a learner without them is taught anew for every trial. A reply `{"error": "..."}` is a crash. Other
lines count as plain output.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    from leadscrew.guest import leadscrew_wire as wire
else:
    import _signal as signal

    import leadscrew_wire as wire


class CommandError(Exception):
    """The command answered with an error, or left."""


class Conversation:
    """One running command."""

    def __init__(self, argv: list[str], folder: str, limit: int) -> None:
        self.limit = limit
        self.buffer = b""
        there, self.sink = os.pipe2(os.O_CLOEXEC)
        self.source, back = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(there, 0)
                os.dup2(back, 1)
                os.chdir(folder)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.execvp(argv[0], argv)
            finally:
                os._exit(127)
        os.close(there)
        os.close(back)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return the reply."""
        try:
            wire.write_all(self.sink, wire.dumps(request) + b"\n")
        except BrokenPipeError:
            raise CommandError(self.farewell(f"left before it read the request {request['op']!r}")) from None
        while True:
            line = self.line(request["op"])
            reply = _object(line)
            if reply is None:
                wire.write_all(1, line + b"\n")
                continue
            if "error" in reply:
                raise CommandError(f"the command reports: {str(reply['error'])[:2000]}")
            return reply

    def line(self, operation: str) -> bytes:
        while b"\n" not in self.buffer:
            data = os.read(self.source, 1 << 16)
            if not data:
                raise CommandError(self.farewell(f"left without a reply to {operation!r}"))
            self.buffer += data
            if len(self.buffer) > self.limit:
                raise wire.BadOutput(f"a line of more than {self.limit >> 10} KiB")
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def farewell(self, what: str) -> str:
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 127:
            what += " (is it installed in the box?)"
        return f"the command {what}; exit code {code}"

    def close(self) -> None:
        """End the command."""
        os.close(self.sink)
        os.close(self.source)
        try:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value = wire.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class CommandProgram:
    """A command as a program. Each trial talks to a process of its own."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.argv, self.folder, self.operation = spec["command"], spec["program"], spec["operation"]
        self.limit = spec["limits"]["answer_kb"] * 1024 + 4096
        self.teacher: Conversation | None = None
        self.lessons: list[list[dict[str, Any]]] = []
        self.state: str | None = None

    def load(self) -> None:
        """Check that the command exists."""
        first = self.argv[0]
        places = [self.folder] if "/" in first else os.environ.get("PATH", "").split(":")
        if not any(os.access(os.path.join(place, first), os.X_OK) for place in places):
            raise wire.Invalid(f"the command {first!r} cannot be run: no such executable in the program or the box")

    def open(self) -> Conversation:
        """Start the command."""
        return Conversation(self.argv, self.folder, self.limit)

    def smoke(self, probe: Any) -> None:
        """A prediction before any learning must not fail."""
        if self.operation == "predict":
            try:
                self.open().ask({"op": "predict", "input": probe})
            except CommandError as error:
                raise wire.Invalid(f"'predict' before anything was learned failed: {error}") from None

    def learn(self, batch: list[dict[str, Any]]) -> None:
        """Teach the command that is learning; remember the lesson."""
        teacher = self._learning()
        self.lessons.append(batch)
        teacher.ask({"op": "learn", "batch": batch})

    def predict(self, value: Any) -> tuple[Any, dict[str, Any]]:
        """Predict with the learning command, or in a trial with a fresh one that knows the same."""
        reply = self._learning().ask({"op": "predict", "input": value})
        metadata = reply.get("metadata")
        return _take(reply, "answer"), metadata if isinstance(metadata, dict) else {}

    def ready(self) -> None:
        """Learning is over: keep the state if the command can tell it, else the lessons."""
        if self.teacher is not None:
            try:
                state = self.teacher.ask({"op": "get_state"}).get("state")
            except CommandError:
                state = None
            self.state = state if isinstance(state, str) else None
            self.teacher.close()
            self.teacher = None

    def _learning(self) -> Conversation:
        if self.teacher is None:
            self.teacher = self.open()
            if self.state is not None:
                self.teacher.ask({"op": "set_state", "state": self.state})
            else:
                for batch in self.lessons[:]:
                    self.teacher.ask({"op": "learn", "batch": batch})
        return self.teacher

    def solve(self, value: Any, seed: int) -> Any:
        """Solve one instance in a fresh process."""
        return _take(self.open().ask({"op": "solve", "input": value, "seed": seed}), "answer")

    def work(self, value: Any, folder: str) -> None:
        """Work on one instance in a fresh process."""
        self.open().ask({"op": "work", "input": value, "folder": folder})

    def agent(self) -> Callable[[Any], Any]:
        """Start a fresh process for one episode."""
        talk = self.open()
        return lambda observation: _take(talk.ask({"op": "act", "observation": observation}), "action")


def _take(reply: dict[str, Any], key: str) -> Any:
    if key not in reply:
        raise wire.BadOutput(f"a reply without {key!r}: {wire.dumps(reply)[:500].decode()}")
    return reply[key]
