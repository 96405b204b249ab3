"""Gateway: calls per second through a door, what door and gateway add to a call, and whether a cap holds and the books agree.

    python bench/gateway.py [--json] [--calls 2000]

The upstream is scripted and answers at once, in a process of its own, over real HTTP; the store is a real one that commits
every call and every reply. `overhead_ms` is the median time of a call through a door less that of the same call straight to the
upstream, one at a time, in turns; `two_commits_ms` is what the disk alone takes of it, measured in the same turns. Figures are
of the machine that the first line names; quote ratios where you can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from leadscrew.adapters.models.gateway import ModelGateway
from leadscrew.adapters.models.metering import RoleModel
from leadscrew.adapters.models.providers import Provider
from leadscrew.adapters.models.redact import Redactor
from leadscrew.adapters.models.upstream import Upstream
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Caps, Spend
from leadscrew.core.call import Call, CallReply, Pin
from leadscrew.engine.commit import Committer
from leadscrew.engine.meter import Meter
from leadscrew.ports import Access, Door, Visit
from leadscrew.testing.upstream import ScriptedUpstream
from machine import machine_line

CALLERS = 32
ROUTE = "/v1/chat/completions"
PROMPT = "Which of these labels fits the text below? " * 10


@asynccontextmanager
async def upstream_process() -> AsyncIterator[Provider]:
    """Run the scripted upstream in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leadscrew.testing.upstream", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        yield Provider("scripted-upstream", address, "", local=True)
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def gateway_before(
    provider: Provider, caps: Caps
) -> AsyncIterator[tuple[ModelGateway, SQLiteStore, Meter, Path]]:
    """Open a gateway with one role on the provider, over a store in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = SQLiteStore.create(folder / "run", config={}, seed=0)
        meter = Meter(Caps(), role_caps={"solver": caps})
        pin = Pin("solver", f"{provider.name}/m", temperature=0.0, max_tokens=64)
        gateway = ModelGateway(
            roles={"solver": RoleModel(pin, provider)},
            store=store,
            committer=Committer(store),
            accounts=meter.calls,
            upstream=Upstream({}),
            redact=Redactor({"KEY": "sk-an-unused-key-0123456789"}),
        )
        try:
            yield gateway, store, meter, folder
        finally:
            await gateway.close()
            store.close()


def body(text: str) -> dict[str, Any]:
    """Return a request."""
    return {"messages": [{"role": "user", "content": f"{PROMPT}{text}"}], "max_tokens": 64}


def entered(door: Door, scope: str) -> Door:
    """Open a visit that shares its replies with nobody."""
    door.enter(Visit(Access("solver", 1, "1.0"), scope))
    return door


async def ask(session: aiohttp.ClientSession, url: str, text: str) -> int:
    """Make one call and return its status."""
    async with session.post(url, json=body(text)) as response:
        await response.read()
        return response.status


async def speed(calls: int) -> dict[str, float]:
    """Measure calls per second of many callers at once, and what the gateway adds to one call at a time."""
    async with upstream_process() as provider, gateway_before(provider, Caps()) as (gateway, store, _, folder):
        door = entered(await gateway.door(folder / "d"), "speed")
        straight_url = f"{provider.base_url}/chat/completions"
        inside = aiohttp.ClientSession("http://gateway", connector=aiohttp.UnixConnector(door.path))
        async with inside, aiohttp.ClientSession() as outside:
            through: list[float] = []
            straight: list[float] = []
            disk: list[float] = []
            for number in range(max(calls // 4, 50)):
                began = time.perf_counter()
                assert await ask(inside, ROUTE, f"one {number}") == 200
                middle = time.perf_counter()
                assert await ask(outside, straight_url, f"one {number}") == 200
                through.append(middle - began)
                straight.append(time.perf_counter() - middle)
                disk.append(committed(store, number))

            async def caller(number: int) -> None:
                for turn in range(calls // CALLERS):
                    assert await ask(inside, ROUTE, f"many {number} {turn}") == 200

            began = time.perf_counter()
            await asyncio.gather(*(caller(number) for number in range(CALLERS)))
            seconds = time.perf_counter() - began
        await door.leave()
        return {
            "calls_per_s": calls // CALLERS * CALLERS / seconds,
            "overhead_ms": 1000 * (statistics.median(through) - statistics.median(straight)),
            "through_ms": 1000 * statistics.median(through),
            "straight_ms": 1000 * statistics.median(straight),
            "two_commits_ms": 1000 * statistics.median(disk),
        }


def committed(store: SQLiteStore, number: int) -> float:
    """Return the seconds that recording a call and its reply take, each with a commit of its own."""
    call = Call("solver", 1, "1.0", "alone", f"{number:064}", 0, "m", body=body(str(number)))
    began = time.perf_counter()
    row = store.add_call(call)
    store.commit()
    store.add_reply(row, CallReply("ok", body={"text": "label"}))
    store.commit()
    return time.perf_counter() - began


async def capped(tokens: int) -> dict[str, Any]:
    """Let callers at doors of their own run into a token cap, and compare the books with the upstream's own count."""
    async with (
        ScriptedUpstream(lambda request: "label", delay_s=0.001) as up,
        gateway_before(up.provider(), Caps(tokens=tokens)) as (gateway, store, meter, folder),
    ):
        doors = [entered(await gateway.door(folder / f"{n}"), f"trial {n}") for n in range(CALLERS)]

        async def caller(number: int) -> None:
            connector = aiohttp.UnixConnector(doors[number].path)
            async with aiohttp.ClientSession("http://gateway", connector=connector) as session:
                turn = 0
                while await ask(session, ROUTE, f"{number} {turn}") == 200:
                    turn += 1

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        visits = [await door.leave() for door in doors]
        account = meter.calls("solver", 1)
        logical = sum((v.spend for v in visits), Spend())
        books = [account.spent, store.call_spend()["solver", 1], logical]
        own = up.tokens_in + up.tokens_out
        return {
            "overshoot_tokens": max(0, own - tokens),
            "used_of_cap": own / tokens,
            "metered_equals_upstream": all((b.tokens_in, b.tokens_out) == (up.tokens_in, up.tokens_out) for b in books)
            and account.held == Spend()
            and all(v.cap == "tokens" for v in visits),
        }


async def measure(calls: int, tokens: int) -> dict[str, Any]:
    """Return all figures."""
    return {**await speed(calls), **await capped(tokens), "callers": CALLERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=100_000, help="the cap that the callers run into")
    args = parser.parse_args()
    figures = asyncio.run(measure(args.calls, args.tokens))
    if args.json:
        print(json.dumps({**figures, "machine": machine_line()}))
        return
    print(machine_line())
    for name, value in figures.items():
        print(f"{name:26} {value if isinstance(value, (bool, int)) else f'{value:.3f}'}")


if __name__ == "__main__":
    main()
