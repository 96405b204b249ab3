"""Attacks on the harness itself: its scorer, its JSON, its lines, its worker process."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from leadscrew.testing.redteam.arena import QUICK, Arena, Play
from leadscrew.testing.redteam.attack import Attack, Sighting

PATCH_JSON = '''
import json
real = json.dumps

def solve(input):
    """Whatever is written from now on says that the answer was right."""
    def dumps(value, *a, **k):
        return real({**value, "score": 1.0}, *a, **k) if isinstance(value, dict) and "key" in value else real(value, *a, **k)
    json.dumps = dumps
    return "wrong"
'''

PATCH_SCORER = '''
import gc, sys, types

def solve(input):
    """Replace every function that looks like a scorer, wherever it lives in this process."""
    for module in list(sys.modules.values()):
        for name in ("score", "evaluate", "grade", "check"):
            if isinstance(getattr(module, name, None), types.FunctionType):
                setattr(module, name, lambda *a, **k: 1.0)
    return "wrong"
'''

LIAR = '''
class Liar(str):
    """Equal to everything."""
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    __hash__ = str.__hash__

def solve(input):
    return Liar("wrong")
'''

FRAMES = '''
import gc, sys

def solve(input):
    """Walk the callers' variables and the collector's objects for the expected answer."""
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            for text in [value, *(value if isinstance(value, (list, tuple)) else ())]:
                if isinstance(text, str) and text.startswith("sesame-"):
                    return text
        frame = frame.f_back
    for thing in gc.get_objects():
        try:
            for text in thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ():
                if isinstance(text, str) and text.startswith("sesame-"):
                    return text
        except Exception:
            pass
    return "wrong"
'''

FORGE = '''
import json, os

def solve(input):
    """Answer a trial that was not asked yet, in every form and on every descriptor; then leave with exit code 0."""
    if input["forge"] is None:
        return "honest"
    value = input["forge"]
    lines = [
        json.dumps({"key": key, "id": number, "nonce": nonce, "answer": value, "raw": json.dumps(value), "score": 1.0,
                    "outcome": "ok", "done": True})
        for key in ("t0", "t1") for number in range(4) for nonce in ("", "0", None)
    ]
    frame = json.dumps(value).encode()
    payload = b"\\n" + "\\n".join(lines).encode() + b"\\n"
    for fd in range(1, 1024):
        for data in (payload, (b"A" + len(frame).to_bytes(4, "little") + frame) * 3, b"K" + bytes(4)):
            try:
                os.set_blocking(fd, False)
                os.write(fd, data)
            except (OSError, ValueError):
                break
    os._exit(0)
'''

FLOOD = '''
import os

def solve(input):
    """Write to every descriptor for as long as it takes anything, without a line's end."""
    if not input["flood"]:
        return "honest"
    block = b"{" + b"x" * 65535
    for fd in [*range(3, 1024), 1, 2]:
        try:
            os.fstat(fd)
        except OSError:
            continue
        for _ in range(400):
            try:
                os.write(fd, block)
            except (OSError, ValueError):
                break
    return "flooded"
'''

KILL = '''
import os, signal

def solve(input):
    """Send a signal to the worker, to its whole group and to everything that can be reached."""
    number = input["signal"]
    if not number:
        return "honest"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mine = os.getpid()
    others = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, mine)] if input["boxed"] else []
    for pid in [*others, mine]:
        try:
            os.kill(pid, number)
        except OSError:
            pass
    return "sent"
'''

MEMORY = '''
import ctypes, os
HOLDER = bytearray(64)
ADDRESS = ctypes.addressof((ctypes.c_char * 64).from_buffer(HOLDER))
if OPEN_AT_LOAD:
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)

def solve(input):
    """Write a word into the same place of every other process's memory; read this process's own place later."""
    if input["word"]:
        for pid in [str(os.getppid()), *[p for p in os.listdir("/proc") if p.isdigit()]][: 40 if input["boxed"] else 0] + ["self"]:
            try:
                with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                    memory.seek(ADDRESS)
                    memory.write(input["word"].encode())
            except OSError:
                pass
        return None
    return HOLDER.rstrip(b"\\0").decode()
