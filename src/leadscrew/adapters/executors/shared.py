"""What a loaded program shares with the processes forked from it, seen from the host.

Trials are forked from one loaded process, so memory that is private to it cannot carry anything from one trial to the next.
Shared mappings, open files, pipes and threads made while loading could. The box's own processes are no witnesses, so
the host looks: it may, because it owns the user namespace of the box.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence


def shared_by(root: int, inner: int, pipes: Collection[Sequence[int]]) -> str:
    """Say what the process numbered `inner` inside the box below `root` shares; empty if nothing or if nobody can tell.

    `pipes` are mount and inode number of what it has from its supervisor.
    """
    pid = _find(root, inner)
    if pid is None:
        return ""
    try:
        if len(os.listdir(f"/proc/{pid}/task")) > 1:
            return "threads"
        ours = {(mount, inode) for mount, inode in pipes}
        for name in os.listdir(f"/proc/{pid}/fdinfo"):
            # The folder `fd` would say more, but an ordinary user may not read that of a process closed to dumps.
            if _identity(f"/proc/{pid}/fdinfo/{name}") not in ours:
                return f"an open file (descriptor {name})"
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                if line.split(maxsplit=2)[1].endswith("s"):
                    return f"a shared mapping ({line.split(maxsplit=5)[-1].strip()})"
    except (OSError, KeyError):
        return ""  # gone, or not ours to look at: then the rerun in fresh boxes alone finds such programs
    return ""


def _identity(path: str) -> tuple[int, int]:
    with open(path, encoding="ascii", errors="replace") as lines:
        words = dict(line.split(maxsplit=1) for line in lines if line.startswith(("mnt_id:", "ino:")))
    return int(words["mnt_id:"]), int(words["ino:"])


def _find(root: int, inner: int) -> int | None:
    """Return the host's number of the process that its own innermost namespace calls `inner`."""
    for pid in _below(root):
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
                numbers = next((line.split()[1:] for line in status if line.startswith("NSpid:")), [])
        except OSError:
            continue
        if numbers and int(numbers[-1]) == inner:
            return pid
    return None


def _below(pid: int) -> Iterator[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                found = [int(child) for child in children.read().split()]
        except OSError:
            continue
        for child in found:
            yield child
            yield from _below(child)
