"""Control groups for boxes: versions 1 and 2, told apart by what is mounted and tried before use."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from leadscrew.adapters.sandboxes import tree
from leadscrew.adapters.sandboxes.limits import OWN_PROCESSES
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome

_NEEDED = ("memory", "pids", "cpuacct")
_count = itertools.count()


@dataclass(frozen=True, slots=True)
class Places:
    """Folders under which groups can be made: the same for everything (version 2) or one per controller (version 1)."""

    version: int
    parents: Mapping[str, str]


class Cgroup:
    """A meter that is a control group. The kernel refuses memory and processes beyond the limit, for the whole tree.

    The memory limit covers `memory_mb` of programs and `workspace_mb` of files, since a workspace lives in memory.
    """

    interval = 0.1

    def __init__(self, places: Places, limits: Limits) -> None:
        name = f"leadscrew-{os.getpid()}-{_TOKEN}-{next(_count)}"
        self._version, self.by = places.version, f"cgroup v{places.version}"
        self._at = {what: f"{parent}/{name}" for what, parent in places.parents.items()}
        self._last_cpu = 0.0
        self._oom = False
        memory = (limits.memory_mb + limits.workspace_mb) << 20
        tasks = limits.processes + OWN_PROCESSES
        try:
            for folder in dict.fromkeys(self._at.values()):
                os.mkdir(folder)
            if places.version == 2:
                group = self._at["memory"]
                _write(f"{group}/memory.max", memory)
                with contextlib.suppress(OSError):  # absent without swap accounting
                    _write(f"{group}/memory.swap.max", 0)
                with contextlib.suppress(OSError):  # before Linux 4.19
                    _write(f"{group}/memory.oom.group", 1)
            else:
                group = self._at["memory"]
                _write(f"{group}/memory.limit_in_bytes", memory)
                with contextlib.suppress(OSError):  # absent without swap accounting
                    _write(f"{group}/memory.memsw.limit_in_bytes", memory)
            _write(f"{self._at['pids']}/pids.max", tasks)
        except OSError:
            self.close()
            raise
        self.enter = tuple(f"{folder}/cgroup.procs" for folder in dict.fromkeys(self._at.values()))

    def attach(self, pid: int) -> None:
        """Nothing to do: the first process joined by itself."""

    def cpu_s(self) -> float:
        with contextlib.suppress(OSError):
            if self._version == 2:
                found = re.search(r"usage_usec (\d+)", _read(f"{self._at['cpuacct']}/cpu.stat"))
                self._last_cpu = int(found[1]) / 1e6 if found else self._last_cpu
            else:
                self._last_cpu = int(_read(f"{self._at['cpuacct']}/cpuacct.usage")) / 1e9
        return self._last_cpu

    def broken(self) -> Outcome | None:
        if not self._oom:
            file = "memory.events" if self._version == 2 else "memory.oom_control"
            with contextlib.suppress(OSError):
                found = re.search(r"oom_kill (\d+)", _read(f"{self._at['memory']}/{file}"))
                self._oom = bool(found and int(found[1]))
        return Outcome.OOM if self._oom else None

    def alive(self) -> bool:
        return bool(self._members())

    def kill(self) -> None:
        if self._version == 2:
            try:
                _write(f"{self._at['pids']}/cgroup.kill", 1)
                return
            except OSError:
                pass  # before Linux 5.14
        for pid in self._members():
            tree.kill(pid)

    def close(self) -> None:
        for folder in dict.fromkeys(self._at.values()):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(folder)

    def _members(self) -> list[int]:
        try:
            return [int(word) for word in _read(self.enter[0]).split()]
        except FileNotFoundError:
            return []


_TOKEN = secrets.token_hex(3)


def find() -> Places | None:
    """Return where groups can be made, having made one, entered it and removed it; None if that is not possible."""
    return _find()


@lru_cache(maxsize=1)
def _find() -> Places | None:
    for places in _candidates(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()):
        if _works(places):
            _sweep(places)
            return places
    return None


def _candidates(mountinfo: str, own: str) -> list[Places]:
    """Read the two files of /proc/self and return the places worth trying, best first."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        words, kinds = left.split(), right.split()
        if len(words) < 5 or len(kinds) < 3:
            continue
        if kinds[0] == "cgroup2":
            mounts[""] = (words[3], words[4])
        elif kinds[0] == "cgroup":
            for controller in kinds[2].split(","):
                mounts[controller] = (words[3], words[4])
    paths: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path

    def folder(controller: str) -> str | None:
        if controller not in mounts or controller not in paths:
            return None
        root, at = mounts[controller]
        path = paths[controller]
        inside = path[len(root) :] if root != "/" and path.startswith(root) else path
        return (at + "/" + inside.strip("/")).rstrip("/")

    found: list[Places] = []
    unified = folder("")
    if unified is not None:
        top = mounts[""][1]
        while True:
            with contextlib.suppress(OSError):
                enabled = _read(f"{unified}/cgroup.subtree_control").split()
                if "memory" in enabled and "pids" in enabled:
                    found.append(Places(2, dict.fromkeys(_NEEDED, unified)))
            if unified == top or not unified.startswith(top):
                break
            unified = os.path.dirname(unified)
    old = {controller: folder(controller) for controller in _NEEDED}
    if all(old.values()):
        found.append(Places(1, {k: v for k, v in old.items() if v}))
    return found


def _works(places: Places) -> bool:
    """Make a group, let a process enter it, and remove it."""
    try:
        group = Cgroup(places, Limits())
    except OSError:
        return False
    try:
        script = " && ".join(f'echo 0 >"{file}"' for file in group.enter)
        return subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=False).returncode == 0
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.close()
                break


def _sweep(places: Places) -> None:
    """Remove empty groups that an engine left behind when it was killed."""
    for parent in dict.fromkeys(places.parents.values()):
        for name in os.listdir(parent):
            found = re.fullmatch(r"leadscrew-(\d+)-[0-9a-f]+-\d+", name)
            if found and not os.path.exists(f"/proc/{found[1]}"):
                with contextlib.suppress(OSError):
                    os.rmdir(f"{parent}/{name}")


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, value: int) -> None:
    with open(path, "w") as file:
        file.write(str(value))