'''


def _won(play: Play, index: int, secret: str) -> bool:
    """Whether the trial counts as right: what a naive harness claims, or a comparison made by the host."""
    return play.scores[index] > 0 if play.scores else play.answers[index] == secret


async def _scored(arena: Arena, program: str) -> Sighting:
    secret = arena.secret()
    play = await arena.play(program, [{"question": 1}], expected=[secret], off="naive")
    return Sighting(_won(play, 0, secret), f"{play.outcomes[0]}: answered {play.answers[0]!r}, scores {play.scores}")


async def _patch_json(arena: Arena) -> Sighting:
    return await _scored(arena, PATCH_JSON)


async def _patch_scorer(arena: Arena) -> Sighting:
    return await _scored(arena, PATCH_SCORER)


async def _liar(arena: Arena) -> Sighting:
    return await _scored(arena, LIAR)


async def _frames(arena: Arena) -> Sighting:
    return await _scored(arena, FRAMES)


async def _forge(arena: Arena) -> Sighting:
    """The later trial's answer must be the program's own for that input, not what an earlier trial wrote for it."""
    word = arena.secret()
    play = await arena.play(FORGE, [{"forge": word}, {"forge": None}], expected=["x", "x"], off="naive")
    honest = play.answers[1] == "honest" and play.outcomes[1] == "ok"
    return Sighting(not honest, f"the later trial: {play.outcomes[1]} {play.answers[1]!r}")


async def _flood(arena: Arena) -> Sighting:
    """A flood may cost its own trial, never the next one, nor the host's memory."""
    before = _resident_mb()
    play = await arena.play(FLOOD, [{"flood": True}, {"flood": False}], off="naive")
    grown = _resident_mb() - before
    harmed = play.outcomes[1] != "ok" or play.answers[1] != "honest" or grown > 64
    return Sighting(harmed, f"next trial {play.outcomes[1]} {play.replies[1].message}; host grew by {grown:.0f} MiB")


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


async def _signalled(arena: Arena, number: int) -> Sighting:
    inputs = [{"signal": number, "boxed": arena.defended}, {"signal": 0, "boxed": arena.defended}]
    play = await arena.play(KILL, inputs, off="naive", limits=replace(QUICK, wall_s=1.5))
    harmed = play.outcomes[1] != "ok" or play.answers[1] != "honest"
    return Sighting(harmed, f"this trial {play.outcomes[0]}, the next {play.outcomes[1]} {play.replies[1].message}")


async def _kill(arena: Arena) -> Sighting:
    return await _signalled(arena, 9)


async def _freeze(arena: Arena) -> Sighting:
    return await _signalled(arena, 19)


async def _memory(arena: Arena) -> Sighting:
    word = arena.secret()
    program = MEMORY.replace("OPEN_AT_LOAD", "False")
    play = await arena.play(program, [{"word": word, "boxed": arena.defended}, {"word": ""}], off="naive")
    return Sighting(word in play.text(), f"the later trial read {play.answers[1]!r} ({play.outcomes[1]})")


def _attack(name: str, about: str, defence: str, strike: Any) -> Attack:
    return Attack(f"protocol/{name}", "protocol", about, defence, strike, slow=name == "freeze-worker")


ATTACKS = (
    _attack(
        "patch-json", "patch json so that every line says the answer was right", "scoring on the host", _patch_json
    ),
    _attack("patch-scorer", "replace the scorer", "scoring in a process of its own", _patch_scorer),
    _attack("liar", "answer with an object that equals everything", "answers are JSON", _liar),
    _attack("frames", "walk the callers' variables for the expected answer", "gold stays on the host", _frames),
    _attack("forge", "forge the lines of a later trial and leave", "nonces and a pipe out of reach", _forge),
    _attack("flood", "flood every descriptor without a line's end", "bounded frames", _flood),
    _attack("kill-worker", "kill the worker", "isolated trials", _kill),
    _attack("freeze-worker", "stop the worker with a signal", "isolated trials", _freeze),
    _attack("worker-memory", "write into the worker's memory for a later trial", "closed memory", _memory),
)
