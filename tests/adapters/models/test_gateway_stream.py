"""Streams through a door: whole replies as events, live events, and streams that break; both official clients."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from leadscrew.core.budget import Caps
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Door
from support.gateway_world import Counting, World, chat, post, role, visit


@asynccontextmanager
async def opened(folder: Path, model: Any, **more: Any) -> AsyncIterator[tuple[World, Door]]:
    """Return a world with one door in which a visit is open."""
    world = World(folder, {"solver": role(model, max_tokens=64)})
    door = await world.gateway.door(folder / "d.sock")
    door.enter(visit(**more))
    try:
        yield world, door
    finally:
        await world.close()


@asynccontextmanager
async def transport(path: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Return an HTTP client for the official ones that goes to a door."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    uds = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    try:
        async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=uds)) as client:
            yield client
    finally:
        os.close(folder)


async def test_a_reply_from_a_model_in_process_or_the_record_streams_in_both_dialects(tmp_path: Path) -> None:
    model = Counting(answer=lambda request: "a reply in pieces, long enough for several events, " * 4)
    async with opened(tmp_path, model) as (world, door):
        body = chat("x")
        first = await post(door.path, {**body, "stream": True})
        assert first.status == 200
        assert first.headers["Content-Type"] == "text/event-stream"
        assert first.raw.endswith(b"data: [DONE]\n\n")
        assert b'"usage"' not in first.raw
        with_usage = await post(door.path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        assert b'"prompt_tokens":7' in with_usage.raw
        claude = await post(door.path, {**body, "max_tokens": 64, "stream": True}, "/v1/messages?beta=true")
        assert b"event: message_stop" in claude.raw
        await door.leave()
        # Streamed or not, in whichever dialect: it is the same request.
        requests = [call.request for _, call, _ in world.store.calls()]
        assert len(set(requests)) == 1
        door.enter(visit())
        again = await post(door.path, {**body, "stream": True})
        assert again.raw == first.raw
        assert len(model.asked) == 3


async def test_the_official_openai_client_works_unchanged(tmp_path: Path) -> None:
    async with opened(tmp_path, Counting(), allowance=Caps(calls=2)) as (_, door), transport(door.path) as http:
        client = openai.AsyncOpenAI(api_key="none", base_url="http://gateway/v1", http_client=http)
        messages: Any = [{"role": "user", "content": "hello"}]
        reply = await client.chat.completions.create(model="any", messages=messages)
        assert (reply.choices[0].message.content, reply.usage and reply.usage.prompt_tokens) == ("hello", 7)
        stream = await client.chat.completions.create(model="any", messages=messages, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == "hello"
        assert [m.id async for m in client.models.list()] == ["test/counting"]
        with pytest.raises(openai.PermissionDeniedError, match="allowance"):
            await client.chat.completions.create(model="any", messages=messages)
        visited = await door.leave()
        # Refused once: the client did not try again.
        assert [c["finish"] for c in visited.calls] == ["stop", "stop", "error"]
        with pytest.raises(openai.PermissionDeniedError, match="no visit"):
            await client.chat.completions.create(model="any", messages=messages)


async def test_the_official_anthropic_client_works_unchanged(tmp_path: Path) -> None:
    async with opened(tmp_path, Counting(), allowance=Caps(calls=2)) as (_, door), transport(door.path) as http:
        client = anthropic.AsyncAnthropic(api_key="none", base_url="http://gateway", http_client=http)
        messages: Any = [{"role": "user", "content": "hello"}]
        reply = await client.messages.create(model="any", max_tokens=50, messages=messages)
        assert (reply.content[0].text, reply.usage.input_tokens, reply.stop_reason) == ("hello", 7, "end_turn")  # type: ignore[union-attr]
        async with client.messages.stream(model="any", max_tokens=50, messages=messages) as stream:
            assert "".join([text async for text in stream.text_stream]) == "hello"
        counted = await client.messages.count_tokens(model="any", messages=messages)
        assert counted.input_tokens > len("hello")
        assert [m.id async for m in await client.models.list()] == ["test/counting"]
        with pytest.raises(anthropic.PermissionDeniedError, match="allowance"):
            await client.messages.create(model="any", max_tokens=50, messages=messages)


async def test_official_clients_do_not_hammer_a_model_that_is_down(tmp_path: Path) -> None:
    def fail(request: Any) -> str:
        raise InfrastructureError("the model is away")

    model = Counting(answer=fail)
    async with opened(tmp_path, model) as (_, door), transport(door.path) as http:
        client = openai.AsyncOpenAI(api_key="none", base_url="http://gateway/v1", http_client=http, max_retries=5)
        with pytest.raises(openai.InternalServerError, match="away"):
            await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x"}])
        claude = anthropic.AsyncAnthropic(api_key="none", base_url="http://gateway", http_client=http, max_retries=5)
        with pytest.raises(anthropic.InternalServerError, match="away"):
            await claude.messages.create(model="any", max_tokens=5, messages=[{"role": "user", "content": "x"}])
        visited = await door.leave()
    assert len(model.asked) == 1
    assert len(visited.calls) == 2
    assert "away" in visited.void
