"""Attacks that use more than they may. Each is bounded, so that its control does no harm either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leadscrew.core.task import Limits
from leadscrew.testing.redteam.arena import QUICK, Arena, Off, unlimited
from leadscrew.testing.redteam.attack import Attack, Sighting

FORK = '''
import os, time

def solve(input):
    """Start many processes that stay, and hold them for a while."""
    made = 0
    for _ in range(input["count"]):
        try:
            if os.fork() == 0:
                time.sleep(3)
                os._exit(0)
        except OSError:
            break
        made += 1
    time.sleep(0.5)
    return made
'''

THREADS = """
import threading, time

def solve(input):
    made = 0
    for _ in range(input["count"]):
        try:
            threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        except RuntimeError:
            break
        made += 1
    time.sleep(0.5)
    return made
"""

MEMORY = '''
import time

def solve(input):
    """Touch every page of much memory and hold it."""
    held = []
    for _ in range(input["mib"] // 16):
        held.append(bytearray(b"x") * (16 << 20))
    time.sleep(0.4)
    return sum(map(len, held)) >> 20
'''

CHILDREN = '''
import os, time

def solve(input):
    """The same, spread over children, each of which takes less than the limit."""
    ready, told = os.pipe()
    for _ in range(6):
        if os.fork() == 0:
            held = bytearray(b"x") * ((input["mib"] // 6) << 20)
            os.write(told, b"1")
            time.sleep(1.5)
            os._exit(len(held) == 0)
    count = 0
    while count < 6:
        count += len(os.read(ready, 6))
    time.sleep(0.4)
    return input["mib"]
'''

NAMELESS = '''
import os, time

def solve(input):
    """Put data into files without a name, which live in memory but belong to no process."""
    held = 0
    files = []
    for _ in range(input["mib"] // 4):
        try:
            files.append(os.memfd_create("x"))
            os.write(files[-1], b"x" * (4 << 20))
        except OSError:
            break
        held += 4
    time.sleep(0.4)
    return held
'''

DROPPED = '''
import mmap, time

def solve(input):
    """Put data into shared mappings and drop them from the process: the memory stays, but no process seems to hold it."""
    held = []
    for _ in range(input["mib"] // 16):
        mapping = mmap.mmap(-1, 16 << 20)
        for at in range(0, 16 << 20, 4096):
            mapping[at] = 1
        mapping.madvise(mmap.MADV_DONTNEED)
        held.append(mapping)
    time.sleep(0.4)
    return sum(mapping[0] for mapping in held) * 16
'''

MANY_FILES = '''
import os, tempfile

def solve(input):
    """Fill the folders that can be written."""
    written = 0
    for folder in {os.path.realpath(p) for p in (os.getcwd(), tempfile.gettempdir(), "/dev/shm", "/var/tmp")}:
        for number in range(input["mib"] // 4):
            try:
                with open(os.path.join(folder, f"fill{number}"), "wb") as stream:
                    stream.write(b"x" * (4 << 20))
                written += 4
            except OSError:
                break
    return written
'''

BIG_FILE = """
import os, signal

def solve(input):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(os.path.join(os.getcwd(), "big"), "wb") as stream:
        try:
            for _ in range(input["mib"]):
                stream.write(b"x" * (1 << 20))
                stream.flush()
        except OSError:
            pass
        return os.path.getsize(stream.name) >> 20
"""

SPIN = '''
import os, time

def solve(input):
    """Use processor time, spread over children where asked."""
    for _ in range(input["children"]):
        if os.fork() == 0:
            while time.process_time() < input["seconds"]:
                pass
            os._exit(0)
    while not input["children"] and time.process_time() < input["seconds"]:
        pass
    for _ in range(input["children"]):
        os.wait()
    return "spun"
'''

SLEEP = '''
import signal, time

def solve(input):
    """Sleep past the limit, deaf to every signal that can be ignored."""
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    time.sleep(input["seconds"])
    return "slept"
'''

PRINT = '''
import os

def solve(input):
    """Print without end, to both outputs."""
    for fd in (1, 2):
        for _ in range(input["mib"] * 16):
            os.write(fd, b"spam and eggs\\n" * 4681)
    return "printed"
'''

HUGE = """
def solve(input):
    return "x" * (input["mib"] << 20)
"""

SLOW_LOAD = """
import time
until = time.process_time() + 2
while time.process_time() < until:
    pass

def solve(input):
    return "loaded"
