"""Kill a run with SIGKILL at random instants, resume it each time, and compare with a run that was left alone.

    python bench/chaos.py --kills 30 [--json]

The run is a real one: boxes, scorer process, durable store, and programs that ask a model twice in each trial, over the
gateway and HTTP. The model is a scripted upstream in the parent: it takes 20 ms for a reply, and no kill ends it. The child
reports each finished trial and each recorded reply of the proposer only after it is durable; the parent kills it in a phase
that it chose, looks for orphans, and starts it again until it ends, finalize included.

* lost_trials: trials that were reported finished and are not in the store afterwards
* repeated_calls: plans whose recorded proposals were asked for again, and requests that reached the upstream though the
  store held their reply when the run was killed
* kills_with_calls_in_flight: kills after which the store holds a call without its reply that had reached the upstream
* identical_archive: whether the archive digest equals that of the undisturbed run
* orphans: processes of the run that outlive the kill
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leadscrew import runs
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.program import Program
from leadscrew.core.proposal import Edge, Edit, Proposal
from leadscrew.core.task import Answer, Instance, Interface, Limits, Objective, Score, Split
from leadscrew.ports import Bench, BoxReply, Domain, Event
from leadscrew.testing.upstream import ScriptedUpstream
from machine import machine_line

MARK = "LEADSCREW_CHAOS"
SOURCE = """\
from leadscrew_guest import llm

SHIFT = 0
PLAN = 0


def solve(input):
    for turn in ("first", "second"):
        answer = llm(f"plan {PLAN}, {turn} turn: {input['split']} {input['x']} + {SHIFT}")
    return int(answer)
"""
PHASES = ("start", "proposing", "proposed", "asking", "trials", "judged", "finalizing")
GRACE_S = 5.0
REPLY_S = 0.02


class Shift(Domain):
    """The answer is the input plus a constant that the search has to find."""

    name = "shift"
    interface = Interface("solve")
    objectives = (Objective("hits", ceiling=1.0),)
    limits = Limits(cpu_s=5, wall_s=20)

    def instances(self, split: Split) -> Sequence[Instance]:
        return [Instance(f"{split}-{i}", split, {"split": split, "x": i}, i + i % 5) for i in range(10)]

    def seed(self) -> Program:
        return Program.of({"main.py": SOURCE})

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        return Score(float(answer.value == instance.expected))


class Shifter:
    """Changes the constant. Each call is reported before anything else happens."""

    name = "genetic"

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        say("call", bench.number)
        # A proposer that takes no time is never killed at work.
        await asyncio.sleep(0.02)
        text = SOURCE.replace("SHIFT = 0", f"SHIFT = {bench.rng.randrange(-9, 9)}")
        text = text.replace("PLAN = 0", f"PLAN = {bench.number}")
        return [Proposal(Program.of({"main.py": text}), (Edge("base", "0.0"),))]


class Served:
    """The model's provider, in a thread of its own. `asked` are the prompts that reached it, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = ScriptedUpstream(self._reply, fault=self._note, delay_s=REPLY_S)
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(10)
        self.url = self._server.url

    def _note(self, number: int, request: dict[str, Any]) -> None:
        self.asked.append(prompt_of(request))

    @staticmethod
    def _reply(request: dict[str, Any]) -> str:
        left, _, shift = prompt_of(request).rpartition(" + ")
        return str(int(left.rpartition(" ")[2]) + int(shift))

    def close(self) -> None:
        """End the server and its thread."""
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def prompt_of(request: Mapping[str, Any]) -> str:
    """Return the text of a request; it names program, turn and instance, so that no two calls of a run share it."""
    return str(request["messages"][-1]["content"])


def say(kind: str, value: object) -> None:
    """Tell the parent, unbuffered."""
    os.write(1, (json.dumps([kind, value]) + "\n").encode())


