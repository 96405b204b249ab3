"""The scripted provider itself, asked by a plain HTTP client: what it counts, how it fails, and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import aiohttp
import pytest

from leadscrew.adapters.models.dialects import DIALECTS, sse
from leadscrew.testing.upstream import Fault, ScriptedUpstream, behaviours, count_tokens, main, prompt_digest

BODY = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
ROUTES = {"openai": "chat/completions", "anthropic": "messages"}
TOOLS = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}]


async def ask(url: str, body: Mapping[str, Any] = BODY, route: str = "chat/completions", **headers: str) -> Any:
    """Return status, headers and bytes of a reply."""
    async with aiohttp.ClientSession() as session, session.post(f"{url}/{route}", json=body, headers=headers) as got:
        return got.status, dict(got.headers), await got.read()


@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_whole_and_streamed_replies_are_alike(name: str) -> None:
    dialect = DIALECTS[name]
    async with ScriptedUpstream(lambda request: {"content": "let me add", "tool_calls": TOOLS}) as served:
        status, _, raw = await ask(served.url, BODY, ROUTES[name])
        assert status == 200
        whole = json.loads(raw)
        options = {"stream_options": {"include_usage": True}} if name == "openai" else {}
        _, headers, raw = await ask(served.url, {**BODY, "stream": True, **options}, ROUTES[name])
        assert headers["Content-Type"] == "text/event-stream"
        gatherer = dialect.gather()
        for event in sse.split([raw]):
            gatherer.feed(event)
        assert gatherer.ended
        for reply in (whole, gatherer.reply()):
            assert dialect.fault(reply) == ""
            assert "let me add" in dialect.text(reply)
            assert "[call add]" in dialect.text(reply)
            assert dialect.usage(reply) == (served.tokens_in // 2, served.tokens_out // 2)
        assert served.requests == len(served.bodies) == len(served.headers) == 2
        assert served.bodies[0] == BODY


async def test_a_whole_reply_may_be_given() -> None:
    reply = {"id": "mine", "choices": [{"index": 0, "message": {"content": "yes"}, "finish_reason": "length"}]}
    async with ScriptedUpstream(lambda request: reply) as served:
        _, _, raw = await ask(served.url)
    assert json.loads(raw)["choices"][0]["finish_reason"] == "length"
    assert json.loads(raw)["id"] == "mine"


@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_lies_about_usage(name: str) -> None:
    told: dict[str, Any] = {}
    faults: list[Fault | None] = ["usage_zero", "usage_huge", "usage_negative", "usage_text"]
    async with ScriptedUpstream(lambda request: "four", fault=faults) as served:
        for fault in faults:
            _, _, raw = await ask(served.url, BODY, ROUTES[name])
            usage = json.loads(raw)["usage"]
            told[str(fault)] = usage.get("prompt_tokens", usage.get("input_tokens"))
        assert served.tokens_out == len(faults) * count_tokens("four")
    assert told == {"usage_zero": 0, "usage_huge": 10**9, "usage_negative": -5, "usage_text": "many"}


@pytest.mark.parametrize(
    ("fault", "status"), [("rate_limit", 429), ("error", 500), ("unavailable", 503), ("unpaid", 402)]
)
async def test_refusals(fault: Fault, status: int) -> None:
    async with ScriptedUpstream(lambda request: "x", fault=[fault], retry_after="7") as served:
        got, headers, raw = await ask(served.url)
        assert got == status
        assert headers.get("Retry-After") == ("7" if fault == "rate_limit" else None)
        assert fault in json.loads(raw)["error"]["message"]
        assert (served.tokens_in, served.tokens_out) == (0, 0)
        assert (await ask(served.url))[0] == 200


async def test_what_is_no_request_is_told() -> None:
    async with ScriptedUpstream(lambda request: "x") as served:
        async with aiohttp.ClientSession() as session, session.post(f"{served.url}/messages", data=b"{") as got:
            assert got.status == 400
        assert served.requests == 0


async def test_down_until_it_is_started_again() -> None:
    async with ScriptedUpstream(lambda request: "x", fault=["down"]) as served:
        before = served.url
        with pytest.raises(aiohttp.ClientError):
            await ask(served.url)
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(served.url)
        await served.start()
        assert served.url == before
        assert (await ask(served.url))[0] == 200
        await served.stop()
        await served.stop()
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(served.url)


async def test_the_fault_may_depend_on_the_request() -> None:
    def fault(number: int, request: dict[str, Any]) -> Fault | None:
        return "error" if "bad" in str(request) else None

    async with ScriptedUpstream(lambda request: "x", fault=fault) as served:
        bad = {**BODY, "messages": [{"role": "user", "content": "bad"}]}
        assert [(await ask(served.url, body))[0] for body in (BODY, bad, BODY)] == [200, 500, 200]


async def test_a_log_of_everything_that_arrives(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with ScriptedUpstream(lambda request: "x", fault=["error"], log=log) as served:
        await ask(served.url)
        await ask(served.url)
        await ask(served.url, BODY, "messages")
    assert log.read_text().splitlines() == [prompt_digest(BODY)] * 3


async def test_at_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "up.sock"
    async with ScriptedUpstream(lambda request: "four", socket=path) as served:
        assert served.url == f"unix:{path}"
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
            session.post("http://upstream/v1/chat/completions", json=BODY) as got,
        ):
            assert (await got.json())["choices"][0]["message"]["content"] == "four"


def test_replies_by_name() -> None:
    request = {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]}
    found = behaviours(["one", "two", "three"])
    assert found["echo"](request) == "ab"
    assert found["length"](request) == "2"
    assert found["label"](request) in ("one", "two", "three")
    assert found["word"](request) == found["word"](dict(request)) != found["word"](BODY)


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[str]:
    """Run the process form and give its address."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leadscrew.testing.upstream", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        yield (await child.stdout.readline()).decode().strip()
    finally:
        child.terminate()
        await child.wait()


async def test_as_a_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with process("--log", str(log), "--reply", "label", "--labels", "left,right", "--faults", "error,") as url:
        assert url.startswith("http://127.0.0.1:")
        assert [(await ask(url))[0] for _ in range(2)] == [500, 200]
        _, _, raw = await ask(url)
        assert json.loads(raw)["choices"][0]["message"]["content"] in ("left", "right")
    assert log.read_text().splitlines() == [prompt_digest(BODY)] * 3


def test_an_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--faults", "explode"])
    assert "explode" in capsys.readouterr().err
    assert "stall_midway" in get_args(Fault)
