"""Processes that a shell has started, found in /proc and ended without mercy."""

from __future__ import annotations

import contextlib
import os
import signal

MARK = "CODER_SHELL"
"""Every process below a shell carries this variable; so also those are found that left its session and its family."""


def all_pids() -> set[int]:
    """Return the ids of all processes that can be seen; empty without /proc."""
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except FileNotFoundError:
        return set()


def started_by(shell: int, mark: str) -> set[int]:
    """Return all processes of a shell but itself: its descendants, its session, and what carries its mark."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] in (b"Z", b"X"):  # dead, and only waiting to be taken away
                continue
            parents[pid] = int(fields[1])
            if int(fields[3]) == shell:
                found.add(pid)
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                    found.add(pid)
        except (OSError, IndexError):  # it ended meanwhile, or belongs to somebody else
            continue
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != shell:
            ancestor = parents[ancestor]
        if ancestor == shell:
            found.add(pid)
    return found - {shell, os.getpid()}


def send(pids: set[int], number: signal.Signals) -> None:
    """Send a signal to all; who is gone already is no matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill(shell: int, mark: str, spared: set[int]) -> None:
    """Kill all processes of a shell but itself and the spared ones, again while something was just being started."""
    for _ in range(50):
        left = started_by(shell, mark) - spared
        if not left:
            return
        send(left, signal.SIGKILL)
