"""Reading: a file with line numbers, or a folder two levels deep."""

from __future__ import annotations

import os

from coder.files import FileProblem, read_bytes, text_of

LINES = 400
LINE_CHARS = 500
ENTRIES = 300


def read(path: str, start: int = 1, end: int | None = None, chars: int = 16_000) -> tuple[str, str]:
    """Return (numbered lines `start` to `end`, a note on what was shown); a folder is listed instead.

    Lines count from 1, an `end` of -1 is the last line, and without one at most `LINES` are shown.
    """
    if os.path.isdir(path):
        return folder(path)
    lines = lines_of(text_of(read_bytes(path), path))
    total = len(lines)
    if total == 0:
        return "", "the file is empty"
    last = min(total, start + LINES - 1) if end is None else total if end == -1 else end
    if not 1 <= start <= total or last < start:
        raise FileProblem(
            f"lines {start} to {end} do not fit: the file has {total} lines; end may be -1 for the last one"
        )
    last = min(last, total)
    shown: list[str] = []
    size = 0
    for number in range(start, last + 1):
        line = f"{number:>6}\t{short(lines[number - 1])}"
        size += len(line) + 1
        if shown and size > chars:
            last = number - 1
            break
        shown.append(line)
    note = f"lines {start} to {last} of {total}"
    if lines[-1][-1:] != "\n" and last == total:
        note += "; no line end after the last line"
    if any(line.endswith("\r\n") for line in lines):
        note += "; lines end with CR LF"
    return "\n".join(shown), note


def lines_of(text: str) -> list[str]:
    """Return lines with their ends; only LF ends one.

    >>> lines_of("a\\r\\nb\\x0cc")
    ['a\\r\\n', 'b\\x0cc']
    """
    pieces = text.split("\n")
    lines = [piece + "\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


def short(line: str) -> str:
    """Return a line without its end, a long one cut."""
    line = line.removesuffix("\n").removesuffix("\r")
    if len(line) <= LINE_CHARS:
        return line
    return f"{line[:LINE_CHARS]} [... {len(line) - LINE_CHARS} more characters in this line]"


def folder(path: str) -> tuple[str, str]:
    """Return what is in a folder, two levels deep, without hidden names; folders end with a slash."""
    found: list[str] = []
    try:
        for name in _names(path):
            inner = os.path.join(path, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                found.append(name + "/")
                found += [
                    f"{name}/{below}" + ("/" if os.path.isdir(os.path.join(inner, below)) else "")
                    for below in _names(inner)
                ]
            else:
                found.append(name)
    except OSError as error:
        raise FileProblem(f"cannot list {path}: {error.strerror}") from None
    if not found:
        return "", "the folder is empty, hidden names apart"
    note = f"{len(found)} entries in two levels, hidden ones left out"
    if len(found) > ENTRIES:
        note += f"; only the first {ENTRIES} are shown"
    return "\n".join(found[:ENTRIES]), note


def _names(path: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if not name.startswith("."))