def child(folder: Path, iterations: int, url: str) -> None:
    """Run or resume to the end, and finalize."""

    def observe(event: Event) -> None:
        if event.kind == "trial":
            say("trial", event.data["trial"].key)
        elif event.kind == "proposal":
            say("recorded", event.data["plan"])
        elif event.kind == "verdict":
            say("judged", event.data["plan"])
        elif event.kind == "final":
            say("final", event.data["state"])

    config = {
        "run": {"out": str(folder), "workers": 2, "plans_in_flight": 2},
        "domain": {"name": "own"},
        "harness": {"iterations": iterations, "candidates": 1, "promotion": "published", "constants_only": "off"},
        "evaluation": {"recheck": 1},
        "providers": {"upstream": {"base_url": url}},
        "models": {"solver": {"model": "upstream/small", "max_tokens": 16, "timeout_s": 20}},
    }
    certificate = folder / "certificate.json"
    if not certificate.exists():
        runs.run(config, domain=Shift(), proposer=Shifter(), observers=(observe,), resume=True)
        if not certificate.exists():
            runs.finalize(folder, domain=Shift(), observers=(observe,))
    say("end", True)


class Watch:
    """One child process and what it said."""

    def __init__(self, folder: Path, iterations: int, url: str) -> None:
        command = [sys.executable, __file__, "--child", str(folder), "--iterations", str(iterations), "--url", url]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, MARK: folder.name}, start_new_session=True
        )
        assert self.process.stdout is not None
        self.stream = self.process.stdout
        self.ended = False

    def lines(self, timeout: float) -> list[tuple[str, object]]:
        """Return what was said within `timeout` seconds, or at once when something comes."""
        ready, _, _ = select.select([self.stream], [], [], timeout)
        if not ready:
            return []
        data = os.read(self.stream.fileno(), 1 << 16)
        if not data:
            self.ended = True
            return []
        while not data.endswith(b"\n"):
            more = os.read(self.stream.fileno(), 1 << 16)
            if not more:
                break
            data += more
        return [tuple(json.loads(line)) for line in data.splitlines() if line.endswith(b"]")]


