"""A door: one unix socket for one box, with one visit at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from leadscrew.adapters.models.asked import Desk
from leadscrew.adapters.models.serving import MAX_BODY, Clerk
from leadscrew.adapters.models.visits import OpenVisit
from leadscrew.ports import Visit, Visited

MAX_CONNECTIONS = 256
"""So many connections may a box hold open; it must not use up the engine's file descriptors."""
MAX_HEADERS = 64
MAX_HEADER_BYTES = 8190
CLOSING_S = 0.5

# What a box sends is no news for the user's terminal.
_QUIET = logging.getLogger("leadscrew.gateway")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


class UnixDoor:
    """The door port on a unix socket. Any user of the host who can reach the folder may connect, since boxes run as another.

    Who is inside is nothing a client can say: it is what the last `enter` said.
    """

    def __init__(self, path: Path, desk: Desk) -> None:
        self.path = str(path)
        self._desk = desk
        self._visit: OpenVisit | None = None
        self._left: set[OpenVisit] = set()
        self._clerk = Clerk(desk)
        self._answering: set[Any] = set()
        self._socket: socket.socket | None = None
        self._http: _Server | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Create the socket and listen."""
        loop = asyncio.get_running_loop()
        self._http = _Server(
            self._handle,
            request_factory=_request,
            access_log=None,
            logger=_QUIET,
            tcp_keepalive=False,
            auto_decompress=False,
            max_headers=MAX_HEADERS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            lingering_time=1.0,
        )
        self._http.now = lambda: self._visit
        self._socket = bound_socket(Path(self.path))
        self._server = await loop.create_server(self._http, sock=self._socket)

    def enter(self, visit: Visit) -> None:
        """Begin a visit; what is still running from the one before is cut off and settled in the background."""
        self._end(cut=True)
        self._visit = OpenVisit(visit)

    async def leave(self) -> Visited:
        """End the visit and return what happened, durable. Without a visit: nothing.

        Calls that still run come to their end first, and it decides: a program that does not wait for a model that is down has
        answered around an outage all the same. They are cut off only where whoever leaves is cancelled.
        """
        task = asyncio.current_task()
        visit = self._end(cut=task is not None and task.cancelling() > 0)
        try:
            await asyncio.gather(*(left.settled() for left in tuple(self._left)))
        except asyncio.CancelledError:
            for left in self._left:
                left.cut()
            raise
        self._left.clear()
        if visit is None:
            return Visited()
        if visit.called:
            await self._desk.durable()
        return visit.result()

    @property
    def busy_s(self) -> float:
        """Seconds of this visit in which a call was being answered."""
        return 0.0 if self._visit is None else self._visit.busy_s

    async def close(self) -> None:
        """Cut off what runs, remove the socket and drop all connections. Calling it again does nothing."""
        server, self._server = self._server, None
        http, self._http = self._http, None
        if server is None or http is None:
            return
        server.close()
        _remove(Path(self.path))
        self._end(cut=True)
        await asyncio.gather(*(left.settled() for left in tuple(self._left)))
        if any(left.called for left in self._left):
            await self._desk.durable()
        self._left.clear()
        await http.shutdown(CLOSING_S)
        await server.wait_closed()
        self._desk.forget(self)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        http, visit, connection = self._http, self._visit, request.protocol
        if http is None or http.made.get(connection) is not visit:
            visit = None
        self._answering.add(connection)
        try:
            return await self._clerk.handle(visit, request)
        finally:
            self._answering.discard(connection)

    def _end(self, *, cut: bool) -> OpenVisit | None:
        visit, self._visit = self._visit, None
        self._hang_up()
        if visit is not None:
            visit.close()
            self._left.add(visit)
        if cut:
            for left in self._left:
                left.cut()
        return visit

    def _hang_up(self) -> None:
        """Let no request that was sent in one visit be read in the next: each visit has connections of its own."""
        if self._socket is None or self._http is None:
            return
        while True:
            try:
                waiting, _ = self._socket.accept()
            except OSError:
                # Nobody waits any more, or the door is closed.
                break
            waiting.close()
        for connection in self._http.connections:
            if connection in self._answering:
                connection.close()
            else:
                connection.force_close()


def bound_socket(path: Path) -> socket.socket:
    """Return a socket bound to `path`, however long it is, open to every user who can reach its folder.

    Raises `OSError`, among others if something is there already.
    """
    # An address holds about 108 bytes; through the open folder every path becomes short.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.chmod(path.name, 0o666, dir_fd=folder)
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(folder)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


class _Server(web.Server):
    """Remembers in which visit each connection was made."""

    def __init__(self, handler: Any, **more: Any) -> None:
        super().__init__(handler, **more)
        self.now: Callable[[], OpenVisit | None] = lambda: None
        self.made: dict[Any, OpenVisit | None] = {}

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.made[handler] = self.now()
        if len(self.made) > MAX_CONNECTIONS:
            # Once the handler has begun; one that is cut off before would fail aloud.
            asyncio.get_running_loop().call_soon(transport.abort)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.made.pop(handler, None)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    return web.BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=MAX_BODY
    )
