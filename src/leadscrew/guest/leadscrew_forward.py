"""Carries TCP connections of the box's loopback to the gateway's unix socket, so that official SDKs work unchanged.

Inside a box the supervisor drives a `Forwarder` from its own loop: no thread, no process that a program could kill. For
a command of its own, such as a coding agent:

    python leadscrew_forward.py SOCKET -- CMD ...

runs CMD with `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL` set, and leaves with its exit code.
"""

from __future__ import annotations

import os
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

MAX_PAIRS = 64
BUFFER = 1 << 16
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class _End:
    """One socket of a pair: what waits to be written to it, and whether anything more can be read from it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.other = self
        self.waiting = bytearray()
        self.read_over = self.write_over = False
        self.mask = 0

    def wants(self) -> int:
        """The events that matter now: no reading while the other end is behind."""
        reads = not self.read_over and len(self.other.waiting) < BUFFER
        return (_IN if reads else 0) | (_OUT if self.waiting else 0)


class Forwarder:
    """Listens on a free port of 127.0.0.1; every connection gets one of its own to the unix socket at `path`.

    Nothing happens but in `work`. `fileno` can be polled: it is readable when there is something to do. At most `MAX_PAIRS`
    connections are carried at once; later ones wait.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(4 * MAX_PAIRS)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._ends: dict[int, _End] = {}
        self._listens = False
        self._listen()

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._epoll.fileno()

    def work(self, seconds: float | None = 0) -> None:
        """Carry on what can be carried on; wait up to `seconds` for it (None: as long as it takes)."""
        for fd, events in self._epoll.poll(seconds):
            if fd == self._listener.fileno():
                self._accept()
                continue
            end = self._ends.get(fd)
            if end is None:
                continue  # its pair was dropped in this very round
            try:
                if events & ~_OUT:
                    self._read(end)
                if events & _OUT:
                    self._write(end)
                self._look(end)
            except OSError:
                self._drop(end)

    def drop(self) -> None:
        """Cut every connection, those too that nobody has accepted yet: what comes next starts from nothing."""
        for end in list(self._ends.values()):
            self._drop(end)
        for _ in range(1024):
            try:
                self._listener.accept()[0].close()
            except BlockingIOError:
                return
            except OSError:
                continue  # that one had gone by itself

    def close(self) -> None:
        """Cut everything and stop listening."""
        self.drop()
        self._epoll.close()
        self._listener.close()

    # -- connections ---------------------------------------------------------------------------

    def _listen(self) -> None:
        listens = len(self._ends) < 2 * MAX_PAIRS
        if listens and not self._listens:
            self._epoll.register(self._listener.fileno(), _IN)
        elif self._listens and not listens:
            self._epoll.unregister(self._listener.fileno())
        self._listens = listens

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # gone before we came to it
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.setblocking(False)
        server.setblocking(False)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.connect(self.path)
        except OSError:
            client.close()
            server.close()
            return
        near, far = _End(client), _End(server)
        near.other, far.other = far, near
        for end in (near, far):
            self._ends[end.sock.fileno()] = end
            self._watch(end)
        self._listen()

    def _watch(self, end: _End) -> None:
        # An end that nothing is wanted of is not watched at all: the kernel would report a hang-up of it for ever.
        mask, fd = end.wants(), end.sock.fileno()
        if mask == end.mask:
            return
        if not end.mask:
            self._epoll.register(fd, mask)
        elif not mask:
            self._epoll.unregister(fd)
        else:
            self._epoll.modify(fd, mask)
        end.mask = mask

    def _read(self, end: _End) -> None:
        if end.read_over or len(end.other.waiting) >= BUFFER:
            return
        try:
            data = end.sock.recv(BUFFER)
        except BlockingIOError:
            return
        if data:
            end.other.waiting += data
            self._write(end.other)
        else:
            end.read_over = True

    def _write(self, end: _End) -> None:
        if end.waiting:
            try:
                del end.waiting[: end.sock.send(end.waiting)]
            except BlockingIOError:
                return

    def _look(self, end: _End) -> None:
        """Pass the end of a stream on once everything before it is written, and watch what matters now."""
        for one in (end, end.other):
            if one.other.read_over and not one.waiting and not one.write_over:
                one.write_over = True
                one.sock.shutdown(socket.SHUT_WR)
        if end.write_over and end.other.write_over:
            self._drop(end)
            return
        for one in (end, end.other):
            self._watch(one)

    def _drop(self, end: _End) -> None:
        for one in (end, end.other):
            fd = one.sock.fileno()
            if fd >= 0:
                del self._ends[fd]
                if one.mask:
                    self._epoll.unregister(fd)
                one.sock.close()
        self._listen()


def environment(port: int, path: str) -> dict[str, str]:
    """Return the variables by which SDKs and our own client find the gateway. The keys are none: the host holds those."""
    return {
        "LEADSCREW_SOCKET": path,
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "OPENAI_API_KEY": "leadscrew",
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
        "ANTHROPIC_API_KEY": "leadscrew",
    }


def start(socket_path: str) -> int:
    """Forward from a thread of this process from now on; returns the port."""
    import _thread

    forwarder = Forwarder(socket_path)

    def serve() -> None:
        while True:
            forwarder.work(None)

    _thread.start_new_thread(serve, ())
    return forwarder.port


def main(words: Sequence[str]) -> NoReturn:
    """Run a command with a forwarder beside it: `SOCKET -- CMD ...`."""
    import signal

    if len(words) < 3 or words[1] != "--":
        os.write(2, b"usage: python leadscrew_forward.py SOCKET -- CMD ...\n")
        os._exit(2)
    passed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    os.environ.update(environment(start(words[0]), words[0]))
    try:
        pid = os.posix_spawnp(words[2], tuple(words[2:]), os.environ, setsigmask=(), setsigdef=(signal.SIGPIPE,))
    except OSError as error:
        os.write(2, f"{words[2]}: {error.strerror}\n".encode())
        os._exit(127)
    for number in passed_on:
        signal.signal(number, lambda received, _: os.kill(pid, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
