"""The gateway before a real HTTP provider that streams, fails, stalls, truncates, rate-limits and lies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError, web

from leadscrew.adapters.models.dialects import DIALECTS, sse
from leadscrew.adapters.models.providers import Provider
from leadscrew.adapters.models.upstream import Upstream
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Caps, Spend
from leadscrew.ports import Door
from leadscrew.testing.upstream import ScriptedUpstream
from support.gateway_world import World, chat, connected, post, role, visit

KEY = "sk-the-key-of-the-provider-0123456789"
ROUTES = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


async def no_pause(seconds: float) -> None:
    """Take the place of waiting between attempts."""


@asynccontextmanager
async def opened(
    folder: Path, provider: Provider, *, caps: Caps = Caps(), allowance: Caps = Caps(), **more: Any
) -> AsyncIterator[tuple[World, Door]]:
    """Return a world before a provider, with one door in which a visit is open."""
    upstream = Upstream({"KEY": KEY}, sleep=no_pause)
    model = role(provider, max_tokens=100, **{"retries": 2, "timeout_s": 20.0, **more})
    world = World(folder, {"solver": model}, upstream=upstream, role_caps={"solver": caps}, secrets=(KEY,))
    door = await world.gateway.door(folder / "d.sock")
    door.enter(visit(allowance=allowance))
    try:
        yield world, door
    finally:
        await world.close()


def request(text: str, **more: Any) -> dict[str, Any]:
    """Return a request that both dialects understand."""
    return chat(text, max_tokens=90, **more)


def replies(world: World) -> list[Any]:
    """Return what became of all calls."""
    return [reply for _, _, reply in world.store.calls()]


@pytest.mark.parametrize("client", ["openai", "anthropic"])
@pytest.mark.parametrize("spoken", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
async def test_each_dialect_in_front_of_each(tmp_path: Path, client: str, spoken: str, stream: bool) -> None:
    async with ScriptedUpstream(lambda request: "four, as always " * 20) as up:
        provider = up.provider(anthropic=spoken == "anthropic")
        async with opened(tmp_path, provider) as (world, door):
            got = await post(door.path, request("2 + 2?", stream=stream), ROUTES[client])
            assert got.status == 200
            dialect = DIALECTS[client]
            if stream:
                gatherer = dialect.gather()
                for event in sse.split([got.raw]):
                    gatherer.feed(event)
                assert gatherer.ended
                reply: Mapping[str, Any] = gatherer.reply()
            else:
                reply = got.body
            assert dialect.fault(reply) == ""
            assert dialect.text(reply) == "four, as always " * 20
            visited = await door.leave()
            assert (visited.void, visited.spend.tokens_in, visited.spend.tokens_out) == (
                "",
                up.tokens_in,
                up.tokens_out,
            )
            assert world.account("solver", 1).spent == world.store.call_spend()["solver", 1]
            (body,) = up.bodies
            assert body["model"] == up.provider().name
            assert body.get("stream", False) is (stream and client == spoken)


async def test_the_key_goes_to_the_provider_only_and_the_clients_headers_to_nobody(tmp_path: Path) -> None:
    faults = ["echo_key", "echo_key_in_error"]
    async with ScriptedUpstream(lambda request: "yes", fault=faults) as up:
        async with opened(tmp_path, up.provider(key_env="KEY")) as (world, door):
            sent = {"authorization": "Bearer mine", "x-api-key": "mine", "x-secret": "val answers", "cookie": "a=b"}
            gots = [await post(door.path, chat(text), headers=sent) for text in ("a", "b")]
            visited = await door.leave()
            recorded = list(world.store.calls())
        assert [g.status for g in gots] == [200, 503]
        for headers in up.headers:
            assert headers["Authorization"] == f"Bearer {KEY}"
            assert "mine" not in str(headers)
            assert not {name.lower() for name in headers} & {"x-secret", "cookie", "x-api-key"}
        everything = b"".join(g.raw for g in gots).decode() + repr((visited, recorded))
        assert KEY not in everything


@pytest.mark.parametrize("spoken", ["openai", "anthropic"])
@pytest.mark.parametrize("fault", ["truncated_stream", "stall_midway"])
async def test_a_stream_that_breaks_is_a_failed_call_and_is_not_tried_again(
    tmp_path: Path, spoken: str, fault: Any
) -> None:
    async with ScriptedUpstream(lambda request: "word " * 200, fault=[fault]) as up:
        provider = up.provider(anthropic=spoken == "anthropic")
        async with opened(tmp_path, provider, timeout_s=0.5) as (world, door):
            raw = b""
            async with connected(door.path) as session:
                with pytest.raises(Exception, match=r"(?i)payload|encoding|disconnect|closed"):
                    async with session.post(ROUTES[spoken], json=request("x", stream=True)) as response:
                        assert response.status == 200
                        async for chunk in response.content.iter_any():
                            raw += chunk
            # Some of it came, then an error, and no sign of an end.
            assert b"word" in raw
            assert b"error" in raw
            assert b"[DONE]" not in raw
            assert b"message_stop" not in raw
            assert up.requests == 1
            visited = await door.leave()
            assert visited.void
            ((_, call, reply),) = world.store.calls()
            assert reply is not None
            assert (reply.status, reply.uncertain) == ("failed", 1)
            assert world.account("solver", 1).spent == call.cost(reply)
            assert world.account("solver", 1).held == Spend()


async def test_events_come_while_the_upstream_still_writes_and_the_end_only_when_the_reply_is_durable(
    tmp_path: Path,
) -> None:
    go_on = asyncio.Event()

    async def serve(incoming: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(incoming)
        dialect = DIALECTS["openai"]
        choice = {"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}
        whole = {"id": "1", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
        for event in dialect.events(whole, include_usage=True):
            if dialect.is_final(event):
                await go_on.wait()
            await response.write(event)
        return response

    async with served(serve) as provider, opened(tmp_path, provider) as (world, door):
        async with connected(door.path) as session, session.post(ROUTES["openai"], json=chat("x", stream=True)) as got:
            raw = b""
            while b"four" not in raw:
                raw += await got.content.readany()
            assert door.busy_s > 0
            assert replies(world) == [None]
            go_on.set()
            while b"finish_reason" not in raw.replace(b'"finish_reason":null', b""):
                raw += await got.content.readany()
            reader = SQLiteStore.open(tmp_path / "run", readonly=True)
            assert [reply and reply.status for _, _, reply in reader.calls()] == ["ok"]
            reader.close()
            raw += await got.content.read()
            assert raw.endswith(b"data: [DONE]\n\n")
            # The usage that was asked of the provider for the books was not asked for by the client.
            assert b"prompt_tokens" not in raw
        assert (await door.leave()).spend.tokens_in == 9


@asynccontextmanager
async def served(handler: Any) -> AsyncIterator[Provider]:
    """Serve both dialects by one handler."""
    app = web.Application()
    for route in ROUTES.values():
        app.router.add_post(route, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Provider("own", f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "", local=True)
    finally:
        await runner.cleanup()


async def test_what_the_provider_turns_down_is_the_programs_affair_once_others_were_answered(tmp_path: Path) -> None:
    async def serve(incoming: web.Request) -> web.Response:
        body = await incoming.json()
        if len(body["messages"][0]["content"]) > 100:
            return web.json_response({"error": {"message": "the context is too long"}}, status=400)
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})

    async with served(serve) as provider, opened(tmp_path, provider) as (world, door):
        # Nothing says yet that model, key and parameters are right: it may be our fault.
        assert (await post(door.path, chat("x" * 200))).status == 503
        assert "too long" in (await door.leave()).void
        door.enter(visit("t2"))
        assert (await post(door.path, chat("short"))).status == 200
        got = await post(door.path, chat("x" * 200))
        assert got.status == 400
        assert "too long" in got.body["error"]["message"]
        visited = await door.leave()
        assert (visited.void, visited.exhausted, visited.spend.calls) == ("", "", 1)
        assert [r.status for r in replies(world)] == ["failed", "ok", "refused"]
        assert world.account("solver", 1).spent == Spend(calls=1, tokens_in=9, tokens_out=1, micro_usd=None)
    # Another sitting learns it from the record.
    async with served(serve) as provider, opened(tmp_path, provider) as (world, door):
        door.enter(visit("t3"))
        assert (await post(door.path, chat("y" * 200))).status == 400
        assert (await door.leave()).void == ""


async def test_attempts_that_may_have_been_billed_are_counted_at_their_bound(tmp_path: Path) -> None:
    faults = ["rate_limit", "error", None]
    async with (
        ScriptedUpstream(lambda request: "yes", fault=faults) as up,
        opened(tmp_path, up.provider()) as (world, door),
    ):
        assert (await post(door.path, chat("x"))).status == 200
        ((_, call, reply),) = world.store.calls()
        assert reply is not None
        assert (reply.attempts, reply.uncertain) == (3, 1)
        spent = world.account("solver", 1).spent
        assert spent == call.cost(reply) == world.store.call_spend()["solver", 1]
        assert spent.tokens_in + spent.tokens_out == up.tokens_in + up.tokens_out + call.bound
        # The program did not use more for it.
        assert (await door.leave()).spend.tokens_in == up.tokens_in


async def test_no_attempt_is_made_again_that_a_cap_could_not_pay_for(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(lambda request: "yes", fault=["error"] * 9) as up,
        opened(tmp_path, up.provider(), caps=Caps(tokens=1500), retries=8) as (world, door),
    ):
        assert (await post(door.path, chat("x"))).status == 503
        ((_, call, _),) = world.store.calls()
        assert up.requests == 1500 // call.bound >= 2
        spent = world.account("solver", 1).spent
        assert spent.tokens_in + spent.tokens_out <= 1500
        assert world.account("solver", 1).held == Spend()


@pytest.mark.parametrize("fault", ["no_usage", "usage_zero", "usage_huge", "usage_negative", "usage_text"])
async def test_a_provider_that_lies_about_usage_costs_the_bound(tmp_path: Path, fault: Any) -> None:
    async with (
        ScriptedUpstream(lambda request: "yes", fault=[fault]) as up,
        opened(tmp_path, up.provider()) as (w, door),
    ):
        assert (await post(door.path, chat("x"))).status == 200
        ((_, call, reply),) = w.store.calls()
        assert reply is not None
        assert reply.usage in ("missing", "implausible")
        spent = w.account("solver", 1).spent
        assert spent.tokens_in + spent.tokens_out == call.bound
        await door.leave()


async def test_parallel_callers_before_a_provider_overshoot_nothing_and_the_books_are_its_own(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(lambda request: "a reply of some length", delay_s=0.002) as up,
        opened(tmp_path, up.provider(), caps=Caps(tokens=3000)) as (world, first),
    ):
        await first.leave()
        doors = [await world.gateway.door(tmp_path / f"{i}.sock") for i in range(32)]

        async def caller(number: int) -> None:
            doors[number].enter(visit(f"t{number}", instance=""))
            serial = 0
            while (await post(doors[number].path, chat(f"{number} {serial}"))).status == 200:
                serial += 1

        await asyncio.gather(*(caller(i) for i in range(32)))
        visits = [await door.leave() for door in doors]
        total = up.tokens_in + up.tokens_out
        spent = world.account("solver", 1).spent
        bound = max(call.bound for _, call, _ in world.store.calls())
        assert {v.cap for v in visits} == {"tokens"}
        assert 3000 - bound < total <= 3000
        assert spent.tokens_in + spent.tokens_out == total
        assert world.store.call_spend() == {("solver", 1): spent}
        assert sum(v.spend.tokens_in + v.spend.tokens_out for v in visits) == total


async def test_a_client_that_leaves_in_the_middle_of_a_stream_is_charged_for_the_whole(tmp_path: Path) -> None:
    arrived = asyncio.Event()

    def reply(asked: Any) -> str:
        arrived.set()
        return "word " * 50

    async with ScriptedUpstream(reply) as up, opened(tmp_path, up.provider()) as (w, door):
        flying = asyncio.create_task(post(door.path, chat("x", stream=True)))
        await arrived.wait()
        flying.cancel()
        await asyncio.wait([flying])
        # An equal call of the same trial, made again by whoever is left, is another one.
        assert (await post(door.path, chat("x"))).status == 200
        visited = await door.leave()
        assert visited.spend.calls == 2
        assert json.dumps(visited.calls)
        assert [r.status for r in replies(w)] == ["ok", "ok"]
        assert visited.spend.tokens_out == up.tokens_out


async def test_an_outage_and_a_restart_find_everything_again(tmp_path: Path) -> None:
    async with ScriptedUpstream(lambda request: "yes") as up:
        async with opened(tmp_path, up.provider()) as (_, door):
            assert (await post(door.path, chat("first"))).status == 200
            await up.stop()
            assert (await post(door.path, chat("second"))).status == 503
            assert "no connection" in (await door.leave()).void
        await up.start()
        async with opened(tmp_path, up.provider()) as (world, door):
            assert [(await post(door.path, chat(text))).status for text in ("first", "second")] == [200, 200]
            assert (await door.leave()).void == ""
            assert up.requests == 2
            spent = world.meter.run.spent
            assert spent.tokens_in + spent.tokens_out == up.tokens_in + up.tokens_out


async def test_closing_in_the_middle_of_a_stream_cuts_it_off_where_it_is(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(lambda request: "word " * 200, fault=["stall_midway"]) as up,
        opened(tmp_path, up.provider()) as (world, door),
        connected(door.path) as session,
    ):
        async with session.post(ROUTES["openai"], json=chat("x", stream=True)) as response:
            raw = await response.content.readany()
            await door.close()
            with pytest.raises(ClientPayloadError):
                while not response.content.at_eof():
                    raw += await response.content.readany()
        assert b"[DONE]" not in raw
        ((_, call, reply),) = world.store.calls()
        assert reply is not None
        assert (reply.status, reply.uncertain) == ("failed", 1)
        assert world.account("solver", 1).spent == call.cost(reply)
