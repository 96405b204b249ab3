"""The coder's tree as the tests use it: found by path, imported from there, or started as a process."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[3] / "src" / "leadscrew" / "templates" / "coder"


def part(name: str) -> Any:
    """Import one file of the tree, leaving no byte code in it."""
    if str(TREE) not in sys.path:
        sys.path.append(str(TREE))
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        return importlib.import_module(f"coder.{name}")
    finally:
        sys.dont_write_bytecode = before


@dataclass(frozen=True)
class Finished:
    """How a session ended: exit code, events on standard output, standard error, the transcript's events."""

    code: int
    events: list[dict[str, Any]]
    stderr: str
    transcript: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one type."""
        return [event for event in self.events if event["type"] == kind]

    @property
    def end(self) -> dict[str, Any]:
        """The last event."""
        assert self.events[-1]["type"] == "end"
        return self.events[-1]


def start(work: Path, task: dict[str, Any], env: dict[str, str] | None = None) -> Finished:
    """Run `main.py` on a task in `work`, in an environment of its own, as in a box."""
    (work / "task.json").write_text(json.dumps(task), encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **(env or {})}
    done = subprocess.run(
        [sys.executable, "-I", str(TREE / "main.py"), str(work / "task.json")],
        cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    transcript = work / ".coder" / "transcript.jsonl"
    return Finished(done.returncode, _events(done.stdout), done.stderr, _events(transcript.read_text(encoding="utf-8")))


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
