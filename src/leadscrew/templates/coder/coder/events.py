"""What happens, one JSON object a line: into the transcript, flushed at once, and onto standard output."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any, TextIO


class Events:
    """Writes events to a file and a stream. One that takes no more (a reader that left, a full disk) is said once on
    standard error, and does not stop the session.
    """

    def __init__(self, path: str, stream: TextIO | None = None) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the session
        self._targets = [self._file, stream if stream is not None else sys.stdout]
        self._number = 0

    def write(self, kind: str, **values: Any) -> None:
        """Write one event; `n` counts them, `time` is the wall clock in seconds."""
        event = {"type": kind, "n": self._number, "time": round(time.time(), 3), **values}
        self._number += 1
        line = json.dumps(event, ensure_ascii=True, default=str) + "\n"
        for target in list(self._targets):
            try:
                target.write(line)
                target.flush()
            except OSError as error:
                self._targets.remove(target)
                print(f"no more events to {getattr(target, 'name', 'a stream')}: {error}", file=sys.stderr)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what a full disk did not take
            self._file.close()
