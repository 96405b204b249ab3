"""The HTTP client of the gateway against a scripted provider with every fault there is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leadscrew.adapters.models import upstream as module
from leadscrew.adapters.models.dialects import ANTHROPIC, OPENAI
from leadscrew.adapters.models.providers import Provider
from leadscrew.adapters.models.upstream import Upstream, UpstreamFailed
from leadscrew.testing.upstream import Fault, ScriptedUpstream

KEY = "key-of-the-test-0123456789"
BODY = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 2?"}], "max_tokens": 20}


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def time(self) -> float:
        return self.now


@asynccontextmanager
async def client(clock: Clock | None = None) -> AsyncIterator[Upstream]:
    clock = clock or Clock()
    made = Upstream({"THE_KEY": KEY}, sleep=clock.sleep, clock=clock.time, rng=random.Random(1))
    try:
        yield made
    finally:
        await made.close()


def always(fault: Fault) -> Callable[[int, dict[str, Any]], Fault | None]:
    return lambda number, request: fault


@pytest.mark.parametrize("anthropic", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_in_both_dialects(anthropic: bool, streamed: bool) -> None:
    dialect = ANTHROPIC if anthropic else OPENAI
    events: list[bytes] = []
    async with ScriptedUpstream(lambda request: "four") as served, client() as upstream:
        provider = served.provider(key_env="THE_KEY", anthropic=anthropic)
        found = await upstream.send(
            provider, BODY, timeout_s=5, retries=0, on_event=events.append if streamed else None
        )
        assert dialect.text(found.body) == "four"
        assert dialect.usage(found.body) == (served.tokens_in, served.tokens_out)
        assert (found.attempts, found.uncertain) == (1, 0)
        assert bool(events) == streamed
        sent = served.headers[0]
        assert (sent["x-api-key"] if anthropic else sent["Authorization"].removeprefix("Bearer ")) == KEY


@pytest.mark.parametrize("fault", ["rate_limit", "error", "unavailable", "reset", "truncated_json", "not_json"])
async def test_what_passes_is_tried_again(fault: Fault) -> None:
    async with ScriptedUpstream(lambda request: "four", fault=[fault, fault]) as served, client() as upstream:
        found = await upstream.send(served.provider(), BODY, timeout_s=5, retries=3)
        assert OPENAI.text(found.body) == "four"
        assert found.attempts == 3
        assert found.uncertain == (0 if fault in ("rate_limit", "unavailable") else 2)


async def test_the_pauses_grow_and_the_provider_may_ask_for_its_own() -> None:
    clock = Clock()
    async with ScriptedUpstream(lambda r: "x", fault=["error", "error", "rate_limit"]) as served, client(clock) as up:
        await up.send(served.provider(), BODY, timeout_s=5, retries=3)
    first, second, third = clock.slept
    assert 0.25 <= first <= 0.75
    assert 0.5 <= second <= 1.5
    assert 0.0 <= third <= 0.5


async def test_a_server_that_never_answers_is_given_up() -> None:
    async with ScriptedUpstream(lambda r: "x", fault=always("stall")) as served, client() as up:
        with pytest.raises(UpstreamFailed, match=r"no whole reply within 0.2 s \(2 attempts\)") as caught:
            await up.send(served.provider(), BODY, timeout_s=0.2, retries=1)
    assert (caught.value.attempts, caught.value.uncertain) == (2, 2)


async def test_there_may_be_no_money_for_another_attempt() -> None:
    async with ScriptedUpstream(lambda r: "x", fault=always("reset")) as served, client() as up:
        with pytest.raises(UpstreamFailed) as caught:
            await up.send(served.provider(), BODY, timeout_s=1, retries=5, again=lambda: False)
        assert served.requests == 1
    assert caught.value.uncertain == 1


@pytest.mark.parametrize("fault", ["truncated_stream", "stall_midway"])
async def test_a_stream_that_breaks_is_no_reply_and_not_tried_again(fault: Fault) -> None:
    events: list[bytes] = []
    async with ScriptedUpstream(lambda r: "four times", fault=always(fault)) as served, client() as up:
        with pytest.raises(UpstreamFailed):
            await up.send(served.provider(), BODY, timeout_s=0.3, retries=3, on_event=events.append)
        assert served.requests == 1
    assert events


async def test_a_server_that_is_down_and_comes_back() -> None:
    async with ScriptedUpstream(lambda r: "four") as served, client() as up:
        provider = served.provider()
        await up.send(provider, BODY, timeout_s=2, retries=0)
        await served.stop()
        with pytest.raises(UpstreamFailed, match="connect") as caught:
            await up.send(provider, BODY, timeout_s=2, retries=2)
        assert caught.value.uncertain <= 1
        await served.start()
        assert OPENAI.text((await up.send(provider, BODY, timeout_s=2, retries=0)).body) == "four"


async def test_a_wrong_key_is_said_without_the_key() -> None:
    async with ScriptedUpstream(lambda r: "x", fault=always("echo_key_in_error")) as served, client() as up:
        with pytest.raises(UpstreamFailed, match="THE_KEY") as caught:
            await up.send(served.provider(key_env="THE_KEY"), BODY, timeout_s=2, retries=3)
        assert served.requests == 1
    assert KEY not in str(caught.value)
    assert caught.value.status == 401


async def test_the_breaker_opens_probes_and_closes() -> None:
    clock = Clock()
    async with (
        ScriptedUpstream(lambda r: "x", fault=lambda n, r: "error" if n < 6 else None) as served,
        client(clock) as up,
    ):
        provider = served.provider()
        for _ in range(module.BREAK_AFTER):
            with pytest.raises(UpstreamFailed):
                await up.send(provider, BODY, timeout_s=2, retries=0)
        with pytest.raises(UpstreamFailed, match="left alone") as caught:
            await up.send(provider, BODY, timeout_s=2, retries=0)
        assert caught.value.attempts == 0
        assert served.requests == module.BREAK_AFTER
        clock.now += module.BREAK_S
        with pytest.raises(UpstreamFailed, match="status 500"):
            await up.send(provider, BODY, timeout_s=2, retries=0)
        with pytest.raises(UpstreamFailed, match="left alone"):
            await up.send(provider, BODY, timeout_s=2, retries=0)
        clock.now += module.BREAK_S
        await up.send(provider, BODY, timeout_s=2, retries=0)
        await up.send(provider, BODY, timeout_s=2, retries=0)


async def test_a_redirect_is_not_followed() -> None:
    from aiohttp import web

    seen: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.path)
        raise web.HTTPTemporaryRedirect("/v1/other")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", elsewhere)
    app.router.add_post("/v1/other", elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with client() as up:
        provider = Provider("p", f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        with pytest.raises(UpstreamFailed, match="status 307"):
            await up.send(provider, BODY, timeout_s=2, retries=0)
    await runner.cleanup()
    assert seen == ["/v1/chat/completions"]


async def test_at_most_so_many_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    async with ScriptedUpstream(lambda r: "x", delay_s=0.02) as served, client() as up:
        provider = served.provider()
        await asyncio.gather(*(up.send(provider, BODY, timeout_s=5, retries=0) for _ in range(12)))
        assert served.most == 3
