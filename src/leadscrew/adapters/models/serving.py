"""The HTTP side of a door: routes, bodies, replies, errors and streams, in the dialect of the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from aiohttp import ClientError, web

from leadscrew.adapters.models.asked import CUT, Desk, Refusal
from leadscrew.adapters.models.dialects import ANTHROPIC, OPENAI, Dialect
from leadscrew.adapters.models.dialects.sse import payload
from leadscrew.adapters.models.visits import OpenVisit
from leadscrew.errors import InfrastructureError

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request; more is refused."""
MAX_CALLS = 64
"""Requests of one door that are worked on at once; more wait."""
LARGE_BODY = 1024 * 1024
LARGE_CALLS = 4
"""Of requests with more than `LARGE_BODY` bytes, or of unknown length, so many at once: a box must not fill our memory."""
NO_RETRY = {"x-should-retry": "false"}
"""The official clients obey it: what was refused here is refused again."""
EPOCH = "1970-01-01T00:00:00Z"


class Clerk:
    """Answers the requests of one door."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._large = asyncio.Semaphore(LARGE_CALLS)

    async def handle(self, visit: OpenVisit | None, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request of a visit; None refuses everything. Only method, path and body have a meaning."""
        client = _dialect_for(request)
        small = request.content_length is not None and request.content_length <= LARGE_BODY
        try:
            async with self._slots, nullcontext() if small or not request.body_exists else self._large:
                return await self._routed(visit, request, client)
        except Refusal as refusal:
            return _error(client, refusal)
        except InfrastructureError as error:
            return _error(client, Refusal(503, "unavailable", str(error)))
        except Exception as error:
            message = f"the gateway cannot make anything of this request: {type(error).__name__}: {error}"
            return _error(client, Refusal(500, "unavailable", message))

    async def _routed(self, visit: OpenVisit | None, request: web.BaseRequest, client: Dialect) -> web.StreamResponse:
        if visit is None or visit.closed:
            raise Refusal(403, "permission", "no visit is open at this door: calls are for programs while they run.")
        route = (request.method, request.path.removeprefix("/v1"))
        if route == ("GET", "/models"):
            return _json(self._models(visit))
        if route == ("GET", "/allowance"):
            return _json(self._allowance(visit))
        if route == ("POST", "/messages/count_tokens"):
            estimate = self._desk.estimate(visit, client, await _body_of(request))
            return _json({"input_tokens": estimate, "estimate": "upper bound by bytes"})
        if route not in (("POST", "/chat/completions"), ("POST", "/messages")):
            raise Refusal(
                404,
                "not_found",
                f"{request.method} {request.path[:80]} is not served here; there are /v1/chat/completions, /v1/messages, "
                "/v1/messages/count_tokens, /v1/models and /v1/allowance.",
            )
        body = await _body_of(request)
        if visit.closed:
            raise Refusal(403, "permission", CUT)
        stream = _Stream(client, body) if body.get("stream") is True else None
        task = asyncio.create_task(self._desk.answer(visit, client, body, stream))
        visit.adopt(task)
        if stream is not None:
            return await stream.send(request, task)
        return _json(await _outcome(task))

    def _models(self, visit: OpenVisit) -> dict[str, Any]:
        pin = self._desk.model_of(visit.visit).pin
        model = {
            "id": pin.model,
            "object": "model",
            "type": "model",
            "display_name": pin.model,
            "created": 0,
            "created_at": EPOCH,
            "owned_by": pin.model.partition("/")[0],
        }
        ends = {"first_id": pin.model, "last_id": pin.model, "has_more": False}
        return {"object": "list", "data": [model], **ends}

    def _allowance(self, visit: OpenVisit) -> dict[str, Any]:
        caps, used = visit.own.caps, visit.own.spent + visit.own.held
        tokens = used.tokens_in + used.tokens_out
        pin = self._desk.model_of(visit.visit).pin
        return {
            "role": pin.role,
            "model": pin.model,
            "max_tokens": pin.max_tokens,
            "calls": {"limit": caps.calls, "left": _left(caps.calls, used.calls)},
            "tokens": {"limit": caps.tokens, "left": _left(caps.tokens, tokens)},
        }


class _Stream:
    """A reply as server-sent events. The last ones are held back until the whole reply is durable."""

    def __init__(self, client: Dialect, body: Mapping[str, Any]) -> None:
        self._client = client
        options = body.get("stream_options")
        self._usage = isinstance(options, Mapping) and options.get("include_usage") is True
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._held: list[bytes] = []

    def put(self, event: bytes) -> None:
        """Pass an event on to the client, who may be slow: that must not slow down the upstream."""
        if self._held or self._client.is_final(event):
            self._held.append(event)
        else:
            self._events.put_nowait(event)

    async def send(self, request: web.BaseRequest, task: asyncio.Task[Mapping[str, Any]]) -> web.StreamResponse:
        """Send what comes while `task` runs, and the end once it has its reply."""
        task.add_done_callback(lambda _: self._events.put_nowait(None))
        response: web.StreamResponse | None = None
        try:
            while (event := await self._events.get()) is not None:
                response = response or await _begin(request)
                await response.write(event)
            try:
                reply = await _outcome(task)
            except Refusal as refusal:
                if response is None:
                    raise
                error = self._client.error(str(refusal), refusal.kind, refusal.status)
                await response.write(self._client.error_event(error))
                # Cut short, so that even a client that ignores the event cannot take this for a whole reply.
                if request.transport is not None:
                    request.transport.close()
                return response
            if response is None:
                response = await _begin(request)
                # What came live and what comes from the record look the same.
                self._held = list(self._client.events(reply, include_usage=self._usage))
            for event in self._held:
                if self._usage or not _only_usage(event):
                    await response.write(event)
            await response.write_eof()
        except (ConnectionError, ClientError):
            # The client went away. Its call goes on to the end and is counted.
            await asyncio.wait([task])
        return response or web.Response(status=499)


async def _outcome(task: asyncio.Task[Mapping[str, Any]]) -> Mapping[str, Any]:
    await asyncio.wait([task])
    if task.cancelled():
        raise Refusal(503, "unavailable", CUT)
    return task.result()


async def _body_of(request: web.BaseRequest) -> dict[str, Any]:
    too_large = Refusal(413, "too_large", f"the request has more than {MAX_BODY} bytes; send less.")
    if (request.content_length or 0) > MAX_BODY:
        raise too_large
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large from error
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "invalid_request", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(400, "invalid_request", "the body must be a JSON object.")
    return body


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _dialect_for(request: web.BaseRequest) -> Dialect:
    spoken = request.path.removeprefix("/v1").startswith("/messages") or "anthropic-version" in request.headers
    return ANTHROPIC if spoken else OPENAI


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


def _json(data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = json.dumps(data).encode()
    response = web.Response(body=body, status=status, headers=headers, content_type="application/json")
    # A connection that a client keeps open would be shared by all processes that fork from it.
    response.force_close()
    return response


def _error(client: Dialect, refusal: Refusal) -> web.Response:
    return _json(client.error(str(refusal), refusal.kind, refusal.status), refusal.status, NO_RETRY)


def _only_usage(event: bytes) -> bool:
    """Say whether an event carries nothing but the OpenAI usage, which a client sees only if it asks for it."""
    chunk = payload(event)
    return chunk is not None and chunk.get("choices") == []


async def _begin(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
    response.force_close()
    await response.prepare(request)
    return response
