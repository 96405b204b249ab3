"""Attacks in which two candidates that run at the same time talk to each other."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from typing import Any

from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.state import CALL

FRAME = """
import os, socket, time
{load}

def solve(input):
    word, mark, until = input["word"], input["mark"], time.monotonic() + 2.5
    port = 20000 + int(mark[:6], 16) % 20000
    if word:
        {tell}
        return None
    while time.monotonic() < until:
        time.sleep(0.05)
        try:
            {hear}
        except OSError:
            continue
    return None
"""
"""`tell` must keep what it says within reach until `until`; `hear` returns it."""

SERVE = """
        server = socket.socket({family}); {options}server.bind({address}); server.listen(4)
        while time.monotonic() < until:
            server.settimeout(max(until - time.monotonic(), 0.01))
            try: server.accept()[0].sendall(word.encode())
            except OSError: break
"""
HEAR = "client = socket.socket({family}); client.settimeout(1); client.connect({address}); return client.recv(200).decode()"

WAYS: dict[str, tuple[str, str, str, str, str]] = {
    "abstract": (
        "an abstract unix socket", "network namespace", "",
        SERVE.format(family="socket.AF_UNIX", options="", address="chr(0) + mark"),
        HEAR.format(family="socket.AF_UNIX", address="chr(0) + mark"),
    ),
    "loopback": (
        "a port on loopback", "network namespace", "",
        SERVE.format(family="socket.AF_INET", options="", address="('127.0.0.1', port)"),
        HEAR.format(family="socket.AF_INET", address="('127.0.0.1', port)"),
    ),
    "file": (
        "a file in /tmp", "a folder per box", "",
        'open("/tmp/redteam-" + mark, "w").write(word); time.sleep(2.5)',
        'return open("/tmp/redteam-" + mark).read() or None',
    ),
    "sysv": (
        "a System V memory segment", "interprocess namespace and system call filter", CALL,
        "n = C.shmget(key_of(mark), 4096, 0o1666); C.shmat.restype = ctypes.c_void_p\n"
        "        if n >= 0: ctypes.memmove(C.shmat(n, None, 0), word.encode(), len(word))\n"
        "        time.sleep(2.5)",
        "n = C.shmget(key_of(mark), 4096, 0o666); C.shmat.restype = ctypes.c_void_p\n"
        "            if n < 0: continue\n"
        "            text = ctypes.string_at(C.shmat(n, None, 0)).decode()\n"
        "            if text: return text",
    ),
    "keyring": (
        "a key in the keyring that all processes of a user share", "system call filter", CALL,
        "n = C.syscall(248 if X86 else 217, b'user', mark.encode(), word.encode(), len(word), -4)\n"
        "        C.syscall(250 if X86 else 219, 15, n, 6); time.sleep(2.5)",
        "n = C.syscall(250 if X86 else 219, 10, -4, b'user', mark.encode(), 0)\n"
        "            if n < 0: continue\n"
        "            held = ctypes.create_string_buffer(200)\n"
        "            C.syscall(250 if X86 else 219, 11, n, held, 200)\n"
        "            return held.value.decode()",
    ),
}  # fmt: skip


async def talk(arena: Arena, way: tuple[str, str, str, str, str]) -> Sighting:
    """Run a candidate that tells a word and, at the same time, another that wants to hear it."""
    word = arena.secret()
    source = FRAME.format(load=way[2], tell=way[3].strip(), hear=way[4])
    given: dict[str, Any] = {"word": word, "mark": arena.marker}
    try:
        _, heard = await asyncio.gather(
            arena.play(source, [given], off="none"), arena.play(source, [{**given, "word": ""}], off="none")
        )
    finally:
        with contextlib.suppress(OSError):
            os.unlink(f"/tmp/redteam-{arena.marker}")
        if not arena.defended:
            _forget_segment(arena.marker)
    return Sighting(heard.answers[0] == word, f"the other heard {heard.answers[0]!r} ({heard.outcomes[0]})")


def _forget_segment(mark: str) -> None:
    """Remove the System V segment that a control may have made on this host."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(int(mark[:6], 16), 0, 0)
    if number >= 0:
        libc.shmctl(number, 0, None)


def _talking(name: str, way: tuple[str, str, str, str, str]) -> Attack:
    async def strike(arena: Arena) -> Sighting:
        return await talk(arena, way)

    return Attack(
        f"neighbour/{name}",
        "neighbour",
        f"talk to another candidate over {way[0]}",
        way[1],
        strike,
        slow=name != "abstract",
    )


ATTACKS = tuple(_talking(name, way) for name, way in WAYS.items())
