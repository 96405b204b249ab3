"""The writer's lock of a run folder: one live process holds it, and the kernel frees it when that process dies."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from leadscrew.errors import BusyError

_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """An exclusive `flock` on `RUN/lock`; the file holds the process id of the holder.

    Raises `BusyError` with that id if another process holds it. The descriptor is closed in every child process, forked
    or started, so that no child can keep the run busy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self._forget()
            raise BusyError(
                f"the run {str(path.parent)!r} is being written by process {holder}. "
                "Wait until it ends or stop it with `leadscrew stop`; reading the run works meanwhile."
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)
        _held.add(self)

    def release(self) -> None:
        """Free the lock. Calling it again does nothing."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            # Unlocked in so many words: a child that was forked a moment ago may not have closed its copy yet.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._forget()

    def _forget(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _close_in_child() -> None:
    # A forked child shares the open file description: without this it would hold the lock after its parent's death.
    for lock in list(_held):
        lock._forget()


os.register_at_fork(after_in_child=_close_in_child)
