"""How often each test split was ever opened, across runs: one line per opening in the user's cache folder."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO

from leadscrew.errors import InfrastructureError


def _ends_line(stream: IO[bytes]) -> bool:
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) == b"\n"


class Ledger:
    """An append-only file of openings. Two runs may write at once; a line is on disk before `record` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, split_digest: str, run: str, when: str) -> int:
        """Add an opening of a test split by a run, once per run, and return how many runs opened it so far.

        Raises `InfrastructureError` if the ledger cannot be written: an opening must never go uncounted.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                runs = self._runs(stream, split_digest)
                if run not in runs:
                    line = json.dumps({"split": split_digest, "run": run, "when": when}) + "\n"
                    # A torn last line must not swallow this one.
                    stream.seek(0, os.SEEK_END)
                    if stream.tell() and not _ends_line(stream):
                        line = "\n" + line
                    stream.write(line.encode())
                    stream.flush()
                    os.fsync(stream.fileno())
                return len(runs | {run})
        except OSError as error:
            raise InfrastructureError(
                f"the ledger of test openings at {self._path} cannot be written ({error.strerror}), so the test stays "
                "sealed. Make the folder writable, or set XDG_CACHE_HOME to one that is."
            ) from error

    @staticmethod
    def _runs(stream: IO[bytes], split_digest: str) -> set[str]:
        stream.seek(0)
        runs: set[str] = set()
        for line in stream:
            try:
                entry = json.loads(line)
            except ValueError:
                # A line torn by a crash: that opening was never acknowledged, and its run will record it again.
                continue
            if entry.get("split") == split_digest:
                runs.add(entry["run"])
        return runs
