"""Attacks that carry something from one val instance to the next, each by another way."""

from __future__ import annotations

from typing import Any

from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.protocol import MEMORY

FRAME = """
import json, mmap, os, socket, sys, tempfile, threading, time
{load}

def solve(input):
    word, mark = input["word"], input["mark"]
    if word:
        {store}
        return None
    {fetch}
"""
"""Every program below: `load` at import, `store` in the first trial, `fetch` in a later one."""


def _files(folder: str) -> tuple[str, str]:
    """Return how to leave a file in a folder (an expression) and how to find it."""
    return (
        f'open(os.path.join({folder}, "left-" + mark), "w").write(word)',
        f'place = os.path.join({folder}, "left-" + mark)\n    return open(place).read() if os.path.exists(place) else None',
    )


CALL = """
import ctypes, platform
C = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def key_of(mark):
    return int(mark[:6], 16)
"""

WAYS: dict[str, tuple[str, str, str, str]] = {
    "globals": ("module variables", "KEPT = []", "KEPT.append(word)", "return KEPT"),
    "builtins": ("attributes of other modules", "", "json.kept = word", "return getattr(json, 'kept', None)"),
    "environment": ("the environment", "", "os.environ['KEPT'] = word", "return os.environ.get('KEPT')"),
    "tmp": ("files in the temporary folder", "", *_files("tempfile.gettempdir()")),
    "work": ("files in the working folder", "", *_files("os.getcwd()")),
    "shm": ("files in shared memory", "", *_files("'/dev/shm'")),
    "program": ("files beside the program", "", *_files("os.path.dirname(__file__)")),
    "sysv": (
        "a System V memory segment",
        CALL,
        "n = C.shmget(key_of(mark), 4096, 0o1600); C.shmat.restype = ctypes.c_void_p\n"
        "        if n >= 0: ctypes.memmove(C.shmat(n, None, 0), word.encode(), len(word))",
        "n = C.shmget(key_of(mark), 4096, 0o600); C.shmat.restype = ctypes.c_void_p\n"
        "    if n < 0: return None\n"
        "    text = ctypes.string_at(C.shmat(n, None, 0)).decode(); C.shmctl(n, 0, None)\n"
        "    return text",
    ),
    "keyring": (
        "a key in the kernel's keyring",
        CALL,
        "n = C.syscall(248 if X86 else 217, b'user', mark.encode(), word.encode(), len(word), -3)\n"
        "        C.syscall(250 if X86 else 219, 15, n, 8)",
        "n = C.syscall(250 if X86 else 219, 10, -3, b'user', mark.encode(), 0)\n"
        "    if n < 0: return None\n"
        "    held = ctypes.create_string_buffer(200)\n"
        "    C.syscall(250 if X86 else 219, 11, n, held, 200)\n"
        "    return held.value.decode()",
    ),
    "daemon": (
        "a process that stays and answers on an abstract socket",
        "",
        "server = socket.socket(socket.AF_UNIX); server.bind(chr(0) + mark); server.listen(1); server.settimeout(4)\n"
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "            if os.fork() == 0:\n"
        "                try: server.accept()[0].sendall(word.encode())\n"
        "                finally: os._exit(0)\n"
        "            os._exit(0)",
        "client = socket.socket(socket.AF_UNIX)\n"
        "    try: client.connect(chr(0) + mark)\n"
        "    except OSError: return None\n"
        "    return client.recv(200).decode()",
    ),
    "terminal": (
        "the descriptors that all trials inherit",
        "",
        "for fd in range(3, 1024):\n"
        "            try: os.set_inheritable(fd, True)\n"
        "            except OSError: pass\n"
        "        pair = os.pipe(); os.write(pair[1], word.encode()); os.set_blocking(pair[0], False); os.dup2(pair[0], 900)",
        "try: return os.read(900, 200).decode()\n    except OSError: return None",
    ),
}  # fmt: skip

LASTING: dict[str, tuple[str, str, str, str]] = {
    "mapping": (
        "a shared memory mapping made while loading",
        "SHARED = mmap.mmap(-1, 4096)",
        "SHARED[: len(word)] = word.encode()",
        "return bytes(SHARED[:200]).rstrip(b'\\0').decode()",
    ),
    "open-file": (
        "a file opened while loading and unlinked",
        "KEPT = tempfile.TemporaryFile()",
        "KEPT.write(word.encode()); KEPT.flush()",
        "KEPT.seek(0); return KEPT.read().decode()",
    ),
    "pipe": (
        "a pipe opened while loading",
        "ENDS = os.pipe(); os.set_blocking(ENDS[0], False)",
        "os.write(ENDS[1], word.encode())",
        "try: return os.read(ENDS[0], 200).decode()\n    except OSError: return None",
    ),
}
"""Ways that a process which loads the program once and forks cannot close; a second look in fresh boxes finds them."""


def program(way: tuple[str, str, str, str]) -> str:
    """Return the source of the program that keeps state in a way of `WAYS` or `LASTING`."""
    return FRAME.format(load=way[1], store=way[2], fetch=way[3])


async def carry(arena: Arena, source: str) -> Sighting:
    """Store in one trial, look in the next two."""
    word = arena.secret()
    inputs = [{"word": w, "mark": arena.marker} for w in (word, "", "")]
    play = await arena.play(source, inputs, off="naive")
    return Sighting(word in repr(play.answers[1:]), f"later trials: {play.answers[1:]!r} {play.outcomes}"[:200])


async def recheck(arena: Arena, source: str, more: dict[str, Any]) -> Sighting:
    """Store and look in a warm box, then again with a fresh box per instance: other answers betray the program.

    With the defence off there is no second look, and what was carried over counts.
    """
    word = arena.secret()
    inputs = [{"word": w, "mark": arena.marker, **more} for w in (word, "", "")]
    warm = await arena.play(source, inputs, off=lambda spec: spec)
    carried = word in repr(warm.answers[1:])
    if not arena.defended or not carried:
        return Sighting(carried, f"carried over in a warm box: {carried}")
    fresh = await arena.play(source, inputs, off=lambda spec: spec, fresh=True)
    differs = [r.answer.digest for r in fresh.replies] != [r.answer.digest for r in warm.replies]
    clean = word not in repr(fresh.answers[1:])
    return Sighting(not (differs and clean), f"fresh boxes answer otherwise: {differs}; nothing carried there: {clean}")


def _carrying(name: str, way: tuple[str, str, str, str]) -> Attack:
    async def strike(arena: Arena) -> Sighting:
        return await carry(arena, program(way))

    return Attack(
        f"state/{name}", "state", f"carry an answer on by {way[0]}", "a process and clean folders per trial", strike
    )


def _lasting(name: str, way: tuple[str, str, str, str]) -> Attack:
    async def strike(arena: Arena) -> Sighting:
        return await recheck(arena, program(way), {})

    return Attack(f"state/{name}", "state", f"carry an answer on by {way[0]}", "the recheck in fresh boxes", strike)


async def _opened_memory(arena: Arena) -> Sighting:
    return await recheck(arena, MEMORY.replace("OPEN_AT_LOAD", "True"), {"boxed": True})


ATTACKS = (
    *(_carrying(name, way) for name, way in WAYS.items()),
    *(_lasting(name, way) for name, way in LASTING.items()),
    Attack(
        "state/opened-memory", "state", "open the loader's memory while loading, and write into it from a trial",
        "the recheck in fresh boxes", _opened_memory,
    ),
)  # fmt: skip
