"""The client: which faults it bridges, and which it does not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from templates.coder.coder_tree import part
from templates.coder.scripted_endpoint import Say, serve

clients = part("client")
ends = part("ends")


def ask(address: str, waits: list[float], seconds: float = 30, dialect: str = "openai") -> Any:
    """Send one request; the waits between attempts are noted, not waited for."""
    client = clients.Client(dialect, f"{address}/v1" if address.startswith("http") else address, waits.append)
    return client.complete({"messages": [], "text": "é\ud800"}, seconds)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_faults_are_bridged(status: int) -> None:
    waits: list[float] = []
    with serve([Say(status=status), Say(status=status, headers={"retry-after": "7"}), Say("hi")]) as endpoint:
        assert ask(endpoint.address, waits)["choices"][0]["message"]["content"] == "hi"
    assert waits == [1.0, 7.0]


def test_the_third_fault_is_the_last() -> None:
    waits: list[float] = []
    with serve([Say(status=503, error="down")] * 4) as endpoint, pytest.raises(ends.End) as caught:
        ask(endpoint.address, waits)
    assert (caught.value.code, len(endpoint.requests)) == (ends.MODEL_FAILED, 3)
    assert caught.value.detail == "HTTP 503: down"


def test_the_other_sides_word_on_retrying_counts() -> None:
    for status, word, attempts in ((503, "false", 1), (400, "true", 3)):
        with serve([Say(status=status, headers={"x-should-retry": word})] * 3) as endpoint, pytest.raises(ends.End):
            ask(endpoint.address, [])
        assert len(endpoint.requests) == attempts


def test_no_attempt_is_made_that_would_come_too_late() -> None:
    waits: list[float] = []
    with serve([Say(status=503, headers={"retry-after": "20"})] * 3) as endpoint, pytest.raises(ends.End):
        ask(endpoint.address, waits, seconds=10)
    assert waits == []


@pytest.fixture
def raw(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A server that answers each connection with some bytes and hangs up, or keeps it if there are none."""
    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    kept: list[socket.socket] = []

    def work() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            asked = b""
            while not asked.endswith(b"}"):
                asked += connection.recv(65536)
            if request.param:
                connection.sendall(request.param)
                connection.close()
            else:
                kept.append(connection)

    thread = threading.Thread(target=work)
    thread.start()
    yield f"unix:{path}"
    server.shutdown(socket.SHUT_RDWR)
    thread.join()
    server.close()
    for connection in kept:
        connection.close()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    ("raw", "code", "waits"),
    [
        (b"nonsense", "MODEL_FAILED", 2),
        (HEAD + b"content-length: 100\r\n\r\n{}", "MODEL_FAILED", 2),
        (HEAD + b"content-length: 2\r\n\r\n{}", "", 0),
        (HEAD + b"content-length: 2\r\n\r\n{x", "MODEL_FAILED", 0),
        (HEAD + b"\r\n{}", "", 0),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "", 0),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{}", "MODEL_FAILED", 2),
    ],
    indirect=["raw"],
)
def test_broken_answers(raw: str, code: str, waits: int) -> None:
    waited: list[float] = []
    if code:
        with pytest.raises(ends.End) as caught:
            ask(raw, waited)
        assert caught.value.code == getattr(ends, code)
    else:
        assert ask(raw, waited) == {}
    assert len(waited) == waits


@pytest.mark.parametrize("raw", [b""], indirect=True)
def test_an_answer_that_never_comes(raw: str) -> None:
    with pytest.raises(ends.End) as caught:
        ask(raw, [], seconds=0.3)
    assert caught.value.code == ends.SECONDS_USED_UP


def test_nobody_there(tmp_path: Path) -> None:
    waits: list[float] = []
    with pytest.raises(ends.End) as caught:
        ask(f"unix:{tmp_path}/none", waits)
    assert caught.value.code == ends.MODEL_FAILED
    assert len(waits) == 2


def test_endpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*clients.BASES.values(), *clients.KEYS.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(clients, "SOCKET", str(tmp_path / "s"))
    with pytest.raises(ends.End, match="no way to a model"):
        clients.Client("openai")
    with serve([Say("tcp")] * 4) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{endpoint.address}/v1/")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", endpoint.address)
        clients.Client("openai").complete({}, 9)
        clients.Client("anthropic").complete({}, 9)
        clients.Client("anthropic", f"{endpoint.address}/v1").complete({}, 9)
        with serve([Say("unix")], tmp_path / "s") as inside:
            assert "unix" in json.dumps(clients.Client("openai").complete({}, 9))
        assert [path for path, _ in inside.requests] == ["/v1/chat/completions"]
    assert [path for path, _ in endpoint.requests] == ["/v1/chat/completions", "/v1/messages", "/v1/messages"]
