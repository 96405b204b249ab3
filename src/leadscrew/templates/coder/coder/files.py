"""Files as the tools touch them: inside the allowed folders, as exact bytes, replaced in one step."""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass

MOST_BYTES = 4_000_000
"""Larger files are left to the shell."""


class FileProblem(Exception):
    """A file cannot be used as asked; the text is for the model."""


@dataclass(frozen=True)
class Places:
    """Where the tools may read and write. `work` is where relative paths start, and the only place to write."""

    work: str
    read: tuple[str, ...] = ()
    hidden: tuple[str, ...] = (".coder",)
    """Names directly below `work` that are the session's own."""

    def readable(self, path: str) -> str:
        """Return the real path, links resolved; raises `FileProblem` outside the places."""
        return self._inside(path, (self.work, *self.read), "read")

    def writable(self, path: str) -> str:
        """Return the real path of something that may be written; raises `FileProblem` outside `work`."""
        real = self._inside(path, (self.work,), "write")
        own = os.path.relpath(real, os.path.realpath(self.work)).split(os.sep)[0]
        if own in self.hidden:
            raise FileProblem(f"{path} belongs to the session itself; write somewhere else")
        return real

    def _inside(self, path: str, roots: tuple[str, ...], what: str) -> str:
        if not path or "\0" in path:
            raise FileProblem("the path is empty or holds a NUL character")
        try:
            real = os.path.realpath(os.path.join(self.work, path))
        except (OSError, ValueError) as error:
            raise FileProblem(f"{path!r} is no usable path: {error}") from None
        for root in roots:
            root = os.path.realpath(root)
            if real == root or real.startswith(root.rstrip("/") + "/"):
                return real
        raise FileProblem(f"{path} leads to {real}, outside of where this tool may {what}: {', '.join(roots)}")


def read_bytes(path: str) -> bytes:
    """Return the content of a regular file; raises `FileProblem` if there is none or it is too large."""
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise FileProblem(f"{path} is a folder")
        if not stat.S_ISREG(found.st_mode):
            raise FileProblem(f"{path} is not a regular file")
        if found.st_size > MOST_BYTES:
            raise FileProblem(
                f"{path} has {found.st_size} bytes, more than {MOST_BYTES}; use the shell (head, sed, grep)"
            )
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}") from None


def text_of(data: bytes, path: str) -> str:
    """Return bytes as text from which `bytes_of` gets the same bytes back; raises `FileProblem` for binary files."""
    if b"\0" in data:
        raise FileProblem(f"{path} is a binary file ({len(data)} bytes); use the shell (file, od, xxd)")
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Return text as bytes; raises `FileProblem` if it holds what no file in UTF-8 can."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise FileProblem("the text holds half a character (a lone surrogate), which cannot be written") from None


def write_bytes(path: str, data: bytes, mode: int | None = None) -> None:
    """Put `data` at `path` in one step: whoever reads sees the old content or the new. `mode` as the file had it."""
    if mode is None:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    try:
        handle, beside = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".coder-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(beside, mode)
            os.replace(beside, path)
        except OSError:
            os.unlink(beside)
            raise
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error.strerror}") from None


def mode_of(path: str) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(os.stat(path).st_mode)


def make_folders(path: str) -> list[str]:
    """Make the folders above `path` that are missing; return them, outermost first."""
    missing: list[str] = []
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    try:
        for name in missing:
            os.mkdir(name)
    except OSError as error:
        raise FileProblem(f"cannot make the folder {name}: {error.strerror}") from None
    return missing
