"""The HTTP client of the gateway against a scripted provider with every fault there is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
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
async def client(clock: Clock | None = None, **more: Any) -> AsyncIterator[Upstream]:
    clock = clock or Clock()
    made = Upstream({"THE_KEY": KEY}, sleep=clock.sleep, clock=clock.time, rng=random.Random(1), **more)
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


FAILING: list[tuple[Fault, bool, bool, str]] = [
    # fault, tried again, may have been billed, what is said
    ("down", True, True, "the connection broke"),
    ("rate_limit", True, False, "status 429"),
    ("error", True, True, "status 500"),
    ("unavailable", True, False, "status 503"),
    ("unpaid", False, False, "look at its billing page"),
    ("stall", True, True, "no whole reply within"),
    ("reset", True, True, "the connection broke"),
    ("not_json", True, True, "no whole JSON"),
    ("truncated_json", True, True, "no whole JSON"),
    ("error_in_reply", True, True, "an error in place of a reply"),
    ("echo_key_in_error", False, False, "The key was not accepted"),
]


@pytest.mark.parametrize("anthropic", [False, True])
@pytest.mark.parametrize(("fault", "tried", "billed", "said"), FAILING)
async def test_every_fault_of_a_whole_reply(
    anthropic: bool, fault: Fault, tried: bool, billed: bool, said: str
) -> None:
    async with ScriptedUpstream(lambda r: "four", fault=[fault]) as served, client() as up:
        provider = served.provider(key_env="THE_KEY", anthropic=anthropic)
        with pytest.raises(UpstreamFailed, match=said) as caught:
            await up.send(provider, BODY, timeout_s=0.3 if fault == "stall" else 20, retries=0)
        failed = caught.value
        assert (failed.attempts, failed.uncertain, failed.retryable) == (1, int(billed), tried)
        assert KEY not in str(failed)
        # No traceback shows what the failed request was made of.
        assert failed.__cause__ is None
        assert failed.__context__ is None


BROKEN_STREAMS: list[tuple[Fault, str, bool]] = [
    # fault, what is said, whether something had arrived
    ("truncated_stream", "before its end marker", True),
    ("reset_midway", "the reply broke off", True),
    ("stall_midway", "silent for 0.2 s", True),
    ("not_json", "before its end marker", False),
    ("error_in_reply", "an error in place of a reply", False),
    ("reset", "the connection broke", False),
    ("rate_limit", "status 429", False),
]


@pytest.mark.parametrize("anthropic", [False, True])
@pytest.mark.parametrize(("fault", "said", "arrived"), BROKEN_STREAMS)
async def test_every_fault_of_a_stream(anthropic: bool, fault: Fault, said: str, arrived: bool) -> None:
    events: list[bytes] = []
    stall_s = 0.2 if fault == "stall_midway" else 60.0
    async with ScriptedUpstream(lambda r: "four times " * 30, fault=[fault]) as served, client(stall_s=stall_s) as up:
        provider = served.provider(anthropic=anthropic)
        if arrived:
            with pytest.raises(UpstreamFailed, match=said) as caught:
                await up.send(provider, BODY, timeout_s=20, retries=3, on_event=events.append)
            assert (caught.value.attempts, caught.value.uncertain, served.requests) == (1, 1, 1)
            assert events
        else:
            found = await up.send(provider, BODY, timeout_s=20, retries=1, on_event=events.append)
            assert (found.attempts, served.requests) == (2, 2)
            dialect = ANTHROPIC if anthropic else OPENAI
            gatherer = dialect.gather()
            for event in events:
                gatherer.feed(event)
            # Nothing of the first attempt was passed on.
            assert dialect.text(gatherer.reply()) == "four times " * 30


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "fault", ["wrong_type", "no_usage", "usage_zero", "usage_huge", "usage_negative", "usage_text"]
)
async def test_what_only_looks_odd_is_a_reply(fault: Fault, streamed: bool) -> None:
    on_event = (lambda event: None) if streamed else None
    async with ScriptedUpstream(lambda r: "four", fault=[fault]) as served, client() as up:
        found = await up.send(served.provider(), BODY, timeout_s=20, retries=0, on_event=on_event)
        assert OPENAI.text(found.body) == "four"
        assert ("usage" in found.body) == (fault != "no_usage")


async def test_who_listens_may_take_its_time() -> None:
    events: list[bytes] = []

    async def slowly(event: bytes) -> None:
        await asyncio.sleep(0)
        events.append(event)

    async with ScriptedUpstream(lambda r: "four") as served, client() as up:
        await up.send(served.provider(), BODY, timeout_s=20, retries=0, on_event=slowly)
        assert served.bodies[0]["stream_options"] == {"include_usage": True}
    assert events[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize(("environ", "said"), [({}, "is not set"), ({"THE_KEY": "a\nb-key-key"}, "holds characters")])
async def test_without_a_key_nothing_is_sent(environ: dict[str, str], said: str) -> None:
    async with ScriptedUpstream(lambda r: "x") as served:
        up = Upstream(environ)
        with pytest.raises(UpstreamFailed, match=f"THE_KEY {said}") as caught:
            await up.send(served.provider(key_env="THE_KEY"), BODY, timeout_s=20, retries=3)
        await up.close()
        assert (caught.value.attempts, caught.value.retryable, served.requests) == (0, False, 0)


async def test_a_short_key_is_not_shown_either() -> None:
    async with ScriptedUpstream(lambda r: "x", fault=always("echo_key_in_error")) as served:
        up = Upstream({"THE_KEY": "s3same"})
        with pytest.raises(UpstreamFailed) as caught:
            await up.send(served.provider(key_env="THE_KEY"), BODY, timeout_s=20, retries=0)
        await up.close()
    assert "s3same" not in str(caught.value)


async def test_nothing_of_the_environment_but_proxies_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password hunter22\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with ScriptedUpstream(lambda r: "x") as served:
        up = Upstream({"THE_KEY": KEY, "HTTP_PROXY": "http://127.0.0.1:1"})
        for anthropic in (False, True):
            await up.send(served.provider(key_env="THE_KEY", anthropic=anthropic), BODY, timeout_s=20, retries=0)
        await up.close()
    assert served.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in served.headers[1]


async def test_a_proxy_is_used_for_other_machines_and_gets_its_own_password_only() -> None:
    seen: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    up = Upstream({"THE_KEY": KEY, "https_proxy": f"http://me:hunter22@127.0.0.1:{port}"})
    provider = Provider("far", "https://models.invalid/v1", "THE_KEY")
    with pytest.raises(UpstreamFailed) as caught:
        await up.send(provider, BODY, timeout_s=20, retries=0)
    await up.close()
    server.close()
    await server.wait_closed()
    (head,) = seen
    assert head.startswith(b"CONNECT models.invalid:443 ")
    assert b"Proxy-Authorization: Basic " in head
    assert KEY.encode() not in head
    assert "hunter22" not in str(caught.value)


async def test_a_cut_off_probe_leaves_the_way_to_the_next_one() -> None:
    clock = Clock()
    arrived = asyncio.Event()

    def fault(number: int, request: Any) -> Fault | None:
        if number == module.BREAK_AFTER:
            arrived.set()
            return "stall"
        return "error" if number < module.BREAK_AFTER else None

    async with ScriptedUpstream(lambda r: "x", fault=fault) as served, client(clock) as up:
        provider = served.provider()
        for _ in range(module.BREAK_AFTER):
            with pytest.raises(UpstreamFailed):
                await up.send(provider, BODY, timeout_s=20, retries=0)
        clock.now += module.BREAK_S
        probe = asyncio.create_task(up.send(provider, BODY, timeout_s=20, retries=0))
        await arrived.wait()
        with pytest.raises(UpstreamFailed, match="left alone"):
            await up.send(provider, BODY, timeout_s=20, retries=0)
        probe.cancel()
        await asyncio.wait([probe])
        assert (await up.send(provider, BODY, timeout_s=20, retries=0)).attempts == 1


async def test_a_request_that_is_turned_down_says_that_the_provider_is_up() -> None:
    async with ScriptedUpstream(lambda r: "x", fault=always("echo_key_in_error")) as served, client() as up:
        for _ in range(2 * module.BREAK_AFTER):
            with pytest.raises(UpstreamFailed, match="status 401"):
                await up.send(served.provider(), BODY, timeout_s=20, retries=0)
        assert served.requests == 2 * module.BREAK_AFTER


async def test_who_waited_for_room_does_not_go_to_a_provider_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1)
    async with ScriptedUpstream(lambda r: "x", fault=always("error")) as served, client() as up:
        calls = [up.send(served.provider(), BODY, timeout_s=20, retries=0) for _ in range(12)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, UpstreamFailed) for error in found)
        assert served.requests == module.BREAK_AFTER


async def test_a_long_wait_is_not_granted() -> None:
    clock = Clock()
    async with (
        ScriptedUpstream(lambda r: "x", fault=["rate_limit"], retry_after="86400") as served,
        client(clock) as up,
    ):
        await up.send(served.provider(), BODY, timeout_s=20, retries=1)
    assert module.LONGEST_PAUSE_S <= clock.slept[0] <= module.LONGEST_PAUSE_S + module.FIRST_PAUSE_S


async def test_a_reply_beyond_all_measure_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLY_BYTES", 1000)
    async with ScriptedUpstream(lambda r: "x" * 5000) as served, client() as up:
        for on_event in (None, lambda event: None):
            with pytest.raises(UpstreamFailed, match="longer than") as caught:
                await up.send(served.provider(), BODY, timeout_s=20, retries=2, on_event=on_event)
            assert not caught.value.retryable
        assert served.requests == 2


async def test_a_server_that_does_not_stream_is_heard_too() -> None:
    from aiohttp import web

    async def whole(request: web.Request) -> web.Response:
        choice = {"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", whole)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    events: list[bytes] = []
    async with client() as up:
        provider = Provider("p", f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        found = await up.send(provider, BODY, timeout_s=20, retries=0, on_event=events.append)
    await runner.cleanup()
    assert OPENAI.text(found.body) == "four"
    assert events == []
