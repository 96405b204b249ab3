"""The processes behind `ProcessScorer`: a *mother* that keeps the domain as it was given and forks *scorers* on demand.

The mother is forked from the engine before it has threads and does nothing but wait; so a scorer can be replaced at
any time without pickling the domain and without forking an engine that runs. Frames are a length (4 bytes) and a
pickle; both ends are trusted code. When the engine is gone, the mother sees the end of its socket and kills its scorers.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from leadscrew.adapters.executors.judging import Asking
from leadscrew.core.task import Score
from leadscrew.ports import JUDGE, BadAnswer, Domain, Environment, JudgeMissing

TAIL_CHARS = 4000
_PR_SET_PDEATHSIG = 1


def fork_mother(domain: Domain) -> tuple[int, socket.socket]:
    """Fork the mother; returns her process id and the socket on which she takes orders."""
    ours, hers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(ValueError, OSError):
                stream.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _mother(domain, hers)
        finally:
            os._exit(1)
    hers.close()
    return pid, ours


def _mother(domain: Domain, orders: socket.socket) -> NoReturn:
    os.setsid()
    _forget_descriptors({orders.fileno()})
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    children: list[int] = []
    while True:
        message, fds, _, _ = socket.recv_fds(orders, 16, 1)
        if not message:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            try:
                _scorer(domain, socket.socket(fileno=fds[0]), orders)
            except (EOFError, ConnectionError):
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(fds[0])
        # Only the last few can be alive: the engine kills one before it asks for the next.
        children = [*children[-3:], pid]
        orders.send(b"%d" % pid)


def _forget_descriptors(keep: set[int]) -> None:
    """Point every inherited descriptor but the standard ones at /dev/null: no lock, store or pipe stays open.

    The numbers stay taken, so that an inherited file object which is closed later cannot close something new.
    """
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a scorer prints is for people, not part of the engine's output
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd != null and fd not in keep:
            with contextlib.suppress(OSError):
                os.fstat(fd)
                os.dup2(null, fd, inheritable=False)


def _scorer(domain: Domain, sock: socket.socket, orders: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    orders.close()
    _die_with_parent()
    asyncio.run(_Server(domain, sock).serve())


def _die_with_parent() -> None:
    parent = os.getppid()
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


class _Server:
    """Answers requests in order; those that turn out to be coroutines run beside the others."""

    def __init__(self, domain: Domain, sock: socket.socket) -> None:
        self.domain, self.sock = domain, sock
        self.sessions: dict[str, Environment] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.operations: dict[str, Callable[..., Any]] = {
            "score": self.score, "grading": self.grading, "step": self.step, "result": self.result, "call": self.call,
        }  # fmt: skip

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        self.sock.setblocking(False)
        buffer = bytearray()
        while True:
            data = await loop.sock_recv(self.sock, 1 << 20)
            if not data:
                os._exit(0)
            buffer += data
            start = 0
            while len(buffer) - start >= 4:
                end = start + 4 + int.from_bytes(buffer[start : start + 4], "little")
                if len(buffer) < end:
                    break
                self.answer(*pickle.loads(buffer[start + 4 : end]))
                start = end
            del buffer[:start]

    def answer(
        self, number: int, operation: str, arguments: tuple[Any, ...], wall_s: float | None, door: str = ""
    ) -> None:
        asking = Asking(door) if door else None
        token = JUDGE.set(asking)
        try:
            self.begin(number, operation, arguments, wall_s, asking)
        finally:
            JUDGE.reset(token)

    def begin(
        self, number: int, operation: str, arguments: tuple[Any, ...], wall_s: float | None, asking: Asking | None
    ) -> None:
        try:
            result = self.operations[operation](*arguments)
        except BaseException as error:
            self.send(number, *_failure(error))
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(self.later(number, result, operation, wall_s, asking))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        else:
            self.send(number, "ok", _checked(operation, result))

    async def later(
        self, number: int, result: Any, operation: str, wall_s: float | None, asking: Asking | None
    ) -> None:
        try:
            async with asyncio.timeout(wall_s) as clock:
                if asking is not None:
                    asking.start(clock)
                try:
                    value = await result
                finally:
                    if asking is not None:
                        asking.end()
        except TimeoutError as error:
            if clock.expired():
                self.send(number, "late", "")
            else:
                self.send(number, *_failure(error))
        except BaseException as error:
            self.send(number, *_failure(error))
        else:
            self.send(number, "ok", _checked(operation, value))

    def send(self, number: int, kind: str, value: Any) -> None:
        if isinstance(value, _Wrong):
            kind, value = "error", value.text
        try:
            data = pickle.dumps((number, kind, value), 5)
        except Exception as error:
            data = pickle.dumps((number, "error", f"the result cannot be sent to the engine: {error}"), 5)
        self.sock.setblocking(True)
        self.sock.sendall(len(data).to_bytes(4, "little") + data)
        self.sock.setblocking(False)

    # -- operations ----------------------------------------------------------------------------

    def score(self, *arguments: Any) -> Any:
        return self.domain.score(*arguments)

    def grading(self, *arguments: Any) -> Any:
        try:
            return self.domain.grade(*arguments)
        except BadAnswer:
            return None  # the scorer will say so itself

    def step(self, instance: Any, session: str, action: Any, first: bool) -> tuple[Any, bool]:
        if first:
            self.sessions[session] = self.domain.host(instance)
            return self.sessions[session].reset(), False
        try:
            return self.sessions[session].step(action)
        except BadAnswer:
            return None, True

    def result(self, session: str) -> Any:
        return self.sessions.pop(session).result()

    def call(self, function: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self.domain, function)(*arguments)


class _Wrong:
    def __init__(self, text: str) -> None:
        self.text = text


def _checked(operation: str, result: Any) -> Any:
    if operation != "score":
        return result
    if not isinstance(result, Score):
        return _Wrong(f"score() must return a Score, not {type(result).__name__}; write Score({result!r:.80})")
    if isinstance(result.value, bool) or not isinstance(result.value, (int, float)) or not math.isfinite(result.value):
        return _Wrong(
            f"score() must return a finite number, not {result.value!r}; raise BadAnswer for what cannot be judged"
        )
    return result


def _failure(error: BaseException) -> tuple[str, str]:
    if isinstance(error, JudgeMissing):
        return "nojudge", str(error)
    if isinstance(error, BadAnswer):
        return "bad", str(error) or "the scorer cannot judge it"
    return "error", "".join(traceback.format_exception(error))[-TAIL_CHARS:].strip()
