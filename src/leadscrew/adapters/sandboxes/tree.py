"""Looking at a process tree through /proc: its members, what they use, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """One process: its parent, when it started (ticks since boot), CPU seconds of its own and of children it has waited
    for, threads, resident bytes, whether it is only a zombie, and bytes of address space."""

    parent: int
    started: int
    cpu_s: float
    children_cpu_s: float
    threads: int
    resident: int
    zombie: bool
    virtual: int = 0


def usage(pid: int) -> Usage | None:
    """Return what a process uses, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return Usage(
        parent=int(fields[1]),
        started=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        children_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS,
        threads=int(fields[17]),
        resident=int(fields[21]) * _PAGE,
        zombie=fields[0] in (b"Z", b"X"),
        virtual=int(fields[20]),
    )


def proportional(pid: int) -> int:
    """Return the bytes of memory a process is answerable for: shared pages are divided among their users."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(words[1]) - int(words[2])) * _PAGE
    return 0


def shared(pids: Iterable[int]) -> int:
    """Return the bytes of anonymous memory that processes have mapped to share it, each such object once.

    Its pages stay when a process drops them from its resident set, so only its size says what it may hold.
    """
    found: dict[bytes, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
                if line.endswith(b"/dev/zero (deleted)"):
                    span, _, offset, _, inode = line.split()[:5]
                    first, _, last = span.partition(b"-")
                    end = int(offset, 16) + int(last, 16) - int(first, 16)
                    found[inode] = max(found.get(inode, 0), end)
    return sum(found.values())


def private(pid: int) -> int:
    """Return `proportional` without memory that is shared on purpose, where the kernel tells it apart."""
    with contextlib.suppress(OSError, ValueError):
        rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()[1:])
        sizes = {row[0]: int(row[1]) * 1024 for row in rows if len(row) > 1}
        return sizes[b"Pss:"] - sizes.get(b"Pss_Shmem:", sizes[b"Pss:"])
    return 0


def descendants(root: int) -> list[int]:
    """Return `root` and everything below it. Inside a pid namespace orphans stay below its first process."""
    children = _children if _LISTS_CHILDREN else _by_parent().__getitem__
    found, open_ = [], [root]
    while open_:
        pid = open_.pop()
        found.append(pid)
        open_.extend(children(pid))
    return found


_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()
"""Whether the kernel was built with CONFIG_PROC_CHILDREN; without it, all of /proc must be read."""


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()
                found.extend(int(word) for word in words)
    return found


def _by_parent() -> defaultdict[int, list[int]]:
    below: defaultdict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            now = usage(int(name))
            if now is not None:
                below[now.parent].append(int(name))
    return below


def tagged(tag: str) -> list[int]:
    """Return every process of ours whose first environment holds `tag`, wherever it has moved to."""
    needle, found = tag.encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if needle in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
    return found


def kill(pid: int, started: int | None = None) -> None:
    """Send SIGKILL to a process, unless the number now belongs to another one."""
    if started is not None:
        now = usage(pid)
        if now is None or now.started != started:
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
