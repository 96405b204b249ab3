"""A gateway without models, for tests of executors: real sockets and real visits, with replies from a function."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from leadscrew.core.budget import Account, Spend
from leadscrew.ports import Visit, Visited

Answer = Callable[[Mapping[str, Any]], Any]
"""From the body of a request to the text of the reply or an awaitable of it."""


class Outage(Exception):
    """Raised by an `Answer`: the model is down, or, with `cap`, the run may use no more of that resource."""

    def __init__(self, message: str, cap: str = "") -> None:
        super().__init__(message)
        self.cap = cap


def echo(body: Mapping[str, Any]) -> str:
    """Reply with the last message, in capitals."""
    return str(body["messages"][-1]["content"]).upper()


class FakeGateway:
    """Implements `leadscrew.ports.Gateway` for tests. It speaks just enough of the OpenAI dialect, without streams.

    `answer` makes the replies. `left` lists every visit that ended and what came of it, `doors` the open doors, `refused`
    the calls outside a visit. A token is a word. A connection belongs to the visit in which it was made, and to no other.
    """

    def __init__(self, answer: Answer = echo) -> None:
        self.answer = answer
        self.left: list[tuple[Visit, Visited]] = []
        self.doors: set[FakeDoor] = set()
        self.opened = self.refused = 0

    async def door(self, path: Path) -> FakeDoor:
        """Open a door at a new socket `path`."""
        door = FakeDoor(self, path)
        door.server = await asyncio.start_unix_server(door.connected, sock=_bound(path))
        self.doors.add(door)
        self.opened += 1
        return door

    async def close(self) -> None:
        """Close all doors."""
        for door in tuple(self.doors):
            await door.close()


class FakeDoor:
    """The door of one box. Implements `leadscrew.ports.Door`."""

    def __init__(self, gateway: FakeGateway, path: Path) -> None:
        self.gateway, self.path = gateway, str(path)
        self.server: asyncio.Server | None = None
        self._visit: _Open | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def enter(self, visit: Visit) -> None:
        """Begin a visit."""
        self._cut()
        self._visit = _Open(visit)

    async def leave(self) -> Visited:
        """End the visit and return what happened."""
        here, self._visit = self._visit, None
        for _ in range(5):
            await asyncio.sleep(0)  # what waits to be accepted is accepted outside any visit
        self._cut()
        if here is None:
            return Visited()
        visited = here.result()
        self.gateway.left.append((here.visit, visited))
        return visited

    @property
    def busy_s(self) -> float:
        """Seconds of this visit in which a call was being answered."""
        return 0.0 if self._visit is None else self._visit.busy_s

    async def close(self) -> None:
        """Remove the socket."""
        self.gateway.doors.discard(self)
        self._visit = None
        if self.server is not None:
            self.server.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cut(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the one request of a connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Being cancelled is how a visit ends, and a client may go away at any time.
        with suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            status, reply = await self._answered(self._visit, reader)
            data = json.dumps(reply).encode()
            head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nx-should-retry: false\r\n"
            writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            await writer.drain()
        writer.close()

    async def _answered(self, here: _Open | None, reader: asyncio.StreamReader) -> tuple[int, Mapping[str, Any]]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        raw = await reader.readexactly(int(fields.get("content-length", "0")))
        if here is None or here is not self._visit:
            self.gateway.refused += 1
            return 403, _error("no visit is open at this door")
        method, path, _ = head[0].split(" ", 2)
        if (method, path) == ("GET", "/v1/allowance"):
            caps, used = here.account.caps, here.account.spent
            return 200, {
                "calls": {"limit": caps.calls, "left": None if caps.calls is None else caps.calls - used.calls}
            }
        if (method, path) != ("POST", "/v1/chat/completions"):
            return 404, _error(f"{method} {path} is not served here")
        return await here.call(json.loads(raw), self.gateway.answer)


class _Open:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.account = Account(visit.access.allowance)
        self.calls: list[Mapping[str, Any]] = []
        self.costs = dict.fromkeys(
            ("model_calls", "prompt_chars", "prompt_tokens", "reply_tokens", "context_chars"), 0.0
        )
        self.void = self.cap = self.exhausted = ""
        self._running, self._since, self._busy = 0, 0.0, 0.0

    @property
    def busy_s(self) -> float:
        return self._busy + (time.monotonic() - self._since if self._running else 0.0)

    async def call(self, body: Mapping[str, Any], answer: Answer) -> tuple[int, Mapping[str, Any]]:
        short = self.account.reserve(calls=1)
        if short is not None:
            self.exhausted = f"the allowance of {short} is used up"
            return 429, _error(self.exhausted)
        if not self._running:
            self._since = time.monotonic()
        self._running += 1
        spend = Spend(calls=1)
        try:
            text = answer(body)
            if inspect.isawaitable(text):
                text = await text
            prompt = "\n".join(str(message.get("content", "")) for message in body["messages"])
            spend = Spend(calls=1, tokens_in=len(prompt.split()), tokens_out=len(str(text).split()), micro_usd=1)
            self._count(prompt, str(text), spend)
        except Outage as error:
            self.void, self.cap = str(error), error.cap
            return 503, _error(str(error))
        finally:
            self.account.settle(spend, calls=1)
            self._running -= 1
            if not self._running:
                self._busy += time.monotonic() - self._since
        message = {"role": "assistant", "content": text}
        return 200, {
            "id": "fake", "object": "chat.completion", "created": 0, "model": "fake",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": spend.tokens_in, "completion_tokens": spend.tokens_out},
            "label_scores": {label: {"logprob": -float(n)} for n, label in enumerate(body.get("labels", ()))},
        }  # fmt: skip

    def _count(self, prompt: str, text: str, spend: Spend) -> None:
        self.calls.append({"prompt": prompt, "response": text, "role": self.visit.access.role})
        counted = {
            "model_calls": 1, "prompt_chars": len(prompt), "prompt_tokens": spend.tokens_in,
            "reply_tokens": spend.tokens_out, "context_chars": max(0, len(prompt) - self.visit.input_chars),
        }  # fmt: skip
        for name, value in counted.items():
            self.costs[name] += value

    def result(self) -> Visited:
        return Visited(self.account.spent, self.costs, tuple(self.calls), self.void, self.cap, self.exhausted)


def _error(message: str) -> Mapping[str, Any]:
    return {"error": {"message": message, "type": "gateway"}}


def _bound(path: Path) -> socket.socket:
    # The address of a socket is short; through its folder, opened, every path is.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.chmod(path, 0o666)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock
