"""Folders inside a box: reading what a program left in one, and emptying one, without following any link."""

from __future__ import annotations

import binascii
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

CHUNK = 192 * 1024
MAX_FILES = 10_000


def describe(folder: str, limit: int) -> tuple[list[dict[str, Any]], str]:
    """List the regular files under `folder`, or say why they cannot be an answer. Call it when the program is dead."""
    files: list[dict[str, Any]] = []
    total = 0
    stack = [""]
    while stack:
        inside = stack.pop()
        with os.scandir(os.path.join(folder, inside)) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                path = f"{inside}/{entry.name}" if inside else entry.name
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    stack.append(path)
                    continue
                if not stat.S_ISREG(info.st_mode):
                    return [], f"{path!r} is no regular file; an answer holds regular files only"
                total += info.st_size
                files.append({"path": path, "size": info.st_size, "executable": bool(info.st_mode & 0o100)})
                if total > limit or len(files) > MAX_FILES:
                    return [], f"the folder holds more than {limit >> 20} MiB or {MAX_FILES} files"
    return sorted(files, key=lambda f: f["path"]), ""


def chunks(folder: str, files: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the contents of the files in pieces: file number and base64 text."""
    for index, file in enumerate(files):
        fd = os.open(os.path.join(folder, file["path"]), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            left = file["size"]
            while left and (data := os.read(fd, min(left, CHUNK))):
                left -= len(data)
                yield {"file": index, "data": binascii.b2a_base64(data, newline=False).decode()}
        finally:
            os.close(fd)


def empty(folder: str) -> bool:
    """Remove everything in `folder`; False if something stays."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return all([_remove(os.path.join(folder, name)) for name in names])


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
        return True
    except FileNotFoundError:
        return True
    except OSError:
        if not os.path.isdir(path) or os.path.islink(path):
            return False
    try:
        os.chmod(path, 0o700)
        if not empty(path):
            return False
        os.rmdir(path)
        return True
    except OSError:
        return False
