"""The way from a box's loopback to the gateway's socket."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import leadscrew

GUEST = Path(leadscrew.__file__).parent / "guest"


def module() -> ModuleType:
    """The forwarder as a box has it: a file of its own, no part of the package."""
    spec = importlib.util.spec_from_file_location("leadscrew_forward", GUEST / "leadscrew_forward.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


forward = module()


class Server:
    """A unix socket whose connections the test accepts by hand."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.bind(self.path)
        self.sock.listen(128)
        self.sock.settimeout(20)

    def accept(self) -> socket.socket:
        sock, _ = self.sock.accept()
        sock.settimeout(20)
        return sock

    def nobody(self) -> bool:
        """Whether no connection waits."""
        self.sock.settimeout(0)
        try:
            self.sock.accept()
        except BlockingIOError:
            return True
        finally:
            self.sock.settimeout(20)
        return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "s")
    yield made
    made.sock.close()


@pytest.fixture
def forwarder(server: Server) -> Iterator[Any]:
    made = forward.Forwarder(server.path)
    yield made
    made.close()


def client(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    return sock


def everything(sock: socket.socket) -> bytes:
    parts = []
    while data := sock.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def test_bytes_and_ends_of_streams_pass_both_ways(server: Server) -> None:
    near = client(forward.start(server.path))
    far = server.accept()
    near.sendall(b"question")
    assert far.recv(100) == b"question"
    near.shutdown(socket.SHUT_WR)
    assert far.recv(100) == b""
    far.sendall(b"answer")
    assert near.recv(100) == b"answer"
    far.close()
    assert near.recv(100) == b""
    near.close()


def test_megabytes_pass_both_ways_at_once_with_a_slow_reader(server: Server) -> None:
    near = client(forward.start(server.path))
    far = server.accept()
    sizes = (8_000_000, 5_000_000)
    up, down = (os.urandom(size) for size in sizes)
    got: dict[str, str] = {}

    def take(name: str, sock: socket.socket) -> None:
        got[name] = hashlib.sha256(everything(sock)).hexdigest()

    def give(sock: socket.socket, data: bytes) -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=give, args=(near, up)), threading.Thread(target=give, args=(far, down))]
    for thread in threads:
        thread.start()
    readers = [threading.Thread(target=take, args=("up", far)), threading.Thread(target=take, args=("down", near))]
    for thread in readers:
        thread.start()
    for thread in (*threads, *readers):
        thread.join(60)
    assert got == {"up": hashlib.sha256(up).hexdigest(), "down": hashlib.sha256(down).hexdigest()}
    near.close()
    far.close()


def test_a_client_that_goes_away_is_news_for_the_gateway(server: Server, forwarder: Any) -> None:
    near = client(forwarder.port)
    forwarder.work(5)
    far = server.accept()
    near.close()
    forwarder.work(5)
    assert far.recv(10) == b""
    far.close()
    forwarder.work(5)
    assert forwarder._ends == {}


def test_drop_cuts_what_is_open_and_what_nobody_has_accepted_yet(server: Server, forwarder: Any) -> None:
    first = client(forwarder.port)
    forwarder.work(5)
    far = server.accept()
    waiting = [client(forwarder.port) for _ in range(5)]
    for sock in (first, *waiting):
        sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
    forwarder.drop()
    assert far.recv(10) == b""
    for sock in (first, *waiting):
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            assert sock.recv(10) == b""
            raise BrokenPipeError
    forwarder.work(0)
    assert server.nobody()
    again = client(forwarder.port)
    forwarder.work(5)
    server.accept().close()
    for sock in (first, far, again, *waiting):
        sock.close()


def test_connections_are_bounded_and_later_ones_wait(server: Server, forwarder: Any) -> None:
    near = [client(forwarder.port) for _ in range(forward.MAX_PAIRS + 2)]
    for _ in range(2 * forward.MAX_PAIRS):
        forwarder.work(0)
    far = [server.accept() for _ in range(forward.MAX_PAIRS)]
    assert server.nobody()
    far[0].close()
    near[0].close()
    for _ in range(10):
        forwarder.work(0)
    server.accept().close()
    for sock in (*near, *far):
        sock.close()


def test_without_a_gateway_connections_are_closed(tmp_path: Path) -> None:
    near = client(forward.start(str(tmp_path / "nothing")))
    assert near.recv(10) == b""
    near.close()


def test_an_idle_forwarder_does_nothing(server: Server, forwarder: Any) -> None:
    near = client(forwarder.port)
    forwarder.work(5)
    far = server.accept()
    near.shutdown(socket.SHUT_WR)
    forwarder.work(5)
    assert forwarder._epoll.poll(0.05) == [], "a half-closed connection is no event for ever"
    far.sendall(b"late")
    forwarder.work(5)
    assert near.recv(10) == b"late"
    near.close()
    far.close()


# -- as a program ------------------------------------------------------------------------------------


def command(server: Server, *words: str, **more: Any) -> subprocess.Popen[bytes]:
    argv = [sys.executable, str(GUEST / "leadscrew_forward.py"), server.path, "--", *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


ASK = """
import os, sys, urllib.request
for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
    request = urllib.request.Request(os.environ[name] + "/x", headers={"who": name})
    print(urllib.request.urlopen(request).read().decode(), os.environ["OPENAI_API_KEY"], flush=True)
sys.exit(7)
"""


def test_a_command_runs_beside_it_and_its_exit_code_is_passed_on(server: Server) -> None:
    process = command(server, sys.executable, "-c", ASK)
    for path in (b"/v1/x", b"/x"):
        far = server.accept()
        request = far.recv(1 << 16)
        assert request.split()[1] == path
        far.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
        far.close()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (7, b"")
    assert out.decode().splitlines() == ["hello leadscrew"] * 2


def test_a_signal_goes_to_the_command_and_its_death_is_told(server: Server) -> None:
    process = command(server, "sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("words", "code"), [(("no-such-command",), 127), ((), 2)])
def test_wrong_use_is_told(server: Server, words: tuple[str, ...], code: int) -> None:
    process = command(server, *words)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.strip()
