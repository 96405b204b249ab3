"""What happens, one JSON object a line: into the transcript, flushed at once, and onto standard output."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO


class Events:
    """Writes events to a file and a stream. A reader that went away does not stop the session; the file does not."""

    def __init__(self, path: str, stream: TextIO | None = None) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the session
        self._stream = stream if stream is not None else sys.stdout
        self._listening = True
        self._number = 0

    def write(self, kind: str, **values: Any) -> None:
        """Write one event; `n` counts them, `time` is the wall clock in seconds."""
        event = {"type": kind, "n": self._number, "time": round(time.time(), 3), **values}
        self._number += 1
        line = json.dumps(event, ensure_ascii=True, default=str) + "\n"
        self._file.write(line)
        self._file.flush()
        if self._listening:
            try:
                self._stream.write(line)
                self._stream.flush()
            except OSError:
                self._listening = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()
