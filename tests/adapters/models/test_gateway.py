"""The gateway from outside: identity, allowances, caps, the record, the cache, visits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.models.local import LocalRequestError
from leadscrew.core.budget import Caps, Spend
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Door, Gateway, Visited
from support.gateway_world import Counting, World, chat, get, last_text, post, role, visit

Make = Callable[..., World]
MESSAGES = "/v1/messages"


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


async def test_a_call_is_pinned_answered_recorded_and_counted(make: Make) -> None:
    model = Counting()
    world = make(role(model))
    assert isinstance(world.gateway, Gateway)
    door = await door_of(world)
    door.enter(visit(input_chars=2))
    got = await post(door.path, chat("hello", temperature=1.9, max_tokens=999, user="me", metadata={"x": 1}))
    assert (got.status, got.text) == (200, "hello")
    (asked,) = model.asked
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("counting", 0.0, 16)
    assert not asked.keys() & {"user", "metadata", "stream"}
    visited = await door.leave()
    assert (visited.void, visited.exhausted) == ("", "")
    assert visited.spend == Spend(calls=1, tokens_in=7, tokens_out=3, micro_usd=None)
    (entry,) = visited.calls
    assert {k: entry[k] for k in ("role", "model", "response", "tokens_in", "tokens_out", "finish")} == {
        "role": "solver",
        "model": "test/counting",
        "response": "hello",
        "tokens_in": 7,
        "tokens_out": 3,
        "finish": "stop",
    }
    assert "hello" in entry["prompt"]
    chars = visited.costs["prompt_chars"]
    assert visited.costs == {
        "model_calls": 1,
        "prompt_chars": chars,
        "prompt_tokens": 7,
        "reply_tokens": 3,
        "context_chars": chars - 2,
    }
    ((_, call, reply),) = world.store.calls()
    assert (call.role, call.plan, call.candidate, call.scope, call.instance) == ("solver", 1, "1.0", "trial-1", "i1")
    assert reply is not None
    assert (reply.status, reply.source, reply.usage) == ("ok", "upstream", "reported")
    assert world.store.call_spend() == {("solver", 1): visited.spend}


async def test_identity_is_the_hosts_word_and_nothing_a_client_says(make: Make) -> None:
    solver, meta = Counting(name="small"), Counting(name="big")
    world = make(role(solver), role(meta, "meta"))
    one, two = await door_of(world, "one"), await door_of(world, "two")
    one.enter(visit("a", candidate="1.0", instance="i1"))
    two.enter(visit("b", candidate="2.0", instance="i2", role="meta", plan=7))
    forged = {
        "model": "test/big",
        "role": "meta",
        "candidate": "2.0",
        "plan": 7,
        "instance": "i2",
        "user": "2.0",
        "metadata": {"role": "meta"},
    }
    headers = {"authorization": "Bearer 2.0", "x-role": "meta", "x-leadscrew-candidate": "2.0", "host": "two"}
    await post(one.path, {**chat("from one"), **forged}, headers=headers)
    await post(two.path, chat("from two"))
    assert [last_text(r) for r in solver.asked] == ["from one"]
    assert [last_text(r) for r in meta.asked] == ["from two"]
    assert not solver.asked[0].keys() & {"role", "candidate", "plan", "instance", "user", "metadata"}
    made = [(c.role, c.plan, c.candidate, c.scope, c.instance) for _, c, _ in world.store.calls()]
    assert made == [("solver", 1, "1.0", "a", "i1"), ("meta", 7, "2.0", "b", "i2")]


async def test_outside_a_visit_everything_is_refused(make: Make) -> None:
    model = Counting()
    world = make(role(model))
    door = await door_of(world)
    for _ in range(2):
        for route in ("/v1/chat/completions", MESSAGES, "/v1/messages/count_tokens", "/elsewhere"):
            got = await post(door.path, chat("x"), route)
            assert got.status == 403
            assert got.headers["x-should-retry"] == "false"
        assert (await get(door.path, "/v1/models")).status == 403
        assert await door.leave() == Visited()
        door.enter(visit())
        await door.leave()
    assert model.asked == []
    assert list(world.store.calls()) == []


async def test_other_paths_models_count_and_allowance(make: Make) -> None:
    model = Counting()
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit(allowance=Caps(calls=3, tokens=5000)))
    assert (await post(door.path, {}, "/v1/embeddings")).body["error"]["type"] == "not_found_error"
    claude = await post(door.path, {}, "/v1/messages/batches")
    assert (claude.status, claude.body["type"]) == (404, "error")
    listed = (await get(door.path, "/v1/models")).body
    assert [m["id"] for m in listed["data"]] == ["test/counting"]
    counted = await post(door.path, {"messages": chat("x" * 300)["messages"]}, "/v1/messages/count_tokens")
    assert counted.status == 200
    assert counted.body["input_tokens"] > 300
    assert model.asked == []
    await post(door.path, chat("x"), "/chat/completions")
    left = (await get(door.path, "/v1/allowance")).body
    assert left["calls"] == {"limit": 3, "left": 2}
    assert left["tokens"] == {"limit": 5000, "left": 4990}
    visited = await door.leave()
    assert (visited.void, visited.exhausted, visited.spend.calls) == ("", "", 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b"{",
        b'{"messages": [' + b"[" * 100_000,
        b'{"messages": NaN}',
        b"\xff\xfe",
        json.dumps({"messages": "no"}).encode(),
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "x", "n": ' + b"9" * 5000 + b"}]}",
    ],
)
async def test_a_malformed_request_is_the_programs_own_affair(make: Make, body: bytes) -> None:
    model = Counting()
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit())
    for route in ("/v1/chat/completions", MESSAGES):
        got = await post(door.path, body, route)
        assert got.status == 400
        assert "error" in got.body
    assert (await post(door.path, chat("well formed"))).status == 200
    visited = await door.leave()
    assert (visited.void, visited.exhausted, visited.spend.calls) == ("", "", 1)


async def test_a_request_that_is_too_large_is_refused(make: Make) -> None:
    world = make(role(Counting()))
    door = await door_of(world)
    door.enter(visit())
    got = await post(door.path, b'{"messages": "' + b"x" * (9 * 1024 * 1024) + b'"}')
    assert got.status == 413
    assert (await door.leave()).void == ""


async def test_the_allowance_of_calls_is_the_programs_failure(make: Make) -> None:
    model = Counting()
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit(allowance=Caps(calls=2)))
    statuses = [(await post(door.path, chat(f"q{i}"))).status for i in range(4)]
    assert statuses == [200, 200, 403, 403]
    visited = await door.leave()
    assert "calls" in visited.exhausted
    assert (visited.void, visited.cap) == ("", "")
    assert len(model.asked) == 2
    assert [c["finish"] for c in visited.calls] == ["stop", "stop", "error", "error"]
    door.enter(visit("trial-2", allowance=Caps(calls=2)))
    assert (await post(door.path, chat("q0"))).status == 200
    assert (await door.leave()).exhausted == ""


async def test_the_allowance_of_tokens_counts_the_bound_before_and_the_use_after(make: Make) -> None:
    model = Counting(tokens=(100, 10))
    world = make(role(model))
    door = await door_of(world)
    door.enter(visit(allowance=Caps(tokens=900)))
    served = 0
    while (await post(door.path, chat("q" * 80))).status == 200:
        served += 1
    visited = await door.leave()
    assert "tokens" in visited.exhausted
    assert visited.spend.tokens_in + visited.spend.tokens_out == 110 * served <= 900
    assert served >= 4


@pytest.mark.parametrize("cap", ["tokens", "calls"])
async def test_parallel_callers_reach_a_cap_and_never_pass_it(make: Make, cap: str) -> None:
    model = Counting(tokens=(40, 10))
    caps = Caps(tokens=2000) if cap == "tokens" else Caps(calls=40)
    world = make(role(model), role_caps={"solver": caps})
    doors = [await door_of(world, f"d{i}") for i in range(32)]
    account = world.account("solver", 1)
    seen: list[int] = []

    async def caller(number: int) -> int:
        doors[number].enter(visit(f"t{number}", instance=""))
        done = 0
        while (await post(doors[number].path, chat(f"caller {number} call {done}"))).status == 200:
            seen.append(account.spent.tokens_in + account.spent.tokens_out)
            done += 1
        return done

    done = sum(await asyncio.gather(*(caller(i) for i in range(32))))
    visits = [await door.leave() for door in doors]
    assert {v.cap for v in visits} == {cap}
    assert all(v.void and not v.exhausted for v in visits)
    assert account.held == Spend(micro_usd=0)
    assert len(model.asked) == done
    total = account.spent.tokens_in + account.spent.tokens_out
    assert max(seen) <= total == 50 * done
    if cap == "calls":
        assert done == 40
    else:
        # A call is refused only if its own bound does not fit beside what was really used.
        bound = max(call.bound for _, call, _ in world.store.calls())
        assert 2000 - bound < total <= 2000
    assert world.store.call_spend() == {("solver", 1): account.spent}


async def test_a_money_cap_with_an_unknown_price_refuses(make: Make) -> None:
    model = Counting()
    world = make(role(model), caps=Caps(usd=1.0))
    door = await door_of(world)
    door.enter(visit())
    assert (await post(door.path, chat("x"))).status == 503
    visited = await door.leave()
    assert visited.cap == "usd"
    assert model.asked == []


class Cents:
    """One cent per token."""

    @property
    def caching(self) -> Any:
        return self

    def micro_usd(self, tokens_in: int, tokens_out: int) -> int:
        """Return the price."""
        return 10_000 * (tokens_in + tokens_out)


async def test_a_money_cap_holds_and_money_is_counted(make: Make) -> None:
    world = make(role(Counting(), price=Cents()), caps=Caps(usd=4.0))
    door = await door_of(world)
    door.enter(visit())
    served = 0
    while (await post(door.path, chat(f"q{served}"))).status == 200:
        served += 1
    visited = await door.leave()
    assert visited.cap == "usd"
    assert visited.spend.micro_usd == 100_000 * served == world.meter.run.spent.micro_usd
    assert 0 < served < 40


async def test_the_record_answers_after_a_kill_and_the_allowance_is_met_at_the_same_place(make: Make) -> None:
    model = Counting(answer=lambda request: f"reply {len(model.asked)}")
    first = make(role(model))
    door = await door_of(first)
    door.enter(visit(allowance=Caps(calls=3)))
    texts = [(await post(door.path, chat("same"))).text for _ in range(2)]
    assert texts == ["reply 1", "reply 2"]
    # Killed with a call in flight: nobody leaves, nobody closes.
    model.hold = asyncio.Event()
    model.arrived.clear()
    flying = asyncio.create_task(post(door.path, chat("same")))
    await model.arrived.wait()
    first.kill()
    model.hold.set()
    await asyncio.wait([flying])
    model.hold = None
    again = make(role(model))
    assert again.meter.run.spent.calls == 3
    door = await door_of(again, "e")
    door.enter(visit(allowance=Caps(calls=3)))
    texts = [(await post(door.path, chat("same"))).text for _ in range(3)]
    assert texts == ["reply 1", "reply 2", "reply 4"]
    assert (await post(door.path, chat("same"))).status == 403
    visited = await door.leave()
    assert visited.exhausted
    assert (visited.spend.calls, visited.spend.tokens_in) == (3, 21)
    assert len(model.asked) == 4
    assert again.account("solver", 1).spent == again.store.call_spend()["solver", 1]


async def test_equal_calls_of_other_programs_share_a_reply_within_the_partition_only(make: Make) -> None:
    model = Counting(answer=lambda request: f"reply {len(model.asked)}")
    world = make(role(model), role(model, "proposer"))
    door = await door_of(world)
    serial = iter(range(100))

    async def ask(**more: Any) -> str:
        door.enter(visit(f"t{next(serial)}", **more))
        text = (await post(door.path, chat("same"))).text
        assert (await door.leave()).spend.calls == 1
        return text

    assert await ask(candidate="1.0") == "reply 1"
    assert await ask(candidate="2.0", plan=2) == "reply 1"
    assert await ask(repeat=1) == "reply 2"
    assert await ask(instance="i2") == "reply 3"
    assert await ask(instance="", role="proposer") == "reply 4"
    assert await ask(instance="", role="proposer") == "reply 5"
    assert await ask(instance="i1", role="proposer") == "reply 6"
    assert await ask(instance="") == "reply 7"
    assert await ask(candidate="3.0") == "reply 1"
    sources = [(call.candidate, reply.source) for _, call, reply in world.store.calls() if reply]
    assert [s for _, s in sources] == ["upstream", "cache", *["upstream"] * 6, "cache"]
    assert world.store.call_spend()["solver", 2] == Spend()
    assert world.account("solver", 2).spent == Spend()


async def test_a_role_without_cache_shares_nothing(make: Make) -> None:
    model = Counting()
    world = make(role(model, cache=False))
    door = await door_of(world)
    for scope in ("a", "b"):
        door.enter(visit(scope))
        await post(door.path, chat("same"))
        await door.leave()
    assert len(model.asked) == 2


async def test_of_equal_calls_in_flight_one_is_paid(make: Make) -> None:
    model = Counting(hold=asyncio.Event())
    world = make(role(model))
    doors = [await door_of(world, f"d{i}") for i in range(5)]
    for number, door in enumerate(doors):
        door.enter(visit(f"t{number}", candidate=f"{number}.0"))
    calls = [asyncio.create_task(post(door.path, chat("same"))) for door in doors]
    await model.arrived.wait()
    assert model.hold is not None
    model.hold.set()
    assert {(await call).text for call in calls} == {"same"}
    assert len(model.asked) == 1
    visits = [await door.leave() for door in doors]
    assert {v.spend for v in visits} == {Spend(calls=1, tokens_in=7, tokens_out=3, micro_usd=None)}
    assert sorted(r.source for _, _, r in world.store.calls() if r) == ["cache"] * 4 + ["upstream"]


async def test_after_a_failed_call_the_waiting_one_asks_itself(make: Make) -> None:
    def fail_first(request: Any) -> str:
        if len(model.asked) == 1:
            raise InfrastructureError("the model is away")
        return "fine"

    model = Counting(answer=fail_first, hold=asyncio.Event())
    world = make(role(model))
    one, two = await door_of(world, "one"), await door_of(world, "two")
    one.enter(visit("a"))
    two.enter(visit("b"))
    calls = [asyncio.create_task(post(door.path, chat("same"))) for door in (one, two)]
    await model.arrived.wait()
    assert model.hold is not None
    model.hold.set()
    assert sorted([(await call).status for call in calls]) == [200, 503]
    visits = [await one.leave(), await two.leave()]
    assert sorted(v.void != "" for v in visits) == [False, True]
    assert [e.kind for e in world.events] == ["infra"]


async def test_a_failed_call_makes_the_visit_void_even_if_the_program_answers_around_it(make: Make) -> None:
    def fail(request: Any) -> str:
        raise InfrastructureError("the model is away; key sk-secret-123456 is fine")

    model = Counting(answer=fail)
    world = make(role(model), secrets=("sk-secret-123456",))
    door = await door_of(world)
    door.enter(visit())
    got = await post(door.path, chat("x"))
    assert got.status == 503
    assert got.headers["x-should-retry"] == "false"
    assert b"sk-secret" not in got.raw
    # Nothing is asked for a visit that counts for nothing.
    assert (await post(door.path, chat("y"))).status == 503
    assert len(model.asked) == 1
    visited = await door.leave()
    assert "the model is away" in visited.void
    assert "sk-secret" not in visited.void + json.dumps(visited.calls) + repr(world.events)
    assert (visited.cap, visited.exhausted) == ("", "")
    ((_, _, reply),) = world.store.calls()
    assert reply is not None
    assert (reply.status, reply.spend) == ("failed", Spend())
    door.enter(visit("trial-2"))
    assert (await door.leave()).void == ""


async def test_any_exception_of_a_model_is_an_outage(make: Make) -> None:
    def broken(request: Any) -> str:
        raise ZeroDivisionError("oh")

    world = make(role(Counting(answer=broken), timeout_s=30.0))
    door = await door_of(world)
    door.enter(visit())
    assert (await post(door.path, chat("x"))).status == 503
    assert "ZeroDivisionError" in (await door.leave()).void


async def test_a_model_that_hangs_is_cut_at_its_timeout(make: Make) -> None:
    world = make(role(Counting(hold=asyncio.Event()), timeout_s=0.02))
    door = await door_of(world)
    door.enter(visit())
    assert (await post(door.path, chat("x"))).status == 503
    visited = await door.leave()
    assert "0.02 s" in visited.void
    ((_, call, reply),) = world.store.calls()
    assert reply is not None
    assert reply.uncertain == 1
    assert world.account("solver", 1).spent == call.cost(reply) == world.store.call_spend()["solver", 1]


@pytest.mark.parametrize(
    ("tokens", "word"), [((None, None), "missing"), ((1, 1), "implausible"), ((9**9, 1), "implausible")]
)
async def test_usage_that_cannot_be_believed_becomes_the_bound(
    make: Make, tokens: tuple[int | None, int | None], word: str
) -> None:
    world = make(role(Counting(tokens=tokens)))
    door = await door_of(world)
    door.enter(visit())
    await post(door.path, chat("a long prompt " * 100))
    visited = await door.leave()
    ((_, call, reply),) = world.store.calls()
    assert reply is not None
    assert reply.usage == word
    assert visited.spend.tokens_in + visited.spend.tokens_out == call.bound


class Declining(Counting):
    """Turns every request down that is not short, as the local model does; serves one after the other."""

    serial = True

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer short requests."""
        if len(last_text(request)) > 9:
            raise LocalRequestError("the prompt is too long", status=400)
        return await super().complete(request)


