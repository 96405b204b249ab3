"""Engine speed: durable candidates per second, flat over history, boxed and unboxed; memory, disk, a second worker.

    python bench/engine.py [--json] [--candidates 10000]

Everything runs through the public `leadscrew.run`: a real store with synchronous commits, the real scorer process, and for
the boxed figures real boxes. Figures are of the machine that the first line names; quote ratios where you can.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from leadscrew import runs
from leadscrew.core.program import Program
from leadscrew.core.proposal import Edge, Edit, Proposal
from leadscrew.core.task import Answer, Instance, Interface, Limits, Objective, Score, Split
from leadscrew.ports import Bench, BoxReply, Domain, Event
from machine import machine_line

WINDOW = 1000
SPIN = """
def solve(input):
    total = 0
    for i in range(input["loops"]):
        total += i * i % 7
    return total
"""


class Constant(Domain):
    """Scores every artifact alike: what is left is the engine's own work."""

    name = "constant"
    interface = Interface("artifact", entry="note.txt")
    objectives = (Objective("score"),)

    def instances(self, split: Split) -> Sequence[Instance]:
        return [Instance(f"{split}-0", split, {})]

    def seed(self) -> Program:
        return Program.of({"note.txt": "seed\n"})

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        return Score(0.5)


class Spin(Domain):
    """Every trial burns the same CPU time in a box."""

    name = "spin"
    interface = Interface("solve")
    objectives = (Objective("score"),)
    limits = Limits(cpu_s=30, wall_s=120)

    def __init__(self, loops: int, instances: int = 1) -> None:
        self.loops, self.count = loops, instances

    def instances(self, split: Split) -> Sequence[Instance]:
        return [Instance(f"{split}-{i}", split, {"loops": self.loops}) for i in range(self.count)]

    def seed(self) -> Program:
        return Program.of({"main.py": SPIN})

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        return Score(1.0 if isinstance(answer.value, int) else 0.0)


class Numbered:
    """Adds a numbered line to the seed: a new tree every time, and no other work."""

    name = "numbered"

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        seed = bench.domain.seed()
        assert seed is not None
        path = bench.domain.interface.entry
        tree = seed.with_files({path: seed[path].data + f"# {bench.number}\n".encode()})
        return [Proposal(tree, (Edge("base", "0.0"),))]


def evolve(domain: Domain, candidates: int, folder: Path, *, workers: int, in_flight: int) -> list[float]:
    """Run and return the moment of each candidate after the founding, in seconds."""
    moments: list[float] = []

    def observe(event: Event) -> None:
        if event.kind == "candidate" and event.data["candidate"].plan > 0:
            moments.append(time.perf_counter())
            assert event.data["candidate"].status == "evaluated", event.data["candidate"].reason

    config = {
        "run": {"out": str(folder), "workers": workers, "plans_in_flight": in_flight},
        "domain": {"name": "own"},
        "proposer": {"name": "genetic"},
        "harness": {"iterations": candidates, "candidates": 1, "promotion": "published", "constants_only": "off"},
    }
    runs.run(config, domain=domain, proposer=Named(), observers=(observe,))
    return moments


class Named(Numbered):
    """Stands in for the configured proposer."""

    name = "genetic"


def rate(moments: Sequence[float]) -> float:
    """Return candidates per second over a stretch."""
    return (len(moments) - 1) / (moments[-1] - moments[0])


def plain(candidates: int) -> dict[str, float]:
    """Measure the engine alone, in a process of its own so that its memory is its own."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        moments = evolve(Constant(), candidates, run, workers=1, in_flight=8)
        window = min(WINDOW, candidates // 3)
        allocated = sum(p.stat().st_blocks * 512 for p in run.rglob("*") if p.is_file())
        return {
            "candidates_per_s": rate(moments),
            "last_over_first": rate(moments[-window:]) / rate(moments[:window]),
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "bytes_per_candidate": allocated / candidates,
        }


def boxed(candidates: int, workers: int) -> dict[str, float]:
    """Measure with every candidate in a box of its own."""
    with tempfile.TemporaryDirectory() as folder:
        moments = evolve(Spin(10), candidates, Path(folder) / "run", workers=workers, in_flight=2 * workers)
        return {"boxed_per_s": rate(moments[len(moments) // 5 :])}


def speedup(candidates: int) -> dict[str, float]:
    """Measure what a second worker brings on evaluations that burn CPU time."""
    rates = []
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            moments = evolve(Spin(6_000_000), candidates, Path(folder) / "run", workers=workers, in_flight=4)
            rates.append(rate(moments))
    return {"second_worker_speedup": rates[1] / rates[0]}


def apart(part: str, *arguments: int) -> dict[str, float]:
    """Run one measurement in a fresh process and return its figures."""
    command = [sys.executable, __file__, "--part", part, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--candidates", type=int, default=10_000)
    parser.add_argument("--boxed", type=int, default=300, help="candidates with a box each")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        name, *numbers = args.part
        print(json.dumps({"plain": plain, "boxed": boxed, "speedup": speedup}[name](*map(int, numbers))))
        return
    figures = {
        **apart("plain", args.candidates),
        **apart("boxed", args.boxed, os.cpu_count() or 1),
        **apart("speedup", 30),
    }
    if args.json:
        print(json.dumps({**figures, "candidates": args.candidates, "machine": machine_line()}))
        return
    print(machine_line())
    targets = {
        "candidates_per_s": ">= 500",
        "last_over_first": ">= 0.9",
        "rss_mb": "< 100",
        "bytes_per_candidate": "<= 4096 + 2 x compressed changes",
        "boxed_per_s": ">= 30",
        "second_worker_speedup": ">= 1.7",
    }
    for name, value in figures.items():
        print(f"{name:24} {value:10.2f}   target {targets[name]}")


if __name__ == "__main__":
    main()