def orphans(mark: str) -> list[int]:
    """Return the processes that carry the mark of a run in their environment, or run in a box of its folder."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = Path(entry.path, "environ").read_bytes()
            command = Path(entry.path, "cmdline").read_bytes()
            state = Path(entry.path, "stat").read_text("ascii").rpartition(")")[2].split()[0]
        except (OSError, UnicodeDecodeError):
            continue
        wanted = f"{MARK}={mark}".encode()
        if state != "Z" and (wanted in environ.split(b"\0") or mark.encode() in command):
            found.append(int(entry.name))
    return found


class Chaos:
    """The kills, and what was found after each."""

    def __init__(self, folder: Path, iterations: int, rng: random.Random, served: Served) -> None:
        self.folder, self.iterations, self.rng, self.served = folder, iterations, rng, served
        # One run after the other: what is asked from now on is asked by this one.
        self.asked: list[str] = []
        served.asked = self.asked
        self.answered: set[str] = set()
        """Prompts whose reply the store held after a kill."""
        self.looked = 0
        """How many of `asked` had arrived by the last kill."""
        self.unanswered: set[int] = set()
        self.calls_in_flight = 0
        self.reported: set[str] = set()
        self.recorded: set[int] = set()
        self.repeated = self.lost = self.left = 0
        self.phases: Counter[str] = Counter()
        self.in_flight = 0

    def kill_in(self, phase: str) -> bool:
        """Start the run, kill it in a phase; returns False if it ended before."""
        watch = Watch(self.folder, self.iterations, self.served.url)
        deadline = time.monotonic() + 120
        chance = self.rng.randrange(1, 6)
        current, seen = "start", 0
        calls = len(self.asked)
        if phase == "start":
            time.sleep(self.rng.random() * 1.0)
        while phase != "start" and time.monotonic() < deadline:
            if phase == "asking" and len(self.asked) - calls >= 2 * chance:
                break
            for kind, value in watch.lines(0.002 if phase == "asking" else 0.2):
                self._note(kind, value)
                current = {
                    "call": "proposing",
                    "recorded": "proposed",
                    "trial": "trials",
                    "judged": "judged",
                    "final": "finalizing",
                    "end": "end",
                }[kind]
                seen += current == phase
            if watch.ended or current == "end":
                watch.process.wait()
                return False
            if seen >= chance:
                break
        if phase in ("trials", "proposed", "asking"):
            time.sleep(self.rng.random() * (REPLY_S / 2 if phase == "asking" else 0.02))
        os.kill(watch.process.pid, signal.SIGKILL)
        while not watch.ended:
            for kind, value in watch.lines(1.0):
                self._note(kind, value)
                current = {"trial": "trials", "judged": "judged"}.get(kind, current)
        watch.process.wait()
        self.phases[phase] += 1
        self._look()
        self.in_flight += self._trials_in_flight()
        return True

    def finish(self) -> None:
        """Let the run come to its end."""
        watch = Watch(self.folder, self.iterations, self.served.url)
        while not watch.ended:
            for kind, value in watch.lines(1.0):
                self._note(kind, value)
        if watch.process.wait() != 0:
            raise SystemExit(f"the run did not end well: exit code {watch.process.returncode}")
        self._compare()

    def _note(self, kind: str, value: object) -> None:
        if kind == "trial":
            self.reported.add(str(value))
        elif kind == "recorded":
            self.recorded.add(int(str(value)))
        elif kind == "call" and int(str(value)) in self.recorded:
            self.repeated += 1

    def _look(self) -> None:
        """Look for orphans and lost trials after a kill."""
        deadline = time.monotonic() + GRACE_S
        while (alive := orphans(self.folder.name)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.left += len(alive)
        if not (self.folder / "run.db").exists():
            return
        store = SQLiteStore.open(self.folder, readonly=True)
        try:
            store.verify()
            self.lost += sum(store.find_trial(key) is None for key in self.reported)
            self._compare()
            arrived = set(self.asked)
            open_calls = set()
            for number, call, reply in store.calls():
                prompt = prompt_of(call.body)
                if reply is not None and reply.status == "ok":
                    self.answered.add(prompt)
                elif reply is None and prompt in arrived:
                    open_calls.add(number)
            self.calls_in_flight += bool(open_calls - self.unanswered)
            self.unanswered |= open_calls
        finally:
            store.close()

    def _compare(self) -> None:
        """Count what was asked since the last kill though its reply was recorded by then."""
        new = self.asked[self.looked :]
        self.looked += len(new)
        self.repeated += sum(prompt in self.answered for prompt in new)

    def _trials_in_flight(self) -> int:
        """Whether the kill met a plan whose proposals were recorded and whose trials were not all done."""
        if not (self.folder / "run.db").exists():
            return 0
        store = SQLiteStore.open(self.folder, readonly=True)
        try:
            judged = {plan for plan, _, _ in store.judgements()}
            return int(any(p.number not in judged and store.proposals(p.number) for p in store.plans()))
        finally:
            store.close()


def digest(folder: Path) -> str:
    """Return the archive digest of a run."""
    store = SQLiteStore.open(folder, readonly=True)
    try:
        return store.archive_digest()
    finally:
        store.close()


def chaos(kills: int, seed: int) -> dict[str, object]:
    """Kill `kills` times over as many runs as that takes, and return the findings."""
    rng = random.Random(seed)
    served = Served()
    with tempfile.TemporaryDirectory() as base:
        iterations = 12
        calm = Chaos(Path(base) / "calm-run", iterations, rng, served)
        calm.finish()
        expected = digest(calm.folder)
        done: list[Chaos] = []
        killed = 0
        plan = [PHASES[i % len(PHASES)] for i in range(kills)]
        while killed < kills:
            current = Chaos(Path(base) / f"chaos-{seed}-{len(done)}", iterations, rng, served)
            done.append(current)
            # Phases of one run in the order in which it meets them, so that each kill finds its phase.
            for phase in sorted(plan[killed : killed + 10], key=lambda p: p == "finalizing"):
                killed += current.kill_in(phase)
            current.finish()
        phases: Counter[str] = Counter()
        for current in done:
            phases.update(current.phases)
        served.close()
        return {
            "kills": killed,
            "lost_trials": sum(c.lost for c in done),
            "repeated_calls": sum(c.repeated for c in done),
            "identical_archive": all(digest(c.folder) == expected for c in done),
            "orphans": sum(c.left for c in done),
            "kills_by_phase": dict(phases),
            "kills_with_trials_in_flight": sum(c.in_flight for c in done),
            "kills_with_calls_in_flight": sum(c.calls_in_flight for c in done),
            "model_calls": sum(len(c.asked) for c in done),
            "runs": len(done),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--iterations", type=int, default=12, help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.iterations, args.url)
        return
    figures = chaos(args.kills, args.seed)
    if args.json:
        print(json.dumps({**figures, "machine": machine_line()}))
        return
    print(machine_line())
    for name, value in figures.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
