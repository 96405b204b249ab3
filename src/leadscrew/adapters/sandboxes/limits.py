"""Keeping the limits of a box: a control group (version 1 or 2) where one can be made, else a watchdog over the tree.

A `Meter` belongs to one box. It says what the tree has used and whether it broke its memory or process limit, and it
can kill what is left of the tree. CPU and wall time are watched by the box itself, from what its meter says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from leadscrew.adapters.sandboxes import tree
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome

Keeping = Literal["auto", "cgroup", "watchdog"]
"""How limits are kept: `auto` takes a control group if one can be made; the others insist."""

WATCHDOG_S = 0.05
"""How often the watchdog looks at a tree."""


class Meter(Protocol):
    """What keeps the limits of one box."""

    enter: tuple[str, ...]
    """Files into which the first process writes `0` before it becomes the box: it joins these control groups."""
    interval: float
    """How often the box should ask, in seconds."""
    by: str
    """What keeps the limits, for the report."""

    def attach(self, pid: int) -> None:
        """Name the first process of the tree."""

    def cpu_s(self) -> float:
        """Return the CPU seconds of the whole tree so far, ended processes included."""

    def broken(self) -> Outcome | None:
        """Return `oom` for too much memory, `crash` for too many processes, None if all is well."""

    def alive(self) -> bool:
        """Say whether any process of the tree is left."""

    def kill(self) -> None:
        """Send SIGKILL to every process that is left."""

    def close(self) -> None:
        """Free what the meter holds; the tree must be dead."""


class Watchdog:
    """A meter without privileges: it sums the tree every 50 ms and has the box killed when a sum is too high.

    Memory is the sum of resident pages, shared ones divided among their users before anybody is blamed. In between a
    process can take more than its share for 50 ms; `RLIMIT_DATA` at twice the limit bounds that.
    """

    enter: tuple[str, ...] = ()
    interval = WATCHDOG_S
    by = "watchdog"

    def __init__(self, limits: Limits, find: Callable[[int], Sequence[int]] = tree.descendants) -> None:
        self._limits = limits
        self._find = find
        self._root = 0
        self._seen: dict[int, tuple[int, float]] = {}
        self._peak = 0.0

    def attach(self, pid: int) -> None:
        self._root = pid

    def cpu_s(self) -> float:
        self._scan()
        return self._peak

    def broken(self) -> Outcome | None:
        members = self._scan()
        limit = self._limits.memory_mb << 20
        if sum(m.resident for m in members.values()) > limit and sum(map(tree.proportional, members)) > limit:
            return Outcome.OOM
        if sum(m.virtual for m in members.values()) > limit and self._hidden(members) > limit:
            return Outcome.OOM
        if sum(m.threads for m in members.values()) > self._limits.processes + OWN_PROCESSES:
            return Outcome.CRASH
        return None

    def _hidden(self, pids: Iterable[int]) -> int:
        """Memory that may be held in shared mappings, resident or not, with what is private beside it."""
        held = tree.shared(pids)
        return held and held + sum(map(tree.private, pids))

    def alive(self) -> bool:
        return any(self._is_alive(pid, started) for pid, (started, _) in self._seen.items())

    def kill(self) -> None:
        self._scan()
        for pid, (started, _) in self._seen.items():
            tree.kill(pid, started)

    def close(self) -> None:
        self._seen = {}

    def _scan(self) -> dict[int, tree.Usage]:
        if not self._root:
            return {}
        members = {}
        for pid in self._find(self._root):
            now = tree.usage(pid)
            if now is not None and not now.zombie:
                members[pid] = now
        for pid, now in members.items():
            self._seen[pid] = (now.started, now.cpu_s)
        # Children waited for count in their parent; those reaped without a wait only in what was seen of them.
        waited = sum(m.cpu_s + m.children_cpu_s for m in members.values())
        seen = sum(cpu for _, cpu in self._seen.values())
        self._peak = max(self._peak, waited, seen)
        return members

    def _is_alive(self, pid: int, started: int) -> bool:
        now = tree.usage(pid)
        return now is not None and now.started == started and not now.zombie


OWN_PROCESSES = 3
"""Processes of the sandbox itself in the tree: the monitor, the first of the pid namespace, and one to spare."""


def rlimits(limits: Limits, *, watchdog: bool) -> str:
    """Return the shell commands that set the per-process limits every box has, before it starts."""
    commands = ["ulimit -c 0", f"ulimit -f {limits.file_mb * 2048}"]
    if watchdog:
        commands.append(f"ulimit -d {limits.memory_mb * 2048 + 65536}")
    return " && ".join(commands)


def launcher(argv: Sequence[str], limits: Limits, meter: Meter) -> list[str]:
    """Return `argv` behind a few lines of shell that join the control groups, set limits per process, and vanish.

    A shell, because code between fork and exec of a threaded program is unsafe and another Python would cost 10 ms.
    """
    joins = "".join(f' && echo 0 >"${{{n}}}"' for n in range(1, len(meter.enter) + 1))
    script = f'{rlimits(limits, watchdog=not meter.enter)}{joins} && shift {len(meter.enter)} && exec "$@"'
    return ["/bin/sh", "-c", script, "sh", *meter.enter, *argv]


def describe_common(limits_kept_by: str) -> Mapping[str, str]:
    """Return how the limits that every backend keeps alike are kept."""
    return {
        "cpu": f"{limits_kept_by}: CPU seconds of the whole tree, the tree is killed",
        "wall": "timer of the engine: the tree is killed",
        "file_size": "RLIMIT_FSIZE per file",
        "core_dumps": "RLIMIT_CORE 0",
    }


def own_processors() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0))
