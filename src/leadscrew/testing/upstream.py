"""A scripted provider of models on this machine, over real HTTP: for tests, demonstrations and fault drills.

As a process of its own: `python -m leadscrew.testing.upstream --log FILE` prints its address and replies to each prompt with a
word that depends on the prompt alone; `--help` shows the other replies, faults, and how to listen on a unix socket.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from leadscrew.adapters.models.dialects import (
    ANTHROPIC,
    OPENAI,
    BadRequest,
    Dialect,
    translate_reply,
    translate_request,
)
from leadscrew.adapters.models.providers import Provider

if TYPE_CHECKING:
    from aiohttp import web

Fault = Literal[
    "down",
    "rate_limit",
    "error",
    "unavailable",
    "unpaid",
    "stall",
    "stall_midway",
    "reset",
    "reset_midway",
    "truncated_json",
    "truncated_stream",
    "not_json",
    "wrong_type",
    "error_in_reply",
    "no_usage",
    "usage_zero",
    "usage_huge",
    "usage_negative",
    "usage_text",
    "echo_key",
    "echo_key_in_error",
]
"""What can go wrong with one request. `down` cuts the connection and listens no more until `start`. `rate_limit` is 429 with
`retry_after`, `error` 500, `unavailable` 503, `unpaid` 402. `stall` never answers, `stall_midway` stops in the middle of a
stream, `reset` and `reset_midway` abort the connection. `not_json` is a page of HTML with the status 200, `wrong_type` a right
reply that calls itself HTML, `error_in_reply` an error with the status 200. `echo_key` and `echo_key_in_error` show the key
that came with the request. The faults of the middle of a stream only show in streams, `truncated_json` only outside of them."""

Reply = Callable[[dict[str, Any]], "str | Mapping[str, Any]"]

_REFUSED = {"rate_limit": 429, "error": 500, "unavailable": 503, "unpaid": 402, "echo_key_in_error": 401}
_WHOLE = (None, "no_usage", "usage_zero", "usage_huge", "usage_negative", "usage_text", "wrong_type", "echo_key")
"""With these a reply is given whole, and its tokens count."""


class ScriptedUpstream:
    """A server that speaks both dialects, streamed and whole. `reply(request)` gets each request in the OpenAI form and
    returns a text, a message (with `tool_calls`, say) or a whole reply in that form. `delay_s` is how long a reply takes.

    `fault(number, request)` names what goes wrong with the n-th request from 0, None for nothing; a list names it in turn.
    Tokens are counted as one for each four bytes of prompt and reply, and summed up in `tokens_in` and `tokens_out` for the
    replies that were given whole. `log` is a file that gets the digest of each request (`prompt_digest`) as it arrives, one per
    line, whatever becomes of it. It listens at a `port` of the loopback address (0: any free one), or at a unix `socket`.

    >>> import asyncio
    >>> from leadscrew.adapters.models.upstream import Upstream
    >>> async def ask():
    ...     async with ScriptedUpstream(lambda request: "four", fault=["rate_limit"]) as served:
    ...         upstream = Upstream({})
    ...         body = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    ...         reply = await upstream.send(served.provider(), body, timeout_s=10, retries=1)
    ...         await upstream.close()
    ...         return reply.body["choices"][0]["message"]["content"], served.requests, served.tokens_out
    >>> asyncio.run(ask())
    ('four', 2, 1)
    """

    def __init__(
        self,
        reply: Reply,
        *,
        fault: Callable[[int, dict[str, Any]], Fault | None] | Iterable[Fault | None] = (),
        delay_s: float = 0.0,
        retry_after: str = "0",
        port: int = 0,
        socket: str | Path | None = None,
        log: str | Path | None = None,
    ) -> None:
        self._reply, self._delay_s, self._retry_after = reply, delay_s, retry_after
        faults = None if callable(fault) else list(fault)
        self._fault = fault if callable(fault) else lambda n, _: faults[n] if faults and n < len(faults) else None
        self.port = port
        self._socket = socket
        self._log = log
        self.requests = 0
        self.running = 0
        self.most = 0
        """The most requests that were being answered at the same time."""
        self.tokens_in = self.tokens_out = 0
        self.bodies: list[dict[str, Any]] = []
        """The requests as they came, in their own dialect."""
        self.headers: list[dict[str, str]] = []
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | web.UnixSite | None = None

    @property
    def url(self) -> str:
        """The base address of the OpenAI dialect and of the Anthropic one; with a unix socket its path after `unix:`."""
        if self._socket is not None:
            return f"unix:{self._socket}"
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
        await self.stop()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        if self._socket is not None:
            self._site = web.UnixSite(self._runner, str(self._socket))
        else:
            self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await self._site.start()
        if self._socket is None:
            self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Go down: connections are cut, and new ones are refused."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self._site = None
            await runner.cleanup()

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
        from aiohttp import web

        text = await request.text()
        try:
            body = json.loads(text)
            plain = dict(body) if dialect is OPENAI else dict(translate_request(body, ANTHROPIC, OPENAI))
        except (ValueError, TypeError, BadRequest) as error:
            return web.json_response(dialect.error(str(error), "invalid_request", 400), status=400)
        number, self.requests = self.requests, self.requests + 1
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self._log is not None:
            _append(self._log, prompt_digest(plain))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self._answer(request, dialect, body, plain, self._fault(number, body))
        finally:
            self.running -= 1

    async def _answer(
        self,
        request: web.Request,
        dialect: Dialect,
        body: dict[str, Any],
        plain: dict[str, Any],
        fault: Fault | None,
    ) -> web.StreamResponse:
        from aiohttp import web

        key = request.headers.get("Authorization", "") or request.headers.get("x-api-key", "")
        if fault in _REFUSED:
            status = _REFUSED[fault]
            text = f"your header was {key}" if fault == "echo_key_in_error" else f"scripted: {fault}"
            headers = {"Retry-After": self._retry_after} if fault == "rate_limit" else {}
            return web.json_response(dialect.error(text, "unavailable", status), status=status, headers=headers)
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault == "down" and self._site is not None:
            # The rest of `stop` would wait for this very request.
            await self._site.stop()
        if fault in ("reset", "down"):
            _cut(request)
            return web.Response()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if fault == "not_json":
            return web.Response(text="<html>not here</html>", content_type="text/html")
        if fault == "error_in_reply" and not body.get("stream"):
            return web.json_response(dialect.error("scripted: error in reply", "unavailable", 503))
        said = f"your header was {key}" if fault == "echo_key" else self._reply(plain)
        whole = self._whole(plain, said, fault)
        reply = whole if dialect is OPENAI else translate_reply(whole, OPENAI, ANTHROPIC)
        if dialect is ANTHROPIC and fault is not None and fault.startswith("usage_"):
            reply["usage"] = dict(zip(("input_tokens", "output_tokens"), _LIES[fault], strict=True))
        if body.get("stream"):
            return await self._stream(request, dialect, body, reply, fault)
        text = json.dumps(reply)
        if fault == "truncated_json":
            text = text[: len(text) // 2]
        return web.Response(text=text, content_type="text/html" if fault == "wrong_type" else "application/json")

    async def _stream(
        self,
        request: web.Request,
        dialect: Dialect,
        body: Mapping[str, Any],
        reply: Mapping[str, Any],
        fault: Fault | None,
    ) -> web.StreamResponse:
        from aiohttp import web

        kind = "text/html" if fault == "wrong_type" else "text/event-stream"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        if fault == "error_in_reply":
            await response.write(dialect.error_event(dialect.error("scripted: error in reply", "unavailable", 503)))
            return response
        wanted = body.get("stream_options") or {}
        events = list(dialect.events(reply, include_usage=bool(wanted.get("include_usage"))))
        for number, event in enumerate(events):
            if number == max(len(events) // 2, 1):
                if fault == "stall_midway":
                    await asyncio.sleep(3600)
                if fault == "reset_midway":
                    _cut(request)
                if fault in ("truncated_stream", "reset_midway"):
                    break
            await response.write(event)
        return response

    def _whole(self, request: Mapping[str, Any], said: str | Mapping[str, Any], fault: Fault | None) -> dict[str, Any]:
        message: dict[str, Any] = {"content": said} if isinstance(said, str) else dict(said)
        whole = message
        if "choices" not in message:
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            whole = {  # a message alone
                "id": "chatcmpl-scripted",
                "object": "chat.completion",
                "created": 0,
                "model": str(request.get("model", "scripted")),
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": None, **message},
                        "finish_reason": finish,
                    },
                ],
            }
        tokens_in, tokens_out = count_tokens(OPENAI.prompt(request)), count_tokens(OPENAI.text(whole))
        if fault in _WHOLE:
            self.tokens_in += tokens_in
            self.tokens_out += tokens_out
        told: tuple[Any, Any] = _LIES.get(fault or "", (tokens_in, tokens_out))
        whole["usage"] = {"prompt_tokens": told[0], "completion_tokens": told[1], "total_tokens": told[0]}
        if fault == "no_usage":
            del whole["usage"]
        return whole


_LIES: Mapping[str, tuple[Any, Any]] = {
    "usage_zero": (0, 0),
    "usage_huge": (10**9, 10**9),
    "usage_negative": (-5, -7),
    "usage_text": ("many", "few"),
}


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _append(path: str | Path, line: str) -> None:
    """Add a line in one write, so that lines of several processes and a kill leave whole lines."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def count_tokens(text: str) -> int:
    """Return one token for each four bytes begun, and at least one.

    >>> count_tokens("abcde"), count_tokens("")
    (2, 1)
    """
    return max(1, math.ceil(len(text.encode("utf-8", "replace")) / 4))


