"""Attacks that want to hurt others: floods, half requests and kills at the way to the models."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from leadscrew.core.program import Program
from leadscrew.core.task import Limits
from leadscrew.ports import BoxSpec, Errand
from leadscrew.testing.redteam.arena import QUICK, Arena, Weakened, eventually
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.hall import Hall, solver
from leadscrew.testing.redteam.injections import errand_of, write_bench

PATIENT = replace(QUICK, wall_s=60, cpu_s=30)
"""For the honest program: a slow machine is no success of an attack."""
FRAME = """
import time
ask(given, chat("ready"))
links, until = [], time.monotonic() + 1.2
def one(data=b""):
    try:
        link = opened(given, given["way"])
        link.setblocking(False)
        if data:
            link.send(data)
        links.append(link)
        return link
    except OSError:
        return None
def push(link, data):
    try:
        link.send(data)
    except OSError:
        pass
one()
{body}
while time.monotonic() < until:
    time.sleep(0.05)
return len(links)
"""
WAYS = {
    "connections": ("hold thousands of connections", "socket", """
for n in range(3000):
    if time.monotonic() > until: break
    one()
"""),
    "port": ("hold all connections of the port for SDKs", "port", """
for n in range(600):
    if time.monotonic() > until: break
    one()
"""),
    "slow": ("send requests a byte at a time", "socket", """
data = raw(chat("slow"))
for n in range(150): one(data[:1])
for n in range(1, 25):
    for link in links: push(link, data[n:n + 1])
    time.sleep(0.05)
"""),
    "half": ("send the heads of huge requests and nothing more", "socket", """
