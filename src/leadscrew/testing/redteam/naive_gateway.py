"""A gateway without defences, in the way many are written: the positive control of attacks on the gateway.

It believes what clients say of themselves, keeps connections for as long as they like, counts without holding anybody to
the count, passes requests, headers and replies on as they are, and remembers replies by the words of the prompt alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import unicodedata
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadscrew.core.budget import Spend
from leadscrew.ports import Visit, Visited

if TYPE_CHECKING:
    from aiohttp import ClientSession, web

_QUIET = logging.getLogger("leadscrew.redteam")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
HOP = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}


@dataclass(frozen=True, slots=True)
class Made:
    """One call: whose it is held to be, and what was asked last."""

    role: str
    plan: int
    candidate: str
    scope: str
    prompt: str


class NaiveGateway:
    """The gateway port without defences. `raw` passes bytes on as they are, and takes a connection for a call; `serial`
    serves one connection after the other.
    """

    def __init__(self, url: str, key: str, *, raw: bool = False, serial: bool = False) -> None:
        self.url, self.key, self.raw, self.serial = url, key, raw, serial
        self.turn = asyncio.Lock()
        self.made: list[Made] = []
        self.paths: list[str] = []
        self.whole = False
        """Whether the cache is off."""
        self.log: list[str] = []
        """What it noted for its user; headers and replies as they were."""
        self.cache: dict[str, tuple[int, str, bytes]] = {}
        self._session: ClientSession | None = None
        self._doors: set[NaiveDoor] = set()

    async def door(self, path: Path) -> NaiveDoor:
        """Listen at a unix socket."""
        door = NaiveDoor(self, path)
        await door.open()
        self._doors.add(door)
        return door

    async def close(self) -> None:
        """Stop."""
        for door in tuple(self._doors):
            await door.close()
        if self._session is not None:
            await self._session.close()

    async def handle(self, door: NaiveDoor, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        from aiohttp import ClientError, ClientSession, web

        raw = await request.read()
        try:
            body = json.loads(raw)
            prompt = str(body["messages"][-1]["content"])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            return web.json_response({"error": {"message": f"{error}; the key is {self.key}"}}, status=400)
        visit, told = door.visit, {**body, **request.query, **{k.lower(): v for k, v in request.headers.items()}}
        if visit is None:
            visit = door.last
        made = Made(
            str(told.get("x-role") or (visit.access.role if visit else "")),
            int(told.get("x-plan") or (visit.access.plan if visit else 0)),
            str(told.get("x-candidate") or told.get("user") or (visit.access.candidate if visit else "")),
            str(told.get("x-trial") or (visit.scope if visit else "")),
            prompt,
        )
        self.made.append(made)
        door.calls += 1
        name = f"{request.method}{_folded(prompt)}{len(self.made) if self.whole else ''}"
        self.paths.append(request.path_qs)
        if name not in self.cache:
            model = str(body.get("model", ""))
            url = str(body.get("api_base") or (model if model.startswith("http") else f"{self.url}/chat/completions"))
            sent = {k: v for k, v in request.headers.items() if k.lower() not in HOP | {"authorization"}}
            sent["Authorization"] = f"Bearer {self.key}"
            self.log.append(repr(sent))
            self._session = self._session or ClientSession()
            try:
                async with self._session.post(url, data=raw, headers=sent) as got:
                    data = await got.read()
                    kind = got.headers.get("Content-Type", "application/json").partition(";")[0]
                    self.cache[name] = (got.status, kind, data)
            except ClientError as error:
                self.cache[name] = (502, "application/json", json.dumps({"error": {"message": str(error)}}).encode())
        status, kind, data = self.cache[name]
        return web.Response(body=data, status=status, content_type=kind)


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


class NaiveDoor:
    """The door port without defences. It listens at a port of loopback too, as the way from a box for official clients."""

    def __init__(self, gateway: NaiveGateway, path: Path) -> None:
        self.path, self.port = str(path), 0
        self.visit: Visit | None = None
        self.last: Visit | None = None
        self.calls = 0
        self._gateway = gateway
        self._servers: list[asyncio.Server] = []
        self._web: Any = None
        self._pipes: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen."""
        from aiohttp import web

        from leadscrew.adapters.models.doors import bound_socket

        loop = asyncio.get_running_loop()
        sock = bound_socket(Path(self.path))
        if self._gateway.raw or self._gateway.serial:
            self._servers = [await asyncio.start_unix_server(self._connected, sock=sock)]
            return
        self._web = web.Server(lambda request: self._gateway.handle(self, request), access_log=None, logger=_QUIET)
        self._servers = [await loop.create_server(self._web, sock=sock)]
        self._servers.append(await loop.create_server(self._web, "127.0.0.1", 0))
        self.port = self._servers[1].sockets[0].getsockname()[1]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._pipe(reader, writer))
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Count one call and carry bytes both ways."""
        from urllib.parse import urlsplit

        there = urlsplit(self._gateway.url)
        async with self._gateway.turn if self._gateway.serial else nullcontext():
            self.calls += 1
            far, out = await asyncio.open_connection(there.hostname, there.port)
            try:
                await asyncio.gather(_carry(reader, out), _carry(far, writer))
            finally:
                out.transport.abort()

    def enter(self, visit: Visit) -> None:
        """Begin a visit."""
        self.visit = self.last = visit
        self.calls = 0

    async def leave(self) -> Visited:
        """End a visit; whatever went wrong in it, its answer counts."""
        self.visit = None
        return Visited(Spend(calls=self.calls))

    @property
    def busy_s(self) -> float:
        """The clock never stands still here."""
        return 0.0

    async def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()
        for task in tuple(self._pipes):
            task.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        await asyncio.sleep(0.01)
        if self._web is not None:
            await self._web.shutdown(0.1)
        Path(self.path).unlink(missing_ok=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (ConnectionError, OSError):
        writer.close()  # the other side has gone