def prompt_digest(request: Mapping[str, Any]) -> str:
    """Return the digest of a request's text, by which the log of the process form names it."""
    return hashlib.sha256(OPENAI.prompt(request).encode("utf-8", "replace")).hexdigest()


def _last(request: Mapping[str, Any]) -> str:
    content = request["messages"][-1].get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def behaviours(labels: Sequence[str] = ("yes", "no")) -> dict[str, Reply]:
    """Return the replies of the process form by name: `word` depends on the prompt's digest, `echo` is the last message,
    `length` the number of its characters, and `label` one of `labels`, chosen by the digest.

    >>> request = {"messages": [{"role": "user", "content": "2 + 2"}]}
    >>> {name: reply(request) for name, reply in behaviours().items()}
    {'word': 'word-2300255b', 'echo': '2 + 2', 'length': '5', 'label': 'no'}
    """
    return {
        "word": lambda request: f"word-{prompt_digest(request)[:8]}",
        "echo": _last,
        "length": lambda request: str(len(_last(request))),
        "label": lambda request: labels[int(prompt_digest(request), 16) % len(labels)],
    }


def main(arguments: list[str] | None = None) -> None:
    """Serve until the process is ended. The first line on standard output is the base address."""
    parser = argparse.ArgumentParser(prog="python -m leadscrew.testing.upstream", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="a port of the loopback address; 0: any free one")
    parser.add_argument("--socket", metavar="PATH", help="listen at a unix socket instead")
    parser.add_argument("--delay", type=float, default=0.0, metavar="S", help="seconds that a reply takes")
    parser.add_argument("--log", type=Path, help="a file that gets the digest of each request's text, one per line")
    parser.add_argument("--reply", choices=sorted(behaviours()), default="word", help="what is replied")
    parser.add_argument("--labels", default="yes,no", help="for --reply label: the labels, with commas between them")
    parser.add_argument(
        "--faults", default="", help=f"what goes wrong with the first requests, as 'error,,stall'; of {get_args(Fault)}"
    )
    args = parser.parse_args(arguments)
    faults = [cast(Fault, name.strip()) or None for name in args.faults.split(",")]
    unknown = {name for name in faults if name} - set(get_args(Fault))
    if unknown:
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    reply = behaviours([label.strip() for label in args.labels.split(",")])[args.reply]

    async def serve() -> None:
        async with ScriptedUpstream(
            reply, fault=faults, delay_s=args.delay, port=args.port, socket=args.socket, log=args.log
        ) as upstream:
            print(upstream.url, flush=True)
            await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