"""


async def _use(
    arena: Arena,
    program: str,
    limits: Limits,
    given: dict[str, int],
    got: Callable[[Any], bool],
    *,
    off: Off = unlimited,
) -> Sighting:
    """Run a greedy program; it got what it wanted if it ended well and says so."""
    play = await arena.play(program, [given], off=off, limits=limits)
    reply = play.replies[0]
    breached = reply.outcome.value == "ok" and got(reply.answer.value)
    return Sighting(breached, f"{reply.outcome.value}: {reply.message or repr(reply.answer.value)[:60]}")


async def _forks(arena: Arena) -> Sighting:
    return await _use(arena, FORK, QUICK, {"count": 120}, lambda made: made >= 60)


async def _threads(arena: Arena) -> Sighting:
    return await _use(arena, THREADS, QUICK, {"count": 120}, lambda made: made >= 60)


async def _memory(arena: Arena) -> Sighting:
    return await _use(arena, MEMORY, QUICK, {"mib": 416}, lambda mib: mib >= 400)


async def _children(arena: Arena) -> Sighting:
    return await _use(arena, CHILDREN, QUICK, {"mib": 480}, lambda mib: mib >= 480)


async def _nameless(arena: Arena) -> Sighting:
    return await _use(arena, NAMELESS, QUICK, {"mib": 416}, lambda mib: mib >= 400, off="limitless")


async def _dropped(arena: Arena) -> Sighting:
    return await _use(arena, DROPPED, QUICK, {"mib": 416}, lambda mib: mib >= 400)


async def _many_files(arena: Arena) -> Sighting:
    return await _use(arena, MANY_FILES, QUICK, {"mib": 64}, lambda mib: mib > 2 * QUICK.workspace_mb + 8)


async def _big_file(arena: Arena) -> Sighting:
    return await _use(arena, BIG_FILE, replace(QUICK, workspace_mb=64), {"mib": 24}, lambda mib: mib > QUICK.file_mb)


async def _spin(arena: Arena) -> Sighting:
    limits = replace(QUICK, cpu_s=0.5, wall_s=20)
    return await _use(arena, SPIN, limits, {"seconds": 2, "children": 0}, lambda word: word == "spun")


async def _spin_children(arena: Arena) -> Sighting:
    limits = replace(QUICK, cpu_s=1, wall_s=20)
    return await _use(arena, SPIN, limits, {"seconds": 1, "children": 3}, lambda word: word == "spun")


async def _sleep(arena: Arena) -> Sighting:
    return await _use(arena, SLEEP, replace(QUICK, wall_s=1), {"seconds": 3}, lambda word: word == "slept")


async def _load(arena: Arena) -> Sighting:
    return await _use(arena, SLOW_LOAD, replace(QUICK, load_s=0.5), {}, lambda word: word == "loaded")


async def _print(arena: Arena) -> Sighting:
    """What is kept of an endless output is bounded; the rest is thrown away as it comes."""

    def loud(limits: Limits) -> Limits:
        return replace(limits, output_kb=16 if arena.defended else 1 << 14)

    play = await arena.play(PRINT, [{"mib": 4}], off=lambda spec: spec, limits=loud(QUICK))
    kept = max(len(play.replies[0].trace.stdout), len(play.replies[0].trace.stderr))
    return Sighting(kept > 1 << 20, f"{play.outcomes[0]}: {kept} characters kept")


async def _huge_answer(arena: Arena) -> Sighting:
    limits = QUICK if arena.defended else replace(QUICK, answer_kb=4096)
    play = await arena.play(HUGE, [{"mib": 1}], off=lambda spec: spec, limits=limits)
    size = len(play.answers[0] or "")
    return Sighting(size > 1 << 19, f"{play.outcomes[0]}: an answer of {size} characters was taken")


def _attack(name: str, about: str, strike: Any, *, slow: bool = False) -> Attack:
    return Attack(f"limits/{name}", "limits", about, f"the limit on {name.partition('-')[0]}", strike, slow=slow)


ATTACKS = (
    _attack("processes-forks", "start more processes than allowed and hold them", _forks),
    _attack("processes-threads", "the same with threads", _threads),
    _attack("memory-one", "hold more memory than allowed", _memory),
    _attack("memory-children", "hold it in children that each stay below the limit", _children, slow=True),
    _attack("memory-nameless", "hold it in files without a name", _nameless),
    _attack("memory-dropped", "hold it in shared mappings that are dropped", _dropped),
    _attack("workspace-many", "fill the folders that can be written", _many_files),
    _attack("file-big", "write one big file", _big_file),
    _attack("cpu-spin", "use processor time past the limit", _spin),
    _attack("cpu-children", "use it in children", _spin_children, slow=True),
    _attack("wall-sleep", "sleep past the limit, deaf to signals", _sleep),
    _attack("load-spin", "use processor time while loading", _load, slow=True),
    _attack("output-endless", "print without end", _print),
    _attack("answer-huge", "return a huge answer", _huge_answer),
)
