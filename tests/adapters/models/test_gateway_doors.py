"""Doors and visits: what is cut off, whose connection it is, what stays of a visit, and what a box cannot use up."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.models.doors import MAX_CONNECTIONS
from leadscrew.adapters.models.gateway import MAX_REFUSALS
from leadscrew.adapters.models.serving import MAX_CALLS
from leadscrew.core.budget import Caps, Spend
from leadscrew.ports import Door
from support.gateway_world import Counting, World, chat, connected, get, last_text, post, role, visit

Make = Callable[..., World]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Return a maker of worlds in the test's folder, which are closed at the end."""
    async with AsyncExitStack() as stack:

        def one(*roles: Any, folder: str = "w", **more: Any) -> World:
            (tmp_path / folder).mkdir(exist_ok=True)
            world = World(tmp_path / folder, {r.pin.role: r for r in roles}, **more)
            stack.push_async_callback(world.close)
            return world

        yield one


async def door_of(world: World, name: str = "d") -> Door:
    """Open a door in the folder of a world."""
    return await world.gateway.door(world.folder / f"{name}.sock")


async def test_leaving_waits_for_what_runs_and_its_end_decides(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit())
    flying = asyncio.create_task(post(door.path, chat("x")))
    await model.arrived.wait()
    flying.cancel()  # the program does not wait for it
    leaving = asyncio.create_task(door.leave())
    await asyncio.sleep(0.02)
    assert not leaving.done()
    assert (await post(door.path, chat("y"))).status == 403
    assert model.hold is not None
    model.hold.set()
    visited = await leaving
    assert [c["response"] for c in visited.calls] == ["x"]
    assert visited.spend.calls == 1


async def test_a_program_that_does_not_wait_for_an_outage_is_void(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model, timeout_s=0.1))
    door = await door_of(world)
    door.enter(visit())
    flying = asyncio.create_task(post(door.path, chat("x")))
    await model.arrived.wait()
    flying.cancel()
    assert "no reply within" in (await door.leave()).void


async def test_whoever_is_cancelled_while_leaving_cuts_off(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit())
    flying = asyncio.create_task(post(door.path, chat("x")))
    await model.arrived.wait()
    leaving = asyncio.create_task(door.leave())
    await asyncio.sleep(0.01)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (await flying).status == 503
    assert model.running == 0


async def test_closing_cuts_off_what_runs_and_counts_its_bound(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit())
    flying = asyncio.create_task(post(door.path, chat("x")))
    await model.arrived.wait()
    assert door.busy_s > 0
    await door.close()
    await asyncio.wait([flying])
    assert model.running == 0
    ((_, call, reply),) = world.store.calls()
    assert reply is not None
    assert (reply.status, reply.uncertain) == ("failed", 1)
    assert "cut off" in reply.message
    assert world.account("solver", 1).spent == call.cost(reply)
    assert world.account("solver", 1).held == Spend()


async def test_a_new_visit_cuts_off_the_one_before_and_gets_nothing_of_it(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit("a"))
    flying = asyncio.create_task(post(door.path, chat("x")))
    await model.arrived.wait()
    door.enter(visit("b"))
    assert model.hold is not None
    model.hold.set()
    assert (await post(door.path, chat("y"))).status == 200
    assert (await flying).status == 503
    assert [c["response"] for c in (await door.leave()).calls] == ["y"]
    by_scope = {call.scope: reply.status for _, call, reply in world.store.calls() if reply}
    assert by_scope == {"a": "failed", "b": "ok"}


async def test_a_client_that_goes_away_does_not_stop_its_call(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit())
    flying = asyncio.create_task(post(door.path, chat("x")))
    await model.arrived.wait()
    flying.cancel()
    await asyncio.wait([flying])
    assert model.hold is not None
    model.hold.set()
    await model.finished.wait()
    assert (await post(door.path, chat("y"))).status == 200
    visited = await door.leave()
    assert [c["response"] for c in visited.calls] == ["x", "y"]
    assert visited.spend.calls == 2


async def test_a_path_longer_than_a_socket_address_works_and_closing_removes_it(make: Make) -> None:
    model = Counting()
    world = make(role(model))
    deep = world.folder / ("a" * 90) / ("b" * 90)
    deep.mkdir(parents=True)
    door = await world.gateway.door(deep / "door.sock")
    assert door.path == str(deep / "door.sock")
    assert (deep / "door.sock").stat().st_mode & 0o777 == 0o666
    door.enter(visit())
    assert (await post(door.path, chat("x"))).status == 200
    await door.close()
    await door.close()
    assert not (deep / "door.sock").exists()
    await world.gateway.close()
    assert model.closed


async def test_secrets_are_in_no_record_trace_or_reply(make: Make) -> None:
    key = "sk-very-secret-0123456789"
    model = Counting(answer=lambda request: f"the key is {key}")
    world = make(role(model), secrets=(key,))
    door = await door_of(world)
    door.enter(visit())
    got = [await post(door.path, chat(f"say {key}", stream=stream)) for stream in (False, True)]
    assert [g.status for g in got] == [200, 200]
    assert all(key.encode() not in g.raw for g in got)
    visited = await door.leave()
    assert key not in json.dumps(visited.calls)
    assert all(key not in repr((call, reply)) for _, call, reply in world.store.calls())


async def test_busy_time_is_the_union_of_pending_calls(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model))
    door = await door_of(world)
    assert door.busy_s == 0
    door.enter(visit())
    before = asyncio.get_running_loop().time()
    calls = [asyncio.create_task(post(door.path, chat(f"q{i}"))) for i in range(8)]
    await model.together(8)
    assert model.hold is not None
    model.hold.set()
    await asyncio.gather(*calls)
    spent = asyncio.get_running_loop().time() - before
    assert 0 < door.busy_s <= spent
    rest = door.busy_s
    await asyncio.sleep(0.01)
    assert door.busy_s == rest


