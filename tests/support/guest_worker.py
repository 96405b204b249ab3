"""A guest worker as a plain process, spoken to line by line."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import leadscrew
from leadscrew.core.task import Limits

GUEST = Path(leadscrew.__file__).parent / "guest"
LIMITS = Limits(cpu_s=5, wall_s=20, load_s=5, answer_kb=64, output_kb=8)


class Worker:
    """A worker process with a folder that stands for the root of its box."""

    def __init__(self, root: Path, **env: str) -> None:
        self.root = root
        for name in ("program", "work", "tmp"):
            (root / name).mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUEST / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **env},
            cwd=root / "work",
        )
        self.number = 0
        self.nonce = ""

    def ask(self, request: dict[str, Any], last: str, nonce: str = "") -> list[dict[str, Any]]:
        """Send a request and return the lines of the reply up to the one that holds `last`."""
        assert self.process.stdin is not None
        self.number += 1
        self.nonce = nonce or secrets.token_hex(16)
        self.process.stdin.write(json.dumps({"id": self.number, "nonce": self.nonce, **request}).encode() + b"\n")
        self.process.stdin.flush()
        return self.until(last)

    def until(self, last: str) -> list[dict[str, Any]]:
        """Return the lines of the reply up to the one that holds `last`."""
        assert self.process.stdout is not None
        lines = []
        while line := self.process.stdout.readline():
            lines.append(json.loads(line))
            assert (lines[-1]["id"], lines[-1]["nonce"]) == (self.number, self.nonce)
            if last in lines[-1]:
                return lines
        raise AssertionError(f"the worker left with {self.process.wait()} after {lines}")

    def say(self, op: str, number: int | None = None) -> None:
        """Send a line that belongs to the request at hand, or to another one."""
        assert self.process.stdin is not None
        line = {"op": op, "id": self.number if number is None else number}
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def load(self, source: str, operation: str = "solve", *, last: str = "loaded", **more: Any) -> dict[str, Any]:
        (self.root / "program" / "main.py").write_text(source)
        request = {
            "op": "load", "operation": operation, "program": str(self.root / "program"), "entry": "main.py",
            "command": [], "mode": "online", "train": [], "limits": asdict(LIMITS), "work": str(self.root / "work"),
            "scratch": [str(self.root / "work"), str(self.root / "tmp"), str(self.root / "precious")], "smoke": False,
        }  # fmt: skip
        return self.ask({**request, **more}, last)[-1]

    def trial(self, value: Any, operation: str = "solve", nonce: str = "") -> dict[str, Any]:
        return self.ask({"op": "trial", "operation": operation, "input": value, "seed": 0}, "done", nonce)[-1]

    def answer(self, value: Any) -> Any:
        report = self.trial(value)
        assert report["outcome"] == "ok", report
        return json.loads(report["raw"])


@contextmanager
def worker_in(root: Path, **env: str) -> Iterator[Worker]:
    """Start a worker in a folder; it is gone afterwards."""
    worker = Worker(root, **env)
    try:
        yield worker
    finally:
        assert worker.process.stdin is not None
        assert worker.process.stdout is not None
        worker.process.stdin.close()
        worker.process.stdout.close()
        worker.process.wait(timeout=30)
