"""The editor: view, create, replace, insert, undo. It changes what it is asked to change, and not a byte more."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from coder import reader
from coder.files import FileProblem, Places, bytes_of, make_folders, mode_of, read_bytes, text_of, write_bytes

AROUND = 3
"""Lines shown before and after a change."""
MOST_STEPS = 100
_BARE_LF = re.compile(r"(?<!\r)\n")


@dataclass(frozen=True)
class Step:
    """One change that can be taken back: content and mode before it (None: there was no file), content after it."""

    before: bytes | None
    mode: int
    after: bytes
    folders: tuple[str, ...] = ()


class Editor:
    """Edits files in the writable place and remembers the steps."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._steps: dict[str, list[Step]] = {}

    def view(self, path: str, start: int = 1, end: int | None = None, chars: int = 16_000) -> tuple[str, str]:
        """Return lines with numbers, or a folder's entries, and a note."""
        return reader.read(self._places.readable(path), start, end, chars)

    def create(self, path: str, text: str, *, overwrite: bool = False) -> tuple[str, str]:
        """Write a new file; an existing one only if `overwrite` says so."""
        real = self._places.writable(path)
        if os.path.isdir(real):
            raise FileProblem(f"{path} is a folder")
        before, mode = None, None
        if os.path.exists(real):
            if not overwrite:
                raise FileProblem(f"{path} exists; use str_replace or insert, or create with overwrite=true")
            before, mode = read_bytes(real), mode_of(real)
        data = bytes_of(text)
        folders = make_folders(real)
        self._write(real, Step(before, mode or 0, data, tuple(folders)), mode)
        return "", f"{'created' if before is None else 'replaced'} {path}, {len(reader.lines_of(text))} lines"

    def str_replace(self, path: str, old: str, new: str) -> tuple[str, str]:
        """Replace `old`, which must occur exactly once. In a file with CR LF throughout, LF in both means CR LF."""
        real, data, text = self._open(path)
        if not old:
            raise FileProblem("old is empty; give the text that is to be replaced")
        if _all_crlf(text):
            old, new = _BARE_LF.sub("\r\n", old), _BARE_LF.sub("\r\n", new)
        places = _occurrences(text, old)
        if not places:
            raise FileProblem(f"old does not occur in {path}. {_near(text, old)}")
        if len(places) > 1:
            numbers = ", ".join(str(text.count("\n", 0, place) + 1) for place in places[:20])
            raise FileProblem(
                f"old occurs {len(places)} times in {path}, beginning on lines {numbers}; make it longer, so that it occurs once"
            )
        if old == new:
            raise FileProblem("old and new are equal; nothing would change")
        at = places[0]
        changed = text[:at] + new + text[at + len(old) :]
        self._write(real, Step(data, mode_of(real), bytes_of(changed)), mode_of(real))
        return _around(changed, at, len(new)), f"replaced in {path}"

    def insert(self, path: str, line: int, text: str) -> tuple[str, str]:
        """Insert `text` after line `line`; 0 is the top."""
        real, data, old = self._open(path)
        lines = reader.lines_of(old)
        if not 0 <= line <= len(lines):
            raise FileProblem(
                f"line {line} does not exist: {path} has {len(lines)} lines, so 0 to {len(lines)} can be given"
            )
        if not text:
            raise FileProblem("text is empty; nothing would change")
        end = "\r\n" if _all_crlf(old) else "\n"
        if end == "\r\n":
            text = _BARE_LF.sub(end, text)
        before, after = "".join(lines[:line]), "".join(lines[line:])
        if before and not before.endswith("\n"):
            before += end
        if after and not text.endswith("\n"):
            text += end
        changed = before + text + after
        self._write(real, Step(data, mode_of(real), bytes_of(changed)), mode_of(real))
        return _around(changed, len(before), len(text)), f"inserted into {path}"

    def undo(self, path: str) -> tuple[str, str]:
        """Take back the last change of a file by this editor, to the byte; a file that it had created goes."""
        real = self._places.writable(path)
        steps = self._steps.get(real, [])
        if not steps:
            raise FileProblem(f"there is no change of {path} by this editor left to take back")
        step = steps[-1]
        if not os.path.isfile(real) or read_bytes(real) != step.after:
            raise FileProblem(
                f"{path} was changed by something else since; taking the older change back would lose that"
            )
        if step.before is None:
            os.unlink(real)
            for folder in reversed(step.folders):
                with contextlib.suppress(OSError):  # something else lies in it by now
                    os.rmdir(folder)
            note = f"took back the creation of {path}: it is gone"
        else:
            write_bytes(real, step.before, step.mode)
            note = f"took back the last change of {path}"
        steps.pop()
        return "", f"{note}; {len(steps)} more can be taken back"

    def _open(self, path: str) -> tuple[str, bytes, str]:
        real = self._places.writable(path)
        data = read_bytes(real)
        return real, data, text_of(data, path)

    def _write(self, real: str, step: Step, mode: int | None) -> None:
        try:
            write_bytes(real, step.after, mode)
        except FileProblem:
            for folder in reversed(step.folders):
                os.rmdir(folder)
            raise
        steps = self._steps.setdefault(real, [])
        steps.append(step)
        del steps[:-MOST_STEPS]


def _all_crlf(text: str) -> bool:
    return "\r\n" in text and not _BARE_LF.search(text)


def _occurrences(text: str, part: str) -> list[int]:
    """Return where `part` begins, overlapping places included: each of them makes the place ambiguous."""
    places = []
    at = text.find(part)
    while at >= 0:
        places.append(at)
        at = text.find(part, at + 1)
    return places


def _near(text: str, old: str) -> str:
    """Return a hint: lines that are equal to the first line of `old` but for white space."""
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = [n for n, line in enumerate(text.split("\n"), 1) if first and line.strip() == first]
    if lines:
        return f"Its first line stands, white space aside, on lines {lines[:10]}; copy it exactly, tabs and spaces included"
    return "View the file and copy the text exactly, without the line numbers"


def _around(text: str, at: int, length: int) -> str:
    """Return the changed lines and a few around them, numbered."""
    lines = reader.lines_of(text)
    first = text.count("\n", 0, at)
    last = first + text.count("\n", at, at + length)
    start, stop = max(0, first - AROUND), min(len(lines), last + AROUND + 1)
    return "\n".join(f"{number + 1:>6}\t{reader.short(lines[number])}" for number in range(start, stop))
