"""Attacks that want more of the model than a trial may have."""

from __future__ import annotations

import asyncio

from leadscrew.core.budget import Caps
from leadscrew.core.program import Program
from leadscrew.ports import Access, Visit
from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.hall import MAX_TOKENS, Hall, solver
from leadscrew.testing.redteam.naive import run_naive

MANY = solver("""
import concurrent.futures
def one(n):
    return ask(given, chat("call %d of %s" % (n, given["mark"])), way=given["way"])[0]
with concurrent.futures.ThreadPoolExecutor(given["at_once"]) as pool:
    return list(pool.map(one, range(given["calls"])))
""")

LEFT = solver("""
import time
if given["look"]:
    time.sleep(0.8)
    return "looked"
def left():
    os.setsid()
    if given["twice"] and os.fork():
        os._exit(0)
    time.sleep(0.25)
    for n in range(8):
        ask(given, chat("left over %d %s" % (n, given["mark"])), way=given["way"])
        time.sleep(0.05)
    os._exit(0)
if os.fork() == 0:
    left()
return "gone"
""")

AT_LOAD = """
import threading, time
def work():
    time.sleep(0.2)
    for n in range(30):
        ask({"socket": ""}, chat("from loading %d MARK" % n), headers=[("x-trial", "nobody")])
        time.sleep(0.02)
threading.Thread(target=work, daemon=True).start()
"""


async def _calls(arena: Arena, calls: int, at_once: int, way: str) -> Sighting:
    async with Hall(arena, delay_s=0.02 if at_once > 1 else 0.0) as hall:
        given = {"mark": arena.marker, "way": way, "at_once": at_once, "calls": calls}
        play = await hall.run(MANY, [given], allowance=Caps(calls=5))
        asked = hall.asked(arena.marker)
        return Sighting(asked > 5, f"{asked} of {calls} calls came through with 5 allowed; {play.outcomes[0]}")


async def _many(arena: Arena) -> Sighting:
    return await _calls(arena, 40, 1, "socket")


async def _parallel(arena: Arena) -> Sighting:
    return await _calls(arena, 48, 12, "socket")


async def _parallel_port(arena: Arena) -> Sighting:
    return await _calls(arena, 48, 12, "port")


async def _left(arena: Arena, way: str, *, twice: bool) -> Sighting:
    async with Hall(arena) as hall:
        given = {"mark": arena.marker, "way": way, "twice": twice, "look": False}
        if arena.defended:
            await hall.run(LEFT, [given, {**given, "look": True}], allowance=Caps(calls=50))
        else:
            assert hall.naive is not None
            door = await hall.naive.door(arena.folder / "door.sock")
            door.enter(Visit(Access("solver", 1, "1.0"), "trial-0"))
            await run_naive(Program.of({"main.py": LEFT}), [{**given, "socket": door.path, "port": door.port}], [])
            await door.leave()
            await asyncio.sleep(1.0)
        asked = hall.asked(arena.marker)
        return Sighting(asked > 0, f"{asked} calls of a process whose trial was over came through")


async def _left_fork(arena: Arena) -> Sighting:
    return await _left(arena, "socket", twice=False)


async def _left_daemon(arena: Arena) -> Sighting:
    return await _left(arena, "socket", twice=True)


async def _left_port(arena: Arena) -> Sighting:
    return await _left(arena, "port", twice=True)


async def _at_load(arena: Arena) -> Sighting:
    """A thread of the loaded program lives on beside the trials; each of its calls must be somebody's, or not be made."""
    program = solver("import time\ntime.sleep(0.5)\nreturn 1") + AT_LOAD.replace("MARK", arena.marker)
    async with Hall(arena) as hall:
        await hall.run(program, [{}, {}], allowance=Caps(calls=3), fork_sharing=True)
        asked, made = hall.asked(arena.marker), [m for m in hall.made() if arena.marker in m.prompt]
        most = max((sum(m.scope == scope for m in made) for scope in {m.scope for m in made}), default=0)
        astray = sum(m.scope == "nobody" for m in made)
        return Sighting(asked > 9 or most > 3 or astray > 0, f"{asked} calls, {most} in one visit, {astray} on nobody")


async def _tokens(arena: Arena) -> Sighting:
    """The allowance of tokens holds for all calls together, as long as none says what it will take."""
    async with Hall(arena, lambda request: "word " * 40) as hall:
        given = {"mark": arena.marker, "way": "socket", "at_once": 6, "calls": 30}
        play = await hall.run(MANY, [given], allowance=Caps(tokens=1500))
        used = hall.upstream.tokens_in + hall.upstream.tokens_out
        return Sighting(used > 1500, f"{used} tokens used with 1500 allowed; {play.outcomes[0]}")


async def _longer(arena: Arena) -> Sighting:
    """Ask for a longer reply than the pin allows, under every name that a length has."""
    program = solver("""
bodies = [chat("long", max_tokens=100000), chat("longer", max_completion_tokens=100000),
    chat("longest", max_tokens=10, max_completion_tokens=100000), chat("none"),
    chat("text", max_output_tokens=100000), chat("huge", max_tokens=10**30), chat("float", max_tokens=1e5),
    b'{"max_tokens": 5, "max_tokens": 100000, "messages": [{"role": "user", "content": "twice"}]}']
return [ask(given, body)[0] for body in bodies] + [ask(given, chat("messages", max_tokens=99999), "/v1/messages")[0]]
""")
    async with Hall(arena) as hall:
        play = await hall.run(program, [{}])
        lengths = [
            value
            for body in hall.upstream.bodies
            for name, value in body.items()
            if name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
        ]
        bad = [value for value in lengths if value > MAX_TOKENS]
        unsaid = sum(not {"max_tokens", "max_completion_tokens"} & body.keys() for body in hall.upstream.bodies)
        return Sighting(
            bool(bad or unsaid), f"{len(bad)} longer than the pin, {unsaid} without a bound; {play.answers[0]}"
        )


def _attack(name: str, about: str, strike: object, defence: str) -> Attack:
    return Attack(f"allowance/{name}", "allowance", about, defence, strike)  # type: ignore[arg-type]


ATTACKS = (
    _attack("many-calls", "call the model more often than a trial may", _many, "the allowance of a visit"),
    _attack("parallel", "call in parallel, past the allowance", _parallel, "reservation before each call"),
    _attack("parallel-port", "the same through the port for SDKs", _parallel_port, "reservation before each call"),
    _attack("left-fork", "call from a process left behind by a trial", _left_fork, "visits, and killing the whole tree"),
    _attack("left-daemon", "the same from a daemon of its own session", _left_daemon, "visits, and killing the whole tree"),
    _attack("left-port", "the same through the port for SDKs", _left_port, "visits, and killing the whole tree"),
    _attack("at-load", "call from a thread that loading left, for nobody", _at_load, "visits are the host's word"),
    _attack("tokens", "use more tokens than a trial may", _tokens, "reservation of the most a call can take"),
    _attack("longer", "ask for longer replies than the role may have", _longer, "max_tokens is pinned"),
)  # fmt: skip
