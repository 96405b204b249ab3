"""Programs that meet an outage, a cap or their allowance, and answer anyway: whatever they say must not count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leadscrew.core.budget import Caps
from leadscrew.core.task import Interface
from leadscrew.ports import Item
from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.hall import CLIENT, FREE, Hall, solver
from leadscrew.testing.upstream import Fault

CAUGHT = solver("""
status, text = ask(given, chat("x"))
return "guess" if status != 200 else text
""")
CHILD = solver("""
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, b"%d" % ask(given, chat("x"))[0])
    os._exit(0)
os.wait()
return "guess"
""")
THREAD = solver("""
import threading
thread = threading.Thread(target=lambda: ask(given, chat("x"), way="port"))
thread.start()
thread.join()
return "guess"
""")
AGAIN = solver("""
found = [ask(given, chat("call %d" % n))[0] for n in range(3)]
return "guess" if found[-1] != 200 else "known"
""")
BROKEN = solver("""
status, text = ask(given, chat("x", stream=True))
return "guess from %d characters" % len(text)
""")
COUNT = solver("""
found = 0
while found < 50 and ask(given, chat("call %d" % found))[0] == 200:
    found += 1
return "guess"
""")
LOADING = CLIENT + "\nSAID = ask({}, chat('loading'))\n\ndef solve(given):\n    return 'guess'\n"
STUDENT = (
    CLIENT
    + """
class Student:
    def __init__(self):
        self.known = 0
    def predict(self, given):
        return "guess"
    def learn(self, batch):
        self.known += ask({}, chat("learn %d" % self.known))[0] == 200
"""
)


def _attack(
    name: str,
    about: str,
    program: str,
    *,
    fault: Callable[[int, dict[str, Any]], Fault | None] = lambda number, request: "error",
    naive: Callable[[int, dict[str, Any]], Fault | None] | None = None,
    caps: Caps = FREE,
    allowance: Caps = FREE,
    more: Mapping[str, Any] = {},
    defence: str = "a visit with a failed call is void",
) -> Attack:
    async def strike(arena: Arena) -> Sighting:
        wrong = fault if arena.defended or naive is None else naive
        async with Hall(arena, lambda request: "a reply of some length " * 12, fault=wrong, caps=caps) as hall:
            play = await hall.run(program, [{}], allowance=allowance, **more)
            replies = (*play.replies, *play.train)
            counted = [r for r in replies if r.outcome.value == "ok" and r.answer.value is not None]
            told = [(r.outcome.value, r.answer.value, r.message[:60]) for r in replies]
            return Sighting(bool(counted), f"{len(counted)} of {len(replies)} count: {told[:2]}")

    return Attack(f"outage/{name}", "outage", about, defence, strike)


def _limited(number: int, request: dict[str, Any]) -> Fault | None:
    return "rate_limit" if number >= 2 else None


def _fine(number: int, request: dict[str, Any]) -> Fault | None:
    return None


LEARNING: dict[str, Any] = {
    "train": [Item(f"train:{n}", {"n": n}, "x") for n in range(3)],
    "interface": Interface("predict"),
}

ATTACKS = (
    _attack("caught", "catch the outage and answer", CAUGHT),
    _attack("child", "leave the call to a child process and answer", CHILD),
    _attack("thread", "leave the call to a thread at the port for SDKs, and answer", THREAD),
    _attack("loading", "meet the outage while loading, and answer", LOADING),
    _attack("learning", "meet the outage while learning, and answer", STUDENT, more=LEARNING),
    _attack("cap", "meet the run's cap and answer", AGAIN, fault=_fine, naive=_limited, caps=Caps(calls=2)),
    _attack("cut-stream", "answer from a stream that broke off", BROKEN, fault=lambda number, request: "truncated_stream"),
    _attack("reset-stream", "answer from a stream whose connection broke", BROKEN, fault=lambda number, request: "reset_midway"),
    _attack("in-reply", "answer after an error with the status 200", CAUGHT, fault=lambda number, request: "error_in_reply"),
    _attack("once", "answer after one failure among good calls", AGAIN,
            fault=lambda number, request: "error" if number == 1 else None),
    _attack("allowance", "use up the allowance and answer", COUNT, fault=_fine, allowance=Caps(calls=4),
            defence="who wants more than the allowance has failed"),
)  # fmt: skip
