"""The official clients read what the dialects write, streamed and not, and write what they read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from leadscrew.adapters.models.dialects import ANTHROPIC, OPENAI, Dialect, translate_reply, translate_request
from leadscrew.core.call import Pin

WHY = "the official client is the test"
LONG = "Gr\u00fc\u00dfe \U0001f600 " * 40

OPENAI_REPLY: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": LONG,
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "add", "arguments": json.dumps({"x": LONG})}},
                    {"id": "b", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                ],
            },
            "logprobs": {
                "content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}],
                "refusal": None,
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
}
ANTHROPIC_REPLY: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "tiny",
    "content": [
        {"type": "thinking", "thinking": "hm, " * 50, "signature": "sig"},
        {"type": "text", "text": LONG},
        {"type": "tool_use", "id": "a", "name": "add", "input": {"x": LONG}},
        {"type": "tool_use", "id": "b", "name": "now", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 11, "output_tokens": 7, "cache_read_input_tokens": 5},
}


class Service(ThreadingHTTPServer):
    """Answers every request with `reply` or, if it is set, `error`, as `dialect` would; keeps the bodies."""

    daemon_threads = True
    dialect: Dialect = OPENAI
    reply: dict[str, Any]
    error: tuple[int, dict[str, Any]] | None = None
    midway = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.base = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        service = self.server
        assert isinstance(service, Service)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        service.bodies.append(body)
        dialect = service.dialect
        if service.error and not service.midway:
            self._send(service.error[0], "application/json", json.dumps(service.error[1]).encode())
        elif body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            events = list(dialect.events(service.reply, include_usage=usage))
            if service.error:
                events = [*events[:3], dialect.error_event(service.error[1])]
            self._send(200, "text/event-stream", b"".join(events))
        else:
            self._send(200, "application/json", json.dumps(service.reply).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def openai_client(service: Service) -> Iterator[Any]:
    openai = pytest.importorskip("openai", reason=WHY)
    service.dialect, service.reply = OPENAI, OPENAI_REPLY
    with openai.OpenAI(base_url=f"{service.base}/v1", api_key="none") as client:
        yield client


@pytest.fixture
def anthropic_client(service: Service) -> Iterator[Any]:
    anthropic = pytest.importorskip("anthropic", reason=WHY)
    service.dialect, service.reply = ANTHROPIC, ANTHROPIC_REPLY
    with anthropic.Anthropic(base_url=service.base, api_key="none") as client:
        yield client


ASK: list[Any] = [{"role": "user", "content": "2 + 2?"}]


def same_openai(completion: Any, reply: dict[str, Any], *, usage: bool = True) -> None:
    message, choice = reply["choices"][0]["message"], completion.choices[0]
    assert choice.message.content == message["content"]
    assert [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [
        (c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]
    ]
    assert choice.finish_reason == reply["choices"][0]["finish_reason"]
    if usage:
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == OPENAI.usage(reply)


def test_openai_unstreamed(service: Service, openai_client: Any) -> None:
    same_openai(openai_client.chat.completions.create(model="any", messages=ASK), OPENAI_REPLY)
    sent = OPENAI.pinned(service.bodies[0], Pin("solver", "a/tiny"))
    assert sent == {"messages": ASK, "max_tokens": 1024, "model": "tiny"}


def test_openai_chunks(service: Service, openai_client: Any) -> None:
    stream = openai_client.chat.completions.create(
        model="any", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == LONG
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(chunks) > 10
    assert chunks[-1].usage.total_tokens == 18
    unasked = list(openai_client.chat.completions.create(model="any", messages=ASK, stream=True))
    assert all(chunk.choices for chunk in unasked)


@pytest.mark.parametrize("asked", [True, False])
def test_openai_accumulated(openai_client: Any, asked: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if asked else {}
    with openai_client.chat.completions.stream(model="any", messages=ASK, **options) as stream:
        completion = stream.get_final_completion()
    same_openai(completion, OPENAI_REPLY, usage=asked)
    assert completion.choices[0].logprobs.content[0].logprob == -0.5


def same_anthropic(message: Any, reply: dict[str, Any]) -> None:
    fields = {
        "text": ("text",),
        "thinking": ("thinking", "signature"),
        "tool_use": ("id", "name", "input"),
    }
    got = [{"type": block.type, **{f: getattr(block, f) for f in fields[block.type]}} for block in message.content]
    assert got == reply["content"]
    assert message.stop_reason == reply["stop_reason"]
    figures = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0), message.usage.output_tokens
    assert figures == ANTHROPIC.usage(reply)


def test_anthropic_unstreamed(service: Service, anthropic_client: Any) -> None:
    same_anthropic(anthropic_client.messages.create(model="any", max_tokens=9, messages=ASK), ANTHROPIC_REPLY)
    sent = ANTHROPIC.pinned(service.bodies[0], Pin("solver", "a/tiny"))
    assert sent == {"messages": ASK, "max_tokens": 9, "model": "tiny"}


def test_anthropic_accumulated(anthropic_client: Any) -> None:
    with anthropic_client.messages.stream(model="any", max_tokens=9, messages=ASK) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == LONG
    assert len(pieces) > 3
    same_anthropic(message, ANTHROPIC_REPLY)


def test_anthropic_raw_events(anthropic_client: Any) -> None:
    events = list(anthropic_client.messages.create(model="any", max_tokens=9, messages=ASK, stream=True))
    assert events[0].message.usage.input_tokens == 11
    assert [e.type for e in events][-2:] == ["message_delta", "message_stop"]


def test_an_openai_client_of_an_anthropic_model(service: Service, openai_client: Any) -> None:
    service.reply = translate_reply(ANTHROPIC_REPLY, ANTHROPIC, OPENAI)
    completion = openai_client.chat.completions.create(model="any", messages=ASK)
    same_openai(completion, service.reply)
    assert completion.usage.prompt_tokens_details.cached_tokens == 5
    # The client's own object goes back as history, as programs do it.
    history = [*ASK, completion.choices[0].message, {"role": "tool", "tool_call_id": "a", "content": "4"}]
    openai_client.chat.completions.create(model="any", messages=history)
    there = translate_request(service.bodies[-1], OPENAI, ANTHROPIC)
    assert there["messages"][1]["content"] == ANTHROPIC_REPLY["content"][1:]
    assert there["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": "a", "content": "4"}]


def test_an_anthropic_client_of_an_openai_model(service: Service, anthropic_client: Any) -> None:
    service.reply = translate_reply(OPENAI_REPLY, OPENAI, ANTHROPIC)
    with anthropic_client.messages.stream(model="any", max_tokens=9, messages=ASK) as stream:
        message = stream.get_final_message()
    same_anthropic(message, service.reply)
    result = {"type": "tool_result", "tool_use_id": "a", "content": "4"}
    history = [*ASK, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    anthropic_client.messages.create(model="any", max_tokens=9, messages=history)
    there = translate_request(service.bodies[-1], ANTHROPIC, OPENAI)
    assert [m["role"] for m in there["messages"]] == ["user", "assistant", "tool"]
    assert there["messages"][1]["content"] == [{"type": "text", "text": LONG}]


@pytest.mark.parametrize("midway", [False, True])
def test_errors_reach_the_program_and_are_not_tried_again(service: Service, openai_client: Any, midway: bool) -> None:
    import openai

    service.error, service.midway = (503, OPENAI.error("the cap is reached", "unavailable", 503)), midway
    with pytest.raises(openai.APIError, match="the cap is reached") as caught:
        list(openai_client.chat.completions.create(model="any", messages=ASK, stream=True))
    assert caught.value.code == "unavailable"
    assert len(service.bodies) == 1


@pytest.mark.parametrize("midway", [False, True])
def test_errors_of_the_other_dialect(service: Service, anthropic_client: Any, midway: bool) -> None:
    import anthropic

    service.error, service.midway = (403, ANTHROPIC.error("no visit is open", "permission", 403)), midway
    with pytest.raises(anthropic.APIStatusError, match="no visit is open"):
        list(anthropic_client.messages.create(model="any", max_tokens=9, messages=ASK, stream=True))
    assert len(service.bodies) == 1
