"""What a box costs: the overhead of a warm trial over a plain call, and of a cold box over a bare interpreter.

    python bench/sandbox.py [--json] [--trials 1000] [--boxes 40] [--sandbox bubblewrap]

Medians of many runs through the public executor, one box at a time. `warm_ms` is what one more trial of a loaded program
costs beyond calling its function; `cold_ms` is what a box that was not opened ahead costs, from asking for it to the first
answer, beyond `python -I -c pass` (`bare_ms`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from contextlib import aclosing
from statistics import median

from leadscrew.adapters.executors import LocalExecutor
from leadscrew.adapters.sandboxes import choose
from leadscrew.core.program import Program
from leadscrew.core.task import Interface, Limits
from leadscrew.core.trial import Outcome
from leadscrew.ports import BoxTrial, Job, Sandbox
from machine import machine_line

SOURCE = "def solve(input):\n    return input + 1\n"


def bare(runs: int) -> list[float]:
    """Times of a Python that does nothing, in ms."""
    return [_timed(lambda: subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)) for _ in range(runs)]


def plain_call(runs: int) -> float:
    """Median time of the same function called in this process, in ms."""
    space: dict[str, object] = {}
    exec(SOURCE, space)
    solve = space["solve"]
    assert callable(solve)
    return median(_timed(lambda: solve(1)) for _ in range(runs))


def _timed(action: object) -> float:
    assert callable(action)
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


async def gaps(sandbox: Sandbox, count: int, *, fresh: bool) -> list[float]:
    """Times between one reply and the next, in ms; the first reply (load, warm-up) is left out."""
    trials = tuple(BoxTrial(str(i), i) for i in range(count + 1))
    job = Job(Program.of({"main.py": SOURCE}), Interface("solve"), Limits(), trials, fresh=fresh)
    executor = LocalExecutor(sandbox, workers=1, spares=0)
    out, last = [], 0.0
    try:
        async with aclosing(executor.run(job)) as replies:
            async for reply in replies:
                assert reply.outcome is Outcome.OK, reply.message
                now = time.perf_counter()
                out.append((now - last) * 1000)
                last = now
    finally:
        await executor.close()
    return out[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--boxes", type=int, default=40)
    parser.add_argument("--sandbox", default="bubblewrap")
    options = parser.parse_args()
    sandbox = choose(options.sandbox)
    report = sandbox.probe()
    asyncio.run(gaps(sandbox, 2, fresh=True))  # the prepared runtime is built once, not once per box
    interpreter = bare(options.boxes)
    call_ms = plain_call(options.trials)
    warm = asyncio.run(gaps(sandbox, options.trials, fresh=False))
    cold = asyncio.run(gaps(sandbox, options.boxes, fresh=True))
    bare_ms = median(interpreter)
    figures = {
        "warm_ms": round(median(warm) - call_ms, 3),
        "cold_ms": round(median(cold) - bare_ms, 2),
        "bare_ms": round(bare_ms, 2),
        "warm_min_ms": round(min(warm), 3),
        "cold_min_ms": round(min(cold) - min(interpreter), 2),
        "warm_per_s": round(1000 / median(warm)),
        "cold_over_bare": round(median(cold) / bare_ms, 2),
    }
    if options.json:
        print(json.dumps({**figures, "sandbox": report.name, "machine": machine_line()}))
        return
    print(machine_line())
    print(f"{report.name} {report.version}: {options.trials} warm trials, {options.boxes} cold boxes; medians")
    targets = {"warm_ms": "< 2", "cold_ms": "< 40"}
    for name, value in figures.items():
        print(f"{name:>16} {value:>10}  {targets.get(name, '')}")


if __name__ == "__main__":
    main()
