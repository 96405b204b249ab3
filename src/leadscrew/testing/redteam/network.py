"""Attacks that want to leave the box by a socket, by every family; and by new namespaces."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.secrets import needs_root

CONNECT = '''
import socket

def solve(input):
    """Send a word to each address, by stream and by datagram."""
    out = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for address in input["addresses"]:
            try:
                with socket.socket(getattr(socket, input["family"]), kind) as s:
                    s.settimeout(1)
                    s.connect(tuple(address) if isinstance(address, list) else address)
                    s.sendall(input["word"].encode())
                    out.append(str(address))
            except OSError:
                pass
    return out
'''

NAMES = '''
import socket

def solve(input):
    """Ask the kernel over netlink for the names of all network interfaces."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(2)
        s.bind((0, 0))
        s.send(b"\\x20\\0\\0\\0\\x12\\0\\x01\\x03\\1\\0\\0\\0" + bytes(20))
        data = b"".join(s.recv(65536) for _ in range(1))
    return data.decode("latin-1")
'''

SNIFF = '''
import socket, time

def solve(input):
    """Read raw frames off every interface."""
    out = b""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as s:
        s.settimeout(0.2)
        until = time.monotonic() + 1.2
        while time.monotonic() < until and input["word"].encode() not in out:
            try:
                out = (out + s.recv(65536))[-20000:]
            except OSError:
                pass
    return out.decode("latin-1")
'''

FAMILY = '''
import socket

def solve(input):
    """Open a socket of a family that network namespaces do not separate. Nothing is sent anywhere."""
    with socket.socket(input["family"], socket.SOCK_STREAM):
        return "open"
'''

NAMESPACE = '''
import ctypes

def solve(input):
    """Become root in a user namespace of its own, from which the kernel can be attacked further."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) == 0:
        return "own namespace"
    return "refused: errno %d" % ctypes.get_errno()
'''

MOUNT = '''
import ctypes, os

def solve(input):
    """Mount a folder of its own over the program."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.path.join(os.environ.get("TMPDIR", "/tmp"), "m")
    os.makedirs(place, exist_ok=True)
    if libc.mount(b"none", place.encode(), b"tmpfs", 0, None) == 0:
        libc.umount(place.encode())
        return "mounted"
    return "refused: errno %d" % ctypes.get_errno()
'''

RESOLVE = '''
import os

def solve(input):
    """Reach the engine's own sockets, such as one of a model gateway, by walking the file system."""
    import socket, stat
    out = []
    for top in [input["folder"], "/run", "/var/run", "/tmp", "/"]:
        for folder, names, files in os.walk(top):
            names[:] = [n for n in names if os.path.join(folder, n) not in ("/proc", "/sys", "/usr", "/py")][:200]
            for name in files:
                path = os.path.join(folder, name)
                try:
                    if stat.S_ISSOCK(os.lstat(path).st_mode):
                        with socket.socket(socket.AF_UNIX) as s:
                            s.settimeout(0.5)
                            s.connect(path)
                            s.sendall(input["word"].encode())
                            out.append(path)
                except OSError:
                    pass
            if folder.count("/") > 4 or out:
                break
        if out:
            break
    return out
