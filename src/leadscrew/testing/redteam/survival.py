"""Attacks that want to outlive their trial: daemons, orphans, processes deaf to signals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from leadscrew.testing.redteam.arena import QUICK, Arena, eventually
from leadscrew.testing.redteam.attack import Attack, Sighting

DAEMON = '''
import os, signal, subprocess, sys, time

CODE = """
import signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
time.sleep(20)
"""

def start(mark):
    """A process of its own session, orphaned, deaf, with the mark on its command line."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.closerange(3, 1024)
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", CODE, mark])
        os._exit(0)
    os.wait()

if AT_LOAD:
    start(AT_LOAD)

def solve(input):
    if input["mark"]:
        start(input["mark"])
        time.sleep(0.4)
    how = input["then"]
    if how == "hang":
        time.sleep(60)
    if how == "crash":
        os.abort()
    return "done"
'''


async def _survive(arena: Arena, then: str, *, at_load: bool = False) -> Sighting:
    program = DAEMON.replace("AT_LOAD", repr(arena.marker if at_load else ""))
    given = {"mark": "" if at_load else arena.marker, "then": then}
    play = await arena.play(program, [given], off="naive", limits=replace(QUICK, wall_s=1.2))
    gone = await eventually(lambda: not arena.survivors(), 1.0 if arena.defended else 0.1)
    return Sighting(not gone, f"{play.outcomes[0]}; {len(arena.survivors())} left of it")


async def _daemon(arena: Arena) -> Sighting:
    return await _survive(arena, "return")


async def _timeout(arena: Arena) -> Sighting:
    return await _survive(arena, "hang")


async def _crash(arena: Arena) -> Sighting:
    return await _survive(arena, "crash")


async def _at_load(arena: Arena) -> Sighting:
    return await _survive(arena, "return", at_load=True)


async def _between(arena: Arena) -> Sighting:
    """Nothing a trial started may still run while the next one does."""
    look = """
import os

def count(mark):
    found = 0
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as stream:
                    found += mark.encode() in stream.read()
            except OSError:
                pass
    return found
"""
    program = look + DAEMON.replace("AT_LOAD", "''").replace(
        '    how = input["then"]',
        '    if input["then"] == "look":\n        return count(input["look"])\n    how = input["then"]',
    )
    given = [{"mark": arena.marker, "then": "return"}, {"mark": "", "then": "look", "look": arena.marker}]
    play = await arena.play(program, given, off="naive")
    return Sighting(
        bool(play.answers[1]), f"the next trial saw {play.answers[1]} processes of the first ({play.outcomes[1]})"
    )


async def _proposer(arena: Arena) -> Sighting:
    """A proposer's box ends with its command, whatever it left behind."""
    script = (
        f"(setsid sh -c 'trap \"\" TERM HUP INT; sleep 20; : {arena.marker}' >/dev/null 2>&1 &) ; sleep 0.3; echo end"
    )
    if arena.defended:
        await arena.shell(script, off="none")
    else:
        import asyncio

        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", script, stdout=asyncio.subprocess.DEVNULL)
        await process.wait()
    gone = await eventually(lambda: not arena.survivors(), 1.0 if arena.defended else 0.1)
    return Sighting(not gone, f"{len(arena.survivors())} left of it")


def _attack(name: str, about: str, strike: Any) -> Attack:
    return Attack(f"survival/{name}", "survival", about, "killing the whole tree", strike, slow=name == "timeout")


ATTACKS = (
    _attack("daemon", "leave a daemon behind and answer", _daemon),
    _attack("timeout", "leave a daemon behind and hang until killed", _timeout),
    _attack("crash", "leave a daemon behind and crash", _crash),
    _attack("at-load", "start a daemon while loading", _at_load),
    _attack("next-trial", "still run while the next trial does", _between),
    _attack("proposer", "leave a daemon behind in a proposer's box", _proposer),
)
