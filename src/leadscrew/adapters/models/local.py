"""The small model that comes as a package: asked in a process of its own, one request after the other."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leadscrew.adapters.models.fetch import MODELS, file_of
from leadscrew.adapters.models.upstream import UpstreamFailed
from leadscrew.errors import ConfigError, InfrastructureError, MissingExtraError

LOAD_S = 120.0
LINE_BYTES = 64 << 20
TAIL_CHARS = 1500


def without_folders(text: str) -> str:
    """Return a text with the names of files but not their folders: messages about calls reach the inside of boxes.

    >>> without_folders("cannot open /home/me/models/tiny.gguf: 1/2")
    'cannot open tiny.gguf: 1/2'
    """
    return re.sub(r"(?<![\w.])/(?:[^\s/'\":,]+/)+", "", text)


class LocalRequestError(UpstreamFailed, InfrastructureError):
    """What was asked cannot be answered: a prompt that is too long, a grammar that is none, tools. It is the asker's mistake."""


class LocalModel:
    """`local/NAME`; a `leadscrew.ports.Model`. `cache` is the folder into which `leadscrew models get` fetched it.

    The model's process starts with the first request, is started once more if it dies, and ends with this one. It has one
    thread unless `threads` says otherwise. A reply at temperature 0 depends on its request alone, not on what was asked before.
    Besides the chat form, `labels` (a list of texts) asks for the likeliest of them; the reply then has `label_scores`, of all
    labels with `logprobs: true`. Tools are refused: a model of this size does not use them.
    """

    serial = True
    """One request after the other: time limits count from a request's turn."""

    def __init__(self, name: str, cache: Path, *, threads: int = 1) -> None:
        if name not in MODELS:
            raise ConfigError(f"there is no local model {name!r}; there is {', '.join(MODELS)}.", value=f"local/{name}")
        self.name = f"local/{name}"
        self._file, self._threads = file_of(name, cache), threads
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtraError(
                "local models run on the package xllamacpp. Install it: pip install 'leadscrew[local]'", extra="local"
            )
        self._process: asyncio.subprocess.Process | None = None
        self._closed = False
        self._turn = asyncio.Lock()
        self._numbers = itertools.count()
        self._log = bytearray()
        self._reader: asyncio.Task[None] | None = None

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request; raises `LocalRequestError` for what cannot be asked, `InfrastructureError` if the model cannot."""
        if request.get("tools"):
            raise LocalRequestError(
                f"{self.name} cannot use tools; ask in plain text, or with a grammar or a JSON schema.", status=400
            )
        async with self._turn:
            for attempt in (1, 2):
                if self._closed:
                    raise InfrastructureError(f"{self.name} is closed.")
                try:
                    said = await self._asked(request)
                    break
                except (EOFError, ConnectionError) as error:
                    await self._end()
                    if attempt == 2:
                        raise InfrastructureError(f"the process of {self.name} died twice. {self._tail()}") from error
                except BaseException:
                    # A reply that nobody waits for would be taken for the next one's.
                    await self._end()
                    raise
        if "bad" in said:
            raise LocalRequestError(f"{self.name}: {said['bad']}", status=400)
        if "error" in said:
            raise InfrastructureError(f"{self.name}: {without_folders(str(said['error']))}")
        reply: Mapping[str, Any] = said["ok"]
        return reply

    async def close(self) -> None:
        """End the model's process; nothing is answered after that."""
        self._closed = True
        await self._end()

    async def _asked(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        number = next(self._numbers)
        process.stdin.write(json.dumps({"id": number, "body": dict(request)}).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise EOFError
        said: Mapping[str, Any] = json.loads(line)
        return said

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None:
            return self._process
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "leadscrew.adapters.models.local_server",
            str(self._file),
            "--threads",
            str(self._threads),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
            start_new_session=True,
        )
        self._process = process
        self._reader = asyncio.create_task(self._listen(process))
        assert process.stdout is not None
        try:
            async with asyncio.timeout(LOAD_S):
                line = await process.stdout.readline()
        except TimeoutError as error:
            raise InfrastructureError(f"{self.name} was not loaded within {LOAD_S:g} s. {self._tail()}") from error
        if not line:
            raise EOFError
        return process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep the end of what the native code logs, for messages."""
        assert process.stderr is not None
        while data := await process.stderr.read(1 << 14):
            self._log += data
            del self._log[: -4 * TAIL_CHARS]

    def _tail(self) -> str:
        text = bytes(self._log).decode("utf-8", "replace").strip()
        return f"It said: ...{without_folders(text)[-TAIL_CHARS:]}" if text else ""

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
            if self._reader is not None:
                # Its last words are for the message; the pipe ends with it.
                await asyncio.wait({self._reader}, timeout=1.0)
            # The transport goes with it, and warns if it is left to the collector.
            transport = getattr(process, "_transport", None)
            if transport is not None:
                transport.close()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