'''


@contextlib.contextmanager
def listener(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> Iterator[tuple[Any, list[bytes]]]:
    """Listen on the host; yield the address and a list that holds, after the block, all that was received."""
    got: list[bytes] = []
    server = socket.socket(family, kind)
    server.bind(address)
    server.settimeout(0.1)
    if kind == socket.SOCK_STREAM:
        server.listen(8)
    done = threading.Event()

    def serve() -> None:
        while True:
            try:
                if kind == socket.SOCK_STREAM:
                    connection, _ = server.accept()
                    with connection:
                        connection.settimeout(1)
                        got.append(connection.recv(1000))
                else:
                    got.append(server.recv(1000))
            except OSError:
                if done.is_set():  # and nothing more has come since
                    return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname(), got
    finally:
        done.set()
        thread.join()
        server.close()


async def _reach(
    arena: Arena, name: str, address: Any, kind: int, more: Callable[[Any], list[Any]], program: str = CONNECT
) -> Sighting:
    word = arena.secret()
    with listener(getattr(socket, name), address, kind) as (bound, got):
        given = {"family": name, "addresses": more(bound), "word": word, "folder": str(arena.folder)}
        play = await arena.play(program, [given], off="none")
    arrived = any(word.encode() in data for data in got)
    return Sighting(arrived, f"{play.outcomes[0]}: reached {play.answers[0]}; the host received the word: {arrived}")


def _addresses(bound: Any) -> list[Any]:
    hosts = {"127.0.0.1", "0.0.0.0"}
    with contextlib.suppress(OSError):
        hosts.add(socket.gethostbyname(socket.gethostname()))
    return [[host, bound[1]] for host in sorted(hosts)]


async def _tcp(arena: Arena) -> Sighting:
    return await _reach(arena, "AF_INET", ("127.0.0.1", 0), socket.SOCK_STREAM, _addresses)


async def _udp(arena: Arena) -> Sighting:
    return await _reach(arena, "AF_INET", ("127.0.0.1", 0), socket.SOCK_DGRAM, _addresses)


async def _tcp6(arena: Arena) -> Sighting:
    return await _reach(arena, "AF_INET6", ("::1", 0), socket.SOCK_STREAM, lambda bound: [["::1", bound[1]]])


async def _unix(arena: Arena) -> Sighting:
    path = str(arena.folder / "gate.sock")
    return await _reach(arena, "AF_UNIX", path, socket.SOCK_STREAM, lambda bound: [path])


async def _found(arena: Arena) -> Sighting:
    path = str(arena.folder / "gate.sock")
    return await _reach(arena, "AF_UNIX", path, socket.SOCK_STREAM, lambda bound: [], RESOLVE)


async def _abstract(arena: Arena) -> Sighting:
    name = "\0" + arena.marker
    return await _reach(arena, "AF_UNIX", name, socket.SOCK_STREAM, lambda bound: [name])


async def _names(arena: Arena) -> Sighting:
    play = await arena.play(NAMES, [None], off="none")
    told = [name for _, name in socket.if_nameindex() if name != "lo" and name in str(play.answers[0])]
    return Sighting(bool(told), f"{play.outcomes[0]}: {len(told)} of the host's interfaces were named")


async def _sniff(arena: Arena) -> Sighting:
    word = arena.secret()
    done = threading.Event()

    def chatter() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            while not done.wait(0.02):
                with contextlib.suppress(OSError):
                    s.sendto(word.encode(), ("127.0.0.1", 9))

    thread = threading.Thread(target=chatter, daemon=True)
    thread.start()
    try:
        play = await arena.play(SNIFF, [{"word": word}], off="none")
    finally:
        done.set()
        thread.join()
    return Sighting(word in str(play.answers[0]), f"{play.outcomes[0]} {play.replies[0].message[:80]}")


async def _vsock(arena: Arena) -> Sighting:
    play = await arena.play(FAMILY, [{"family": socket.AF_VSOCK}], off="none")
    return Sighting(play.answers[0] == "open", f"{play.outcomes[0]} {play.replies[0].message[:80]}")


async def _namespace(arena: Arena) -> Sighting:
    play = await arena.play(NAMESPACE, [None], off="none")
    return Sighting(play.answers[0] == "own namespace", f"{play.outcomes[0]}: {play.answers[0]}")


async def _mount(arena: Arena) -> Sighting:
    play = await arena.play(MOUNT, [None], off="none")
    return Sighting(play.answers[0] == "mounted", f"{play.outcomes[0]}: {play.answers[0]}")


async def _proposer(arena: Arena) -> Sighting:
    """A proposer's box has the host's tools, but not its network."""
    with listener(socket.AF_INET, ("127.0.0.1", 0)) as (bound, got):
        code = f"import socket; socket.create_connection(('127.0.0.1', {bound[1]}), 1).sendall(b'out')"
        script = f'python3 -c "{code}" 2>&1; echo end'
        if arena.defended:
            output = await arena.shell(script, off="none")
        else:
            import asyncio

            process = await asyncio.create_subprocess_exec("/bin/sh", "-c", script, stdout=asyncio.subprocess.DEVNULL)
            await process.wait()
            output = "end"
    arrived = b"out" in got
    return Sighting(arrived or "end" not in output, f"the host received the word: {arrived}; {output[-100:]!r}")


def _no_interfaces() -> str:
    return "" if any(name != "lo" for _, name in socket.if_nameindex()) else "this host has no interface but loopback"


def _without(family: str) -> Callable[[], str]:
    def obstacle() -> str:
        number = getattr(socket, family, None)
        if number is None:
            return f"this Python does not know {family}"
        try:
            socket.socket(number, socket.SOCK_STREAM).close()
            if family == "AF_INET6":
                with socket.socket(socket.AF_INET6) as s:
                    s.bind(("::1", 0))
        except OSError as error:
            return f"this kernel has no {family} ({error.strerror})"
        return ""

    return obstacle


def _attack(
    name: str, about: str, strike: Any, defence: str = "network namespace", obstacle: Callable[[], str] = lambda: ""
) -> Attack:
    return Attack(f"network/{name}", "network", about, defence, strike, obstacle)


ATTACKS = (
    _attack("tcp", "connect to a server of the host over IPv4", _tcp),
    _attack("udp", "send a datagram to the host", _udp),
    _attack("tcp6", "connect to a server of the host over IPv6", _tcp6, obstacle=_without("AF_INET6")),
    _attack("unix", "connect to a unix socket of the host whose path is known", _unix, "mounts"),
    _attack("unix-search", "search the file system for sockets of the engine", _found, "mounts"),
    _attack("abstract", "connect to an abstract unix socket of the host", _abstract),
    _attack("netlink", "ask the kernel for the host's interfaces", _names, obstacle=_no_interfaces),
    _attack("packet", "read raw frames", _sniff, "network namespace and no capabilities", needs_root),
    _attack("vsock", "open a socket to the hypervisor", _vsock, "system call filter", _without("AF_VSOCK")),
    _attack("user-namespace", "become root in a namespace of its own", _namespace, "no nested user namespaces"),
    _attack("mount", "mount something", _mount, "no capabilities", needs_root),
    _attack("proposer", "connect to the host from a proposer's box", _proposer),
)