async def test_what_a_model_in_this_process_declines_is_the_programs_own_affair(make: Make) -> None:
    world = make(role(Declining()))
    door = await door_of(world)
    door.enter(visit())
    got = await post(door.path, chat("even the first call of a run"))
    assert got.status == 400
    assert got.headers["x-should-retry"] == "false"
    assert "too long" in got.body["error"]["message"]
    assert (await post(door.path, chat("short"))).status == 200
    visited = await door.leave()
    assert (visited.void, visited.cap, visited.spend.calls) == ("", "", 1)
    assert world.events == []
    assert [r.status for _, _, r in world.store.calls() if r] == ["refused", "ok"]


async def test_what_was_pinned_may_be_what_a_model_in_this_process_declines(make: Make) -> None:
    model = Declining()
    pin = replace(role(model).pin, extra={"top_p": 7})
    world = make(replace(role(model), pin=pin))
    door = await door_of(world)
    door.enter(visit())
    assert (await post(door.path, chat("the first call of a run"))).status == 503
    assert "too long" in (await door.leave()).void


async def test_waiting_for_ones_turn_is_not_slowness(make: Make) -> None:
    model = Declining(hold=asyncio.Event())
    world = make(role(model, timeout_s=3600.0))
    door = await door_of(world)
    door.enter(visit())
    calls = [asyncio.create_task(post(door.path, chat(f"call {n}"))) for n in range(4)]
    await model.together(1)
    assert model.hold is not None
    model.hold.set()
    assert [(await call).status for call in calls] == [200] * 4
    assert model.most == 1
    assert (await door.leave()).void == ""
