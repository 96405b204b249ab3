"""What starting costs: `import leadscrew` and `leadscrew --help`, in starts of the same venv's `python -I -c pass`.

    python bench/startup.py [--json] [--pairs 25]

Names of the public face are loaded when they are first used; `face` is what loading all of them costs.
Each start is timed next to a bare one; the figures are medians of the ratios of such pairs, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from machine import machine_line

BARE = [sys.executable, "-I", "-c", "pass"]
STARTS = {
    "import": [sys.executable, "-I", "-c", "import leadscrew"],
    "help": [sys.executable, "-I", "-m", "leadscrew", "--help"],
    "face": [sys.executable, "-I", "-c", "import leadscrew; [getattr(leadscrew, n) for n in leadscrew.__all__]"],
}
TARGETS = {"import": 8.0, "help": 25.0}


def seconds(command: Sequence[str]) -> float:
    """Wall time of one start."""
    began = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def measure(command: Sequence[str], pairs: int) -> tuple[float, float, float]:
    """Return the median ratio to a bare start, and both medians in ms; the first pair warms the caches and is left out."""
    times = [(seconds(BARE), seconds(command)) for _ in range(pairs + 1)][1:]
    bare, full = median(b for b, _ in times), median(f for _, f in times)
    return median(f / b for b, f in times), 1000 * bare, 1000 * full


def main() -> None:
    """Measure, print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--pairs", type=int, default=25, help="pairs of starts per figure (default: 25)")
    args = parser.parse_args()
    found = {name: measure(command, args.pairs) for name, command in STARTS.items()}
    result = {f"{name}_x": round(ratio, 2) for name, (ratio, _, _) in found.items()}
    result |= {f"{name}_ms": round(full, 1) for name, (_, _, full) in found.items()}
    result["bare_ms"] = round(median(bare for _, bare, _ in found.values()), 1)
    if args.json:
        print(json.dumps({**result, "machine": machine_line()}))
        return
    print(f"{'start':<24}{'ms':>8}{'bare starts':>14}{'target':>9}")
    print(f"{'python -I -c pass':<24}{result['bare_ms']:>8}{1.0:>14}{'':>9}")
    for name, label in (("import", "import leadscrew"), ("help", "leadscrew --help"), ("face", "every public name")):
        target = f"<= {TARGETS[name]:g}" if name in TARGETS else ""
        print(f"{label:<24}{result[f'{name}_ms']:>8}{result[f'{name}_x']:>14}{target:>9}")
    print(machine_line())


if __name__ == "__main__":
    main()