def raw_request(text: str) -> bytes:
    """Return a request as bytes on the wire."""
    body = json.dumps(chat(text)).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def plugged(path: str) -> socket.socket:
    """Return a socket that is connected to a door, whether the door has looked or not."""
    sock = socket.socket(socket.AF_UNIX)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        sock.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)
    sock.setblocking(False)
    return sock


async def hung_up(sock: socket.socket) -> bool:
    """Say whether the door closes a connection without a word."""
    try:
        return await asyncio.get_running_loop().sock_recv(sock, 100) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("looked", [False, True])
async def test_what_was_sent_in_one_visit_is_not_read_in_the_next(make: Make, looked: bool) -> None:
    model = Counting()
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit("a"))
    with plugged(door.path) as waiting, plugged(door.path) as idle:
        if looked:
            await post(door.path, chat("first"))
        waiting.send(raw_request("of visit a"))
        door.enter(visit("b"))
        assert await hung_up(waiting)
        with pytest.raises(OSError):
            while True:
                idle.send(raw_request("too late"))
                await asyncio.sleep(0)
    assert (await post(door.path, chat("of visit b"))).status == 200
    assert [c["response"] for c in (await door.leave()).calls] == ["of visit b"]
    assert [last_text(r) for r in model.asked][int(looked) :] == ["of visit b"]


async def test_a_client_that_keeps_its_connection_goes_on_in_the_next_visit(make: Make) -> None:
    world = make(role(Counting()))
    door = await door_of(world)
    async with connected(door.path) as session:
        for name in ("a", "b", "c"):
            door.enter(visit(name))
            async with session.post("/v1/chat/completions", json=chat(name)) as response:
                assert response.status == 200
                await response.read()
            assert len((await door.leave()).calls) == 1


async def test_a_box_cannot_hold_more_connections_than_it_is_given(make: Make) -> None:
    world = make(role(Counting()))
    door = await door_of(world)
    door.enter(visit())
    with ExitStack() as stack:
        socks = []
        for _ in range(MAX_CONNECTIONS + 8):
            socks.append(stack.enter_context(plugged(door.path)))
            if len(socks) % 50 == 0:
                await asyncio.sleep(0.01)
        for sock in socks[-8:]:
            assert await hung_up(sock)
    assert (await post(door.path, chat("x"))).status == 200


async def test_no_more_calls_of_a_door_run_at_once_than_it_has_places(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit())
    calls = [asyncio.create_task(post(door.path, chat(f"q{i}"))) for i in range(MAX_CALLS + 20)]
    await model.together(MAX_CALLS)
    # Whoever has a place is being answered; the others are let in as places become free.
    assert model.hold is not None
    model.hold.set()
    assert {(await call).status for call in calls} == {200}
    assert model.most == MAX_CALLS
    assert (await door.leave()).spend.calls == MAX_CALLS + 20


async def test_headers_have_a_limit(make: Make) -> None:
    world = make(role(Counting()))
    door = await door_of(world)
    door.enter(visit())
    for headers in ({"x-long": "x" * 10_000}, {f"x-{i}": "1" for i in range(200)}):
        got = await post(door.path, chat("x"), headers=headers)
        assert got.status == 400
    assert (await door.leave()).calls == ()


async def test_after_many_refusals_a_visit_gets_no_more_hearing(make: Make) -> None:
    world = make(role(Counting()))
    door = await door_of(world)
    door.enter(visit(allowance=Caps(calls=1)))
    async with connected(door.path) as session:
        for number in range(MAX_REFUSALS + 50):
            async with session.post("/v1/chat/completions", json=chat(f"q{number}")) as response:
                assert response.status == (403 if number else 200)
                await response.read()
    visited = await door.leave()
    assert visited.exhausted
    assert len(visited.calls) == MAX_REFUSALS + 1


async def test_a_role_without_a_model_makes_the_visit_void(make: Make) -> None:
    world = make(role(Counting()))
    door = await door_of(world)
    door.enter(visit(role="judge"))
    assert (await post(door.path, chat("x"))).status == 503
    assert (await get(door.path, "/v1/models")).status == 503
    assert "judge" in (await door.leave()).void


async def test_long_texts_are_cut_in_the_middle_for_the_trace_only(make: Make) -> None:
    text = "a" * 20_000 + "b" * 20_000
    world = make(role(Counting(answer=last_text, tokens=(900, 10), name="long")))
    door = await door_of(world)
    door.enter(visit())
    assert (await post(door.path, chat(text))).text == text
    (entry,) = (await door.leave()).calls
    assert len(entry["prompt"]) < 17_000 > len(entry["response"])
    assert entry["response"].endswith("b" * 100)
    ((_, call, reply),) = world.store.calls()
    assert reply is not None
    assert call.body["messages"][0]["content"] == text == reply.body["choices"][0]["message"]["content"]


async def test_connections_beyond_the_bound_are_dropped_without_a_word(make: Make) -> None:
    world = make(role(Counting()))
    door = await door_of(world)
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    folder = os.open(os.path.dirname(door.path), os.O_RDONLY | os.O_DIRECTORY)
    with ExitStack() as stack:
        stack.callback(os.close, folder)
        for n in range(MAX_CONNECTIONS + 40):
            link = stack.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(f"/proc/self/fd/{folder}/{os.path.basename(door.path)}")
            if n % 20 == 0:
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0.01)
    del link
    gc.collect()
    assert heard == []
