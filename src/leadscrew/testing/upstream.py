"""A scripted provider of models on this machine, over real HTTP: for tests, demonstrations and fault drills.

As a process of its own: `python -m leadscrew.testing.upstream --log FILE` prints its address and replies to each prompt with a
word that depends on the prompt alone.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leadscrew.adapters.models.dialects import ANTHROPIC, OPENAI, Dialect, translate_reply, translate_request
from leadscrew.adapters.models.providers import Provider

if TYPE_CHECKING:
    from aiohttp import web

Fault = Literal[
    "rate_limit",
    "error",
    "unavailable",
    "stall",
    "stall_midway",
    "reset",
    "truncated_json",
    "truncated_stream",
    "not_json",
    "no_usage",
    "usage_zero",
    "usage_huge",
    "usage_negative",
    "usage_text",
    "echo_key",
    "echo_key_in_error",
]
"""What can go wrong with one request. `rate_limit` is 429 with Retry-After 0, `error` 500, `unavailable` 503."""

Reply = Callable[[dict[str, Any]], "str | Mapping[str, Any]"]


class ScriptedUpstream:
    """A server that speaks both dialects, streamed and whole. `reply(request)` gets each request in the OpenAI form and
    returns a text, or a whole reply in that form (with tool calls, say). `delay_s` is how long a reply takes.

    `fault(number, request)` names what goes wrong with the n-th request from 0, None for nothing; a list names it in turn.
    Tokens are counted as one for each four bytes of prompt and reply, and summed up in `tokens_in` and `tokens_out` for the
    replies that were given whole.

    >>> import asyncio
    >>> async def number_of_requests():
    ...     async with ScriptedUpstream(lambda request: "yes") as upstream:
    ...         return upstream.requests
    >>> asyncio.run(number_of_requests())
    0
    """

    def __init__(
        self,
        reply: Reply,
        *,
        fault: Callable[[int, dict[str, Any]], Fault | None] | Iterable[Fault | None] = (),
        delay_s: float = 0.0,
        port: int = 0,
    ) -> None:
        self._reply, self._delay_s = reply, delay_s
        faults = None if callable(fault) else list(fault)
        self._fault = fault if callable(fault) else lambda n, _: faults[n] if faults and n < len(faults) else None
        self.port = port
        self.requests = 0
        self.running = 0
        self.most = 0
        self.tokens_in = self.tokens_out = 0
        self.bodies: list[dict[str, Any]] = []
        """The requests as they came, in their own dialect."""
        self.headers: list[dict[str, str]] = []
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The base address of the OpenAI dialect and of the Anthropic one."""
        return f"http://127.0.0.1:{self.port}/v1"

    def provider(self, name: str = "scripted-upstream", *, key_env: str = "", anthropic: bool = False) -> Provider:
        """Return this server as a provider."""
        return Provider(name, self.url, key_env, "anthropic" if anthropic else "openai", local=True)

    async def start(self) -> None:
        """Begin to listen, at the same port as before if it was stopped."""
        from aiohttp import web

        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/messages", self._messages)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Go down: connections are cut, and new ones are refused."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> ScriptedUpstream:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # -- one request ---------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, OPENAI)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, ANTHROPIC)

    async def _serve(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        body = await request.json()
        number, self.requests = self.requests, self.requests + 1
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self._answer(request, dialect, body, self._fault(number, body))
        finally:
            self.running -= 1

    async def _answer(
        self, request: web.Request, dialect: Dialect, body: dict[str, Any], fault: Fault | None
    ) -> web.StreamResponse:
        from aiohttp import web

        key = request.headers.get("Authorization", "") or request.headers.get("x-api-key", "")
        refused = {"rate_limit": 429, "error": 500, "unavailable": 503, "echo_key_in_error": 401}.get(fault or "")
        if refused is not None:
            text = f"your header was {key}" if fault == "echo_key_in_error" else f"scripted: {fault}"
            headers = {"Retry-After": "0"} if fault == "rate_limit" else {}
            return web.json_response(dialect.error(text, "unavailable", refused), status=refused, headers=headers)
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault == "reset":
            self._cut(request)
            return web.Response()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        plain = dict(body) if dialect is OPENAI else dict(translate_request(body, ANTHROPIC, OPENAI))
        said = self._reply(plain)
        if fault == "echo_key":
            said = f"your header was {key}"
        whole = self._whole(plain, said, fault)
        reply = whole if dialect is OPENAI else translate_reply(whole, OPENAI, ANTHROPIC)
        if fault == "not_json":
            return web.Response(text="<html>not here</html>", content_type="text/html")
        if body.get("stream"):
            return await self._stream(request, dialect, body, reply, fault)
        text = json.dumps(reply)
        if fault == "truncated_json":
            text = text[: len(text) // 2]
        return web.Response(text=text, content_type="application/json")

    async def _stream(
        self,
        request: web.Request,
        dialect: Dialect,
        body: Mapping[str, Any],
        reply: Mapping[str, Any],
        fault: Fault | None,
    ) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        wanted = body.get("stream_options") or {}
        events = list(dialect.events(reply, include_usage=bool(wanted.get("include_usage"))))
        for number, event in enumerate(events):
            if number == max(len(events) // 2, 1):
                if fault == "stall_midway":
                    await asyncio.sleep(3600)
                if fault == "truncated_stream":
                    break
            await response.write(event)
        return response

    @staticmethod
    def _cut(request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()

    def _whole(self, request: Mapping[str, Any], said: str | Mapping[str, Any], fault: Fault | None) -> dict[str, Any]:
        if isinstance(said, str):
            said = {
                "id": "chatcmpl-scripted",
                "object": "chat.completion",
                "created": 0,
                "model": str(request.get("model", "scripted")),
                "choices": [
                    {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"},
                ],
            }
        whole = dict(said)
        tokens_in, tokens_out = count_tokens(OPENAI.prompt(request)), count_tokens(OPENAI.text(whole))
        if fault is None or fault in ("no_usage", "usage_zero", "usage_huge", "usage_negative", "usage_text"):
            self.tokens_in += tokens_in
            self.tokens_out += tokens_out
        lies: dict[str, tuple[Any, Any]] = {
            "usage_zero": (0, 0),
            "usage_huge": (10**9, 10**9),
            "usage_negative": (-5, -7),
            "usage_text": ("many", "few"),
        }
        told = lies.get(fault or "", (tokens_in, tokens_out))
        whole["usage"] = {"prompt_tokens": told[0], "completion_tokens": told[1], "total_tokens": told[0]}
        if fault == "no_usage":
            del whole["usage"]
        return whole


def count_tokens(text: str) -> int:
    """Return one token for each four bytes begun, and at least one.

    >>> count_tokens("abcde"), count_tokens("")
    (2, 1)
    """
    return max(1, math.ceil(len(text.encode("utf-8", "replace")) / 4))


def prompt_digest(request: Mapping[str, Any]) -> str:
    """Return the digest of a request's text, by which the log of the process form names it."""
    return hashlib.sha256(OPENAI.prompt(request).encode("utf-8", "replace")).hexdigest()


def main(arguments: list[str] | None = None) -> None:
    """Serve until the process is ended. The first line on standard output is the base address."""
    parser = argparse.ArgumentParser(prog="python -m leadscrew.testing.upstream", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, metavar="S", help="seconds that a reply takes")
    parser.add_argument("--log", type=Path, help="a file that gets the digest of each request's text, one per line")
    args = parser.parse_args(arguments)

    def reply(request: dict[str, Any]) -> str:
        digest = prompt_digest(request)
        if args.log is not None:
            with open(args.log, "a", encoding="ascii") as log:
                log.write(digest + "\n")
        return f"word-{digest[:8]}"

    async def serve() -> None:
        async with ScriptedUpstream(reply, delay_s=args.delay, port=args.port) as upstream:
            print(upstream.url, flush=True)
            await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
