"""Searching: lines that match a pattern, and files by name, both with limits and in a fixed order."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import signal
import threading
from collections.abc import Iterator

from coder.files import FileProblem

MATCHES = 100
FILES = 200
LINE_BYTES = 200_000
"""What lies beyond in a line is not searched."""
SHOWN = 300
SECONDS = 20
SKIPPED = ("__pycache__", "node_modules")


def grep(
    root: str, pattern: str, *, glob: str = "*", literal: bool = False, ignore_case: bool = False
) -> tuple[str, str]:
    """Return matching lines below `root` as `path:line: text`, and a note."""
    try:
        wanted = re.compile(re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise FileProblem(
            f"{pattern!r} is no regular expression: {error}; with literal=true it is taken as it stands"
        ) from None
    scan = _Scan(wanted, glob)
    note = ""
    try:
        with _limit(SECONDS):
            scan.run(root)
    except _TooLong:
        note = f"; stopped after {SECONDS} s, narrow the pattern or the folder"
    if len(scan.found) >= MATCHES:
        note += f"; stopped after {MATCHES} matches, narrow the pattern or the folder"
    binary = f", {scan.binary} binary or unreadable files left out" if scan.binary else ""
    return "\n".join(
        scan.found[:MATCHES]
    ), f"{len(scan.found)} matching lines in {scan.files} files searched{binary}{note}"


class _TooLong(Exception):
    """The search took too long."""


class _Scan:
    """One search; what it has found so far stays when it is stopped."""

    def __init__(self, wanted: re.Pattern[str], glob: str) -> None:
        self._wanted, self._glob = wanted, glob
        self.found: list[str] = []
        self.files = self.binary = 0

    def run(self, root: str) -> None:
        """Search all files below `root`, until there are enough matches."""
        for path in _files(root):
            if not matches(os.path.relpath(path, root) if os.path.isdir(root) else os.path.basename(path), self._glob):
                continue
            self.files += 1
            lines = _matching(path, self._wanted, MATCHES - len(self.found))
            if lines is None:
                self.binary += 1
            else:
                self.found += [f"{path}:{line}" for line in lines]
            if len(self.found) >= MATCHES:
                return


def find(root: str, glob: str) -> tuple[str, str]:
    """Return the files below `root` whose path from there matches, with their sizes in bytes."""
    found = []
    for path in _files(root):
        name = os.path.relpath(path, root)
        if matches(name, glob):
            with contextlib.suppress(OSError):  # it went meanwhile
                found.append(f"{path} ({os.path.getsize(path)} bytes)")
    note = f"{len(found)} files, hidden ones left out"
    if len(found) > FILES:
        note += f"; only the first {FILES} are shown"
    return "\n".join(found[:FILES]), note


def matches(name: str, glob: str) -> bool:
    """Whether a relative path matches: `**` stands for any folders, a pattern without slash for the last part.

    >>> matches("a/b/c.py", "*.py"), matches("a/b/c.py", "a/**/*.py"), matches("a/c.py", "a/**/*.py"), matches("a/c.py", "b/*")
    (True, True, True, False)
    """
    if "/" not in glob:
        return fnmatch.fnmatchcase(os.path.basename(name), glob)
    return _match(name.split("/"), glob.removeprefix("./").split("/"))


def _match(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_match(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _match(parts[1:], pattern[1:])


def _files(root: str) -> Iterator[str]:
    """Yield the regular files below a folder in order, without hidden ones and without following links."""
    if os.path.isfile(root):
        yield root
        return
    if not os.path.isdir(root):
        raise FileProblem(f"there is no {root}")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in SKIPPED)
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not name.startswith(".") and os.path.isfile(path) and not os.path.islink(path):
                yield path


def _matching(path: str, wanted: re.Pattern[str], most: int) -> list[str] | None:
    """Return `number: text` of the matching lines of a file, None for a binary one. Long lines are shown around the match."""
    found = []
    try:
        with open(path, "rb") as file:
            if b"\0" in file.read(8192):
                return None
            file.seek(0)
            for number, line in enumerate(file, 1):
                text = line[:LINE_BYTES].decode("utf-8", "backslashreplace").rstrip("\r\n")
                match = wanted.search(text)
                if match:
                    found.append(f"{number}: {_window(text, match.start())}")
                    if len(found) >= most:
                        break
    except OSError:
        return None
    return found


def _window(text: str, at: int) -> str:
    if len(text) <= SHOWN:
        return text
    start = max(0, min(at - SHOWN // 3, len(text) - SHOWN))
    end = start + SHOWN
    left, right = ("..." if start else ""), ("..." if end < len(text) else "")
    return f"{left}{text[start:end]}{right} [line of {len(text)} characters]"


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise `_TooLong` inside after so long: a regular expression can take for ever. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
