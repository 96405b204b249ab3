"""A harness without defences, in the way many are written: the positive control of attacks on the harness itself.

It imports the candidate into its own process, keeps the gold and the scorer beside it, uses one process for all
instances, and talks to its host over standard output. It is a process of its own, so that attacks hit nothing else.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leadscrew.core.program import Program
from leadscrew.engine.folders import write_folder

SOURCE = """
import json, sys, importlib.util

def score(answer, expected):
    return 1.0 if answer == expected else 0.0

def main():
    task = json.loads(sys.stdin.readline())
    sys.path.insert(0, task["folder"])
    spec = importlib.util.spec_from_file_location("candidate", task["folder"] + "/" + task["entry"])
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    function = getattr(module, "solve")
    for key, value, expected in zip(task["keys"], task["inputs"], task["expected"]):
        answer = function(value)
        print(json.dumps({"key": key, "answer": answer, "score": score(answer, expected)}), flush=True)

main()
"""


async def run_naive(
    program: Program,
    inputs: Sequence[Any],
    expected: Sequence[Any],
    *,
    entry: str = "main.py",
    seconds: float = 10.0,
    close_fds: bool = True,
) -> list[dict[str, Any]]:
    """Run a program in the naive harness; return the first line it printed for each key (`answer`, `score`), in order.

    At the time limit only the process itself is killed: what it started is left alone, as naive harnesses do. What an
    answer does to the reader of its line is raised (`ValueError`, `RecursionError`).
    """
    with tempfile.TemporaryDirectory(prefix="leadscrew-naive-") as name:
        folder = Path(name)
        write_folder(program, folder / "program")
        (folder / "naive.py").write_text(SOURCE, encoding="utf-8")
        task = {
            "folder": str(folder / "program"),
            "entry": entry,
            "keys": [f"t{i}" for i in range(len(inputs))],
            "inputs": list(inputs),
            "expected": list(expected) or [None] * len(inputs),
        }
        (folder / "task.json").write_text(json.dumps(task) + "\n", encoding="utf-8")
        await asyncio.to_thread(_run, folder, seconds, close_fds)
        found: dict[str, dict[str, Any]] = {}
        with open(folder / "out.txt", "rb") as lines:
            for line in lines:
                _take(line, found)
        return [found.get(key, {}) for key in task["keys"]]


def _run(folder: Path, seconds: float, close_fds: bool) -> None:
    with open(folder / "task.json", "rb") as given, open(folder / "out.txt", "wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(folder / "naive.py")], stdin=given, stdout=out, stderr=subprocess.DEVNULL,
            cwd=folder, close_fds=close_fds, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _take(line: bytes, found: dict[str, dict[str, Any]]) -> None:
    if not line.startswith(b"{"):
        return
    reply = json.loads(line)
    if isinstance(reply, dict) and isinstance(reply.get("key"), str):
        found.setdefault(reply["key"], reply)
