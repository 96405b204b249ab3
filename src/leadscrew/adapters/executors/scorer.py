"""The domain in a process of its own, so that a scorer which crashes, hangs or leaks cannot harm the engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from leadscrew.adapters.executors.judging import Judges
from leadscrew.adapters.executors.scorer_process import fork_mother
from leadscrew.core.task import Answer, Instance, Score
from leadscrew.engine.meter import raise_text
from leadscrew.errors import BudgetReached, InfrastructureError, ModelOutage
from leadscrew.ports import BoxReply, Domain, Door, Grading, JudgeMissing, Visit, Visited

NOT_FINISHED = "the scorer did not finish on it"
_SPAWN_S = 60.0


class _Hung(Exception):
    """A request on which two scorers in a row ran out of time."""


@dataclass(slots=True, eq=False)
class _Request:
    number: int
    frame: bytes
    reply: asyncio.Future[Any]
    limited: bool
    door: Door | None = None
    visit: Visit | None = None
    sent: float = 0.0
    hung: int = 0
    lost: int = 0


class ProcessScorer:
    """Runs a domain's `score`, `grade`, `host` and any other method outside the engine; a `leadscrew.ports.Scorer`.

    Make it early, before the engine starts threads: the domain is taken over by `fork`, so closures and functions of
    `__main__` work. `wall_s` bounds one call of `score`, `grade` or an environment; a scorer that exceeds it is
    killed and the answer tried once more in a fresh one.

    With `judges` set, every answer gets a door of its own to the judge's model while it is scored. It is set later, since the
    gateway can only be made after this process is forked.
    """

    def __init__(self, domain: Domain, *, wall_s: float = 60.0) -> None:
        self.name = domain.name
        self.wall_s = wall_s
        self.judges: Judges | None = None
        self._mother, self._orders = fork_mother(domain)
        self._orders.settimeout(_SPAWN_S)
        self._pid = 0
        self._transport: asyncio.Transport | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, _Request] = {}
        self._opening: asyncio.Lock | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_reply = 0.0
        self._revival: asyncio.Task[None] | None = None
        self._sessions: set[str] = set()
        self._closed = False

    # -- the port ------------------------------------------------------------------------------

    async def score(
        self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = (), *, plan: int = 0, candidate: str = ""
    ) -> Score | str:
        """Return the score, or why the answer cannot be judged; see `leadscrew.ports.Scorer` for what is raised."""
        arguments = (instance, answer, tuple(graded))
        if self.judges is None:
            return await self._scored(arguments)
        visit = self.judges.visit(instance, answer, plan, candidate)
        async with self.judges.door() as door:
            failure: InfrastructureError | None = None
            said: Score | str = NOT_FINISHED
            try:
                said = await self._scored(arguments, door, visit)
            except InfrastructureError as error:
                failure = error
            visited = await door.leave()
        return _judged(said, failure, visited)

    async def _scored(
        self, arguments: tuple[Any, ...], door: Door | None = None, visit: Visit | None = None
    ) -> Score | str:
        try:
            return cast("Score | str", await self._ask("score", arguments, door=door, visit=visit))
        except _Hung:
            return NOT_FINISHED

    async def grading(self, instance: Instance, answer: Answer) -> Grading | None:
        """Return what must be executed before the answer can be scored."""
        try:
            return cast("Grading | None", await self._ask("grading", (instance, answer)))
        except _Hung:
            return None

    async def step(self, instance: Instance, session: str, action: Any, first: bool) -> tuple[Any, bool]:
        """Drive the environment of an `act` instance; returns the observation and whether the episode is over."""
        if first:
            self._sessions.add(session)
        try:
            return cast("tuple[Any, bool]", await self._ask("step", (instance, session, action, first)))
        except _Hung:
            raise InfrastructureError(f"the environment of {instance.id!r} took over {self.wall_s:g} s") from None

    async def result(self, session: str) -> Any:
        """End an `act` session and return its result; None for one that never began."""
        if session not in self._sessions:
            return None
        self._sessions.discard(session)
        try:
            return await self._ask("result", (session,))
        except _Hung:
            raise InfrastructureError(f"an environment gave no result in {self.wall_s:g} s") from None

    async def call(self, function: str, *args: Any) -> Any:
        """Call any method of the domain in the scorer's process; there is no time limit."""
        return await self._ask("call", (function, args), limited=False)

    async def restart(self) -> None:
        """Replace the scorer by a fresh one that has loaded nothing. Requests that wait go on there."""
        self._kill()
        await self._connect()

    async def close(self) -> None:
        """End the processes."""
        self._closed = True
        self._kill()
        if self._revival is not None:
            self._revival.cancel()
        self._orders.close()
        for request in self._waiting.values():
            if not request.reply.done():
                request.reply.set_exception(InfrastructureError("the scorer was closed while it was at work"))
        self._waiting.clear()
        for _ in range(500):
            if self._mother_gone():
                return
            await asyncio.sleep(0.01)
        os.kill(self._mother, signal.SIGKILL)

    def _mother_gone(self) -> bool:
        return os.waitpid(self._mother, os.WNOHANG)[0] != 0

    # -- requests ------------------------------------------------------------------------------

    async def _ask(
        self,
        operation: str,
        arguments: tuple[Any, ...],
        *,
        limited: bool = True,
        door: Door | None = None,
        visit: Visit | None = None,
    ) -> Any:
        if self._closed:
            raise InfrastructureError("the scorer was closed; make a new ProcessScorer.")
        if self._transport is None:
            await self._connect()
        number = next(self._numbers)
        path = door.path if door is not None else ""
        data = pickle.dumps((number, operation, arguments, self.wall_s if limited else None, path), 5)
        frame = len(data).to_bytes(4, "little") + data
        request = _Request(number, frame, asyncio.get_running_loop().create_future(), limited, door, visit)
        self._waiting[number] = request
        self._send(request)
        try:
            return await request.reply
        finally:
            self._waiting.pop(number, None)

    def _send(self, request: _Request) -> None:
        if self._transport is not None:
            if request.door is not None and request.visit is not None:
                # Also where it is tried again: a new visit finds the replies of the first one, from the first on.
                request.door.enter(request.visit)
            request.sent = time.monotonic()
            self._transport.write(request.frame)
            self._watch()

    async def _connect(self) -> None:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._transport is not None or self._closed:
                return
            ours, theirs = socket.socketpair()
            try:
                socket.send_fds(self._orders, [b"fork"], [theirs.fileno()])
                self._pid = int(self._orders.recv(32) or b"0")
            except (OSError, ValueError) as error:
                ours.close()
                raise InfrastructureError(f"the scorer of {self.name!r} cannot be started: {error}") from error
            finally:
                theirs.close()
            if not self._pid:
                ours.close()
                raise InfrastructureError(f"the scorer of {self.name!r} cannot be started: its mother process is gone.")
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_unix_connection(lambda: _Link(self), sock=ours)
            self._last_reply = time.monotonic()
            for request in self._waiting.values():
                self._send(request)

    def _kill(self) -> None:
        transport, self._transport = self._transport, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if transport is not None:
            transport.abort()
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self._pid = 0

    # -- events --------------------------------------------------------------------------------

    def replied(self, number: int, kind: str, value: Any) -> None:
        """Take in one reply of the scorer."""
        self._last_reply = time.monotonic()
        request = self._waiting.get(number)
        if request is None or request.reply.done():
            return
        if kind in ("ok", "bad"):
            request.reply.set_result(value)
        elif kind == "late":
            request.hung += 1
            if request.hung > 1:
                request.reply.set_exception(_Hung())
            if request.door is not None:
                # It may still be at work in a thread of its own.
                self._kill()
                self._revive()
            elif request.hung == 1:
                self._send(request)
        elif kind == "nojudge":
            request.reply.set_exception(JudgeMissing(value))
        else:
            request.reply.set_exception(InfrastructureError(f"the scorer of {self.name!r} failed:\n{value}"))

    def lost(self, link: _Link) -> None:
        """The scorer left by itself: whoever was served first is tried once more."""
        if link.transport is not self._transport or self._closed:
            return
        self._kill()
        head = next((r for r in self._waiting.values() if not r.reply.done()), None)
        if head is not None:
            head.lost += 1
            if head.lost > 1:
                head.reply.set_exception(
                    InfrastructureError(f"the scorer of {self.name!r} died twice on the same answer (crash or memory).")
                )
        self._revive()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(self.wall_s / 10, 0.01), self._look)

    def _look(self) -> None:
        self._timer = None
        head = next((r for r in self._waiting.values() if not r.reply.done()), None)
        if head is None or self._transport is None:
            return
        waited = head.door.busy_s if head.door is not None else 0.0
        if head.limited and time.monotonic() - max(head.sent + waited, self._last_reply) > 1.1 * self.wall_s:
            self._kill()
            head.hung += 1
            if head.hung > 1:
                head.reply.set_exception(_Hung())
            self._revive()
        else:
            self._watch()

    def _revive(self) -> None:
        if any(not r.reply.done() for r in self._waiting.values()) and not self._closed:
            self._revival = asyncio.get_running_loop().create_task(self._again())

    async def _again(self) -> None:
        try:
            await self._connect()
        except InfrastructureError as error:
            for request in self._waiting.values():
                if not request.reply.done():
                    request.reply.set_exception(error)


def _judged(said: Score | str, failure: InfrastructureError | None, visited: Visited) -> Score | str:
    """What comes of a score whose judge was asked: an outage or a cap decides, whatever the scorer made of it."""
    if visited.cap:
        raise BudgetReached(
            f"{visited.void} Everything finished is stored. {raise_text(visited.cap)}", resource=visited.cap
        )
    if visited.void:
        raise ModelOutage(f"the judge did not answer: {visited.void}")
    if failure is not None:
        raise failure
    if visited.exhausted:
        return f"the judge cannot be asked about this answer: {visited.exhausted}"
    return said


class _Link(asyncio.Protocol):
    """The engine's end of the socket."""

    def __init__(self, scorer: ProcessScorer) -> None:
        self.scorer = scorer
        self.buffer = bytearray()
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.transport is not self.scorer._transport:
            return
        self.buffer += data
        start = 0
        while len(self.buffer) - start >= 4:
            end = start + 4 + int.from_bytes(self.buffer[start : start + 4], "little")
            if len(self.buffer) < end:
                break
            self.scorer.replied(*pickle.loads(self.buffer[start + 4 : end]))
            start = end
        del self.buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self.scorer.lost(self)