for n in range(300): one(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: g\\r\\nContent-Length: 8000000\\r\\n\\r\\n{")
"""),
    "large": ("send huge requests from all sides", "socket", """
data = raw(chat("x" * 7000000))
for n in range(40): one(data[:200000])
for n in range(1, 30):
    for link in links: push(link, data[n * 200000:(n + 1) * 200000])
"""),
    "heads": ("send heads that never end", "port", """
for n in range(60): one(b"POST /v1/chat/completions HTTP/1.1\\r\\n")
for n in range(60):
    for link in links: push(link, b"X-%d: " % n + b"y" * 7000 + b"\\r\\n")
"""),
    "unread": ("ask and never read the replies", "socket", """
for n in range(200): one(raw(chat("unread %d" % n, stream=True)))
"""),
}  # fmt: skip


def _patience(arena: Arena) -> dict[str, float]:
    """In a control nobody is waited for longer than a flood lasts."""
    return {"timeout": 15.0 if arena.defended else 0.3}


def _busy(name: str) -> Attack:
    about, way, body = WAYS[name]

    async def strike(arena: Arena) -> Sighting:
        """A flood that hurts nobody once may have met a quick moment: the control gets three."""
        seen = await wave(arena)
        for _ in range(0 if arena.defended else 2):
            if seen[0]:
                break
            seen = await wave(arena)
        return Sighting(*seen)

    async def wave(arena: Arena) -> tuple[bool, str]:
        """While one box attacks, another one's program asks its own questions."""
        honest = solver("import time\nfound = []\nfor n in range(5):\n    found.append(ask(given, chat('honest %d' % n))[0])\n"
                        "    time.sleep(0.1)\nreturn found")  # fmt: skip
        async with Hall(arena, lambda request: "word " * 2000, serial=True) as hall:
            flood = asyncio.create_task(
                hall.run(solver(FRAME.replace("{body}", body)), [{"way": way if arena.defended else "socket"}])
            )
            await eventually(lambda: hall.asked("ready") > 0, 5.0)
            await asyncio.sleep(0.2)
            play = await hall.run(honest, [_patience(arena)], candidate="2.0", limits=PATIENT)
            attack = await flood
            got = play.answers[0] or []
            hurt = got.count(200) != 5 or hall.asked("honest 4") != 1
            return (hurt, f"the other got {got} ({play.outcomes[0]}); {attack.answers[0]} held ({attack.outcomes[0]})")

    return Attack(
        f"flood/{name}",
        "flood",
        f"{about} while another box asks",
        "connections are served side by side, in bounds",
        strike,
        slow=True,
    )


KILL = """
import os, signal, socket, threading, time
base = os.environ["OPENAI_BASE_URL"].split(":")[2].split("/")[0]
links = []
for n in range(300):
    try:
        link = socket.socket()
        link.setblocking(False)
        link.connect_ex(("127.0.0.1", int(base)))
        links.append(link)
    except OSError:
        break
open("/work/written", "w").write("MARK")
for pid in [os.getppid(), 1] + [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]:
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except OSError:
            pass
time.sleep(0.1)
"""


def _killable(spec: BoxSpec) -> BoxSpec:
    """The weakening in which the runner of an errand is a process like any other."""
    return replace(spec, init=False)


async def _errand_kill(arena: Arena) -> Sighting:
    """Kill the runner of an errand and its forwarder; the files must come back all the same."""
    limits = Limits(cpu_s=20, wall_s=15, memory_mb=512, processes=64, workspace_mb=32)
    errand = Errand(
        ("python3", "/tools/agent.py"),
        tools=Program.of({"agent.py": KILL.replace("MARK", arena.marker)}),
        limits=limits,
        timeout_s=4.0,
    )
    sandbox = arena.sandbox if arena.defended else Weakened(arena.sandbox, _killable)
    async with Hall(arena) as hall:
        result = await errand_of(hall, errand, write_bench(arena.folder / "bench", {"x": "y"}), sandbox)
        found = result.work.get("written") if result.work is not None else None
        lost = found is None or found.data.decode() != arena.marker
        return Sighting(lost, f"{'lost' if lost else 'brought back'}: {result.outcome} {result.lost}")


FLOOD = """
import os, socket, sys, threading, time
place = os.environ["LEADSCREW_SOCKET"]
first = socket.socket(socket.AF_UNIX)
first.settimeout(3)
first.connect(place)
body = b'{"messages": [{"role": "user", "content": "ready"}]}'
first.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: g\\r\\nConnection: close\\r\\nContent-Type: application/json\\r\\n"
    b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
first.recv(100)
first.close()
links = []
for n in range(4000):
    try:
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        link.connect(place)
        links.append(link)
    except OSError:
        break
sys.stdout.write("x" * 30_000_000)
sys.stdout.flush()
time.sleep(1.2)
"""


async def _errand_flood(arena: Arena) -> Sighting:
    """Flood the door and the output of an errand while a trial in another box asks its own questions."""
    limits = Limits(cpu_s=20, wall_s=15, memory_mb=512, processes=64, workspace_mb=32)
    errand = Errand(("python3", "/tools/agent.py"), tools=Program.of({"agent.py": FLOOD}), limits=limits, timeout_s=6.0)
    honest = solver("import time\nfound = []\nfor n in range(5):\n    found.append(ask(given, chat('honest %d' % n))[0])\n"
                    "    time.sleep(0.1)\nreturn found")  # fmt: skip
    async with Hall(arena, serial=True) as hall:
        flood = asyncio.create_task(errand_of(hall, errand, write_bench(arena.folder / "bench", {"x": "y"})))
        await eventually(lambda: hall.asked("ready") > 0, 5.0)
        await asyncio.sleep(0.2)
        play = await hall.run(honest, [_patience(arena)], limits=PATIENT)
        result = await flood
        got = play.answers[0] or []
        return Sighting(
            got.count(200) != 5, f"the other got {got} ({play.outcomes[0]}); the errand: {result.outcome} {result.lost}"
        )


ATTACKS = (
    *(_busy(name) for name in WAYS),
    Attack(
        "flood/errand-kill", "flood", "kill the runner of an errand and its forwarder", "it is the box's first process",
        _errand_kill,
    ),
    Attack(
        "flood/errand-output", "flood", "flood the door and the output of a proposer's box", "bounds on both",
        _errand_flood,
    ),
)  # fmt: skip
