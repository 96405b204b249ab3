"""A real gateway over a real store, a model in this process that counts what it is asked, and a client over the socket."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from leadscrew.adapters.models.gateway import ModelGateway
from leadscrew.adapters.models.metering import Priced, RoleModel
from leadscrew.adapters.models.redact import Redactor
from leadscrew.adapters.models.replay import Replay
from leadscrew.adapters.models.upstream import Upstream
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Account, Caps
from leadscrew.core.call import Pin
from leadscrew.engine.commit import Committer
from leadscrew.engine.meter import Meter
from leadscrew.ports import Access, Event, Visit

Answer = Callable[[Mapping[str, Any]], str]


def last_text(request: Mapping[str, Any]) -> str:
    """Return the last message of a request as text."""
    content = request["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def completion(
    text: str, tokens_in: int | None = 7, tokens_out: int | None = 3, finish: str = "stop"
) -> dict[str, Any]:
    """Return a reply in the OpenAI form."""
    reply: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
    }
    if tokens_in is not None:
        reply["usage"] = {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + (tokens_out or 0),
        }
    return reply


@dataclass
class Counting:
    """A model in this process. `answer` makes the reply's text; `hold`, if set, must be set off before it replies."""

    answer: Answer = last_text
    tokens: tuple[int | None, int | None] = (7, 3)
    hold: asyncio.Event | None = None
    name: str = "counting"
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    running: int = 0
    most: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    async def together(self, count: int) -> None:
        """Wait until so many requests are being answered at once."""
        while self.running < count:
            self.arrived.clear()
            await self.arrived.wait()

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request."""
        self.asked.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        self.arrived.set()
        try:
            if self.hold is not None:
                await self.hold.wait()
            else:
                await asyncio.sleep(0)
            return completion(self.answer(request), *self.tokens)
        finally:
            self.running -= 1
            self.finished.set()

    async def close(self) -> None:
        """Take note."""
        self.closed = True


class World:
    """A run's store, accounts and gateway in one folder; made again over the same folder it is the resumed run."""

    def __init__(
        self,
        folder: Path,
        roles: Mapping[str, RoleModel],
        *,
        caps: Caps = Caps(),
        role_caps: Mapping[str, Caps] | None = None,
        secrets: tuple[str, ...] = (),
        replay: Path | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        self.folder = folder
        run = folder / "run"
        fresh = not (run / "run.db").exists()
        self.store = SQLiteStore.create(run, config={}, seed=1) if fresh else SQLiteStore.open(run)
        self.meter = Meter(
            caps, before=self.store.spend(), calls_before=self.store.call_spend(), role_caps=role_caps or {}
        )
        self.events: list[Event] = []
        recorded = None if replay is None else SQLiteStore.open(replay / "run", readonly=True)
        self.gateway = ModelGateway(
            roles=roles,
            store=self.store,
            committer=Committer(self.store),
            accounts=self.account,
            upstream=upstream,
            redact=Redactor(secrets),
            replay=None if recorded is None else Replay(recorded),
            observe=self.events.append,
        )

    def account(self, role: str, plan: int) -> Account:
        """Return the account that pays."""
        return self.meter.calls(role, plan)

    async def close(self) -> None:
        """End everything in order."""
        await self.gateway.close()
        self.kill()

    def kill(self) -> None:
        """Let go of the files and of nothing else: what was not durable is lost, what was in flight stays without reply."""
        self.store.close()


def role(
    backend: Any, name: str = "solver", *, max_tokens: int = 16, price: Priced | None = None, **more: Any
) -> RoleModel:
    """Return a role with a model."""
    pin = Pin(name, f"test/{getattr(backend, 'name', 'model')}", temperature=0.0, max_tokens=max_tokens)
    return RoleModel(pin, backend, price=price, **more)


def visit(
    scope: str = "trial-1", *, role: str = "solver", instance: str = "i1", allowance: Caps = Caps(), **more: Any
) -> Visit:
    """Return a visit of the solver on one instance."""
    access = Access(role, more.pop("plan", 1), more.pop("candidate", "1.0"), allowance)
    return Visit(access, scope, instance, **more)


def chat(text: str, **more: Any) -> dict[str, Any]:
    """Return a request in the OpenAI form."""
    return {"model": "whatever", "messages": [{"role": "user", "content": text}], **more}


@asynccontextmanager
async def connected(path: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Return a client of one door, however long its path is."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        connector = aiohttp.UnixConnector(f"/proc/self/fd/{folder}/{os.path.basename(path)}", limit=0)
        async with aiohttp.ClientSession("http://gateway", connector=connector) as session:
            yield session
    finally:
        os.close(folder)


@dataclass
class Got:
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The JSON of it."""
        return json.loads(self.raw)

    @property
    def text(self) -> str:
        """The text of a reply in either form."""
        body = self.body
        return str(body["choices"][0]["message"]["content"] if "choices" in body else body["content"][0]["text"])


async def post(
    path: str, body: Any, route: str = "/v1/chat/completions", headers: Mapping[str, str] | None = None
) -> Got:
    """Make one call at a door."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with connected(path) as session, session.post(route, data=io.BytesIO(data), headers=headers) as response:
        return Got(response.status, dict(response.headers), await response.read())


async def get(path: str, route: str, headers: Mapping[str, str] | None = None) -> Got:
    """Fetch something at a door."""
    async with connected(path) as session, session.get(route, headers=headers) as response:
        return Got(response.status, dict(response.headers), await response.read())
