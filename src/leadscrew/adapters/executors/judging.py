"""The judge of a scorer: on the engine's side the doors to it, in the scorer's process the way through one of them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from leadscrew.core.canonical import digest_of
from leadscrew.core.task import Answer, Instance
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Access, BadAnswer, Door, Gateway, Visit

MAX_JUDGING = 32
"""So many answers are judged at once; more wait."""


class Judges:
    """Doors to the judge's model, a new one for each answer that is scored: what a scorer leaves running finds it gone."""

    def __init__(self, gateway: Gateway, access: Access, folder: Path) -> None:
        self._gateway, self._access, self._folder = gateway, access, folder
        self._names = itertools.count()
        self._slots = asyncio.Semaphore(MAX_JUDGING)

    @contextlib.asynccontextmanager
    async def door(self) -> AsyncIterator[Door]:
        """Lend a door for one answer."""
        async with self._slots:
            door = await self._gateway.door(self._folder / f"judge-{os.getpid()}-{next(self._names)}.sock")
            try:
                yield door
            finally:
                await door.close()

    def visit(self, instance: Instance, answer: Answer, plan: int, candidate: str) -> Visit:
        """Return what the calls for one answer belong to. Equal answers to one instance share a scope: they are judged once."""
        access = replace(self._access, plan=plan, candidate=candidate)
        return Visit(access, "judge:" + digest_of([instance.id, answer.digest]), f"{instance.split}:{instance.id}")


class Asking:
    """The judge as one request of the scorer's process sees it. Its clock stands still while a call is being answered."""

    _threads = ThreadPoolExecutor(MAX_JUDGING, "judge")

    def __init__(self, path: str) -> None:
        self._path = path
        self._clock: asyncio.Timeout | None = None
        self._pending = 0
        self._left = 0.0

    def start(self, clock: asyncio.Timeout) -> None:
        """Take over the clock of the request."""
        self._clock = clock

    def end(self) -> None:
        """The request is over: its clock is nobody's any more."""
        self._clock = None

    async def __call__(self, prompt: str, options: Mapping[str, Any]) -> str:
        """Ask and return the text of the reply; raises `BadAnswer` where the judge cannot be asked about this answer."""
        loop = asyncio.get_running_loop()
        clock = self._clock
        when = clock.when() if clock is not None else None
        if self._pending == 0 and clock is not None and when is not None:
            self._left = when - loop.time()
            clock.reschedule(None)
        self._pending += 1
        try:
            return await loop.run_in_executor(self._threads, ask, self._path, prompt, options)
        finally:
            self._pending -= 1
            if self._pending == 0 and self._clock is not None and self._left:
                self._clock.reschedule(loop.time() + self._left)


def ask(path: str, prompt: str, options: Mapping[str, Any]) -> str:
    """Ask the model behind the door at `path`, which may be longer than a socket address, and return its reply's text."""
    more = dict(options)
    system = more.pop("system", None)
    messages = [] if system is None else [{"role": "system", "content": system}]
    body = {"messages": [*messages, {"role": "user", "content": prompt}], **more}
    data = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
    place = Path(path)
    link = http.client.HTTPConnection("leadscrew")
    try:
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            link.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.sock.connect(f"/proc/self/fd/{folder}/{place.name}")
        finally:
            os.close(folder)
        link.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json", "Connection": "close"})
        reply = link.getresponse()
        status, text = reply.status, reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise InfrastructureError(f"the way to the judge was cut off: {type(error).__name__}: {error}") from error
    finally:
        link.close()
    return _text(status, text)


def _text(status: int, text: bytes) -> str:
    try:
        reply = json.loads(text)
        if status == 200:
            content = reply["choices"][0]["message"]["content"]
            return content if isinstance(content, str) else ""
        message = str(reply["error"]["message"])
    except (ValueError, LookupError, TypeError) as error:
        raise InfrastructureError(f"the gateway gave the judge no reply that can be read: {text[:200]!r}") from error
    if status in (400, 403, 413):
        raise BadAnswer(f"the judge cannot be asked about this answer: {message}")
    raise InfrastructureError(f"the judge gave no reply: {message}")
