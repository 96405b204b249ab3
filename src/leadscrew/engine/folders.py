"""Folders on disk to programs and back, distrusting whatever lies in the folder."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from leadscrew.core.program import MAX_PATH_LENGTH, File, Program, check_path, is_noise
from leadscrew.errors import ProgramError

MAX_FILES = 2000
MAX_FILE_BYTES = 8 << 20
MAX_TREE_BYTES = 32 << 20
MAX_ENTRIES = 50_000
"""Entries of one folder that are listed at all, caches and byte code included."""


def read_folder(
    folder: str | os.PathLike[str],
    *,
    max_files: int = MAX_FILES,
    max_file_bytes: int = MAX_FILE_BYTES,
    max_tree_bytes: int = MAX_TREE_BYTES,
) -> Program:
    """Read a folder (or a single file, stored under its own name) as a program.

    Only regular files with one link are taken: symbolic and hard links, devices, pipes and sockets raise `ProgramError`,
    as do trees over the limits (bytes and counts). Byte code and caches are left out. Nothing is followed or executed.
    """
    root = Path(folder)
    try:
        kind = os.lstat(root)
    except OSError as error:
        raise ProgramError(
            f"{str(root)!r} cannot be read as a program ({error.strerror}). Name an existing folder.", path=str(root)
        ) from None
    if stat.S_ISREG(kind.st_mode):
        descriptor = _open_file(root, root.name)
        try:
            return Program({check_path(root.name): _read(descriptor, root.name, max_file_bytes, allow_links=True)})
        finally:
            os.close(descriptor)
    if not stat.S_ISDIR(kind.st_mode):
        raise ProgramError(f"{str(root)!r} is neither a folder nor a regular file.", path=str(root))
    files: dict[str, File] = {}
    total = 0
    for path, descriptor in _walk(_open_folder(root, str(root)), ""):
        files[check_path(path)] = file = _read(descriptor, path, max_file_bytes)
        total += len(file.data)
        if len(files) > max_files or total > max_tree_bytes:
            raise ProgramError(
                f"{str(root)!r} holds more than {max_files} files or {max_tree_bytes >> 20} MiB; "
                "a program is what an agent edits, so leave data and dependencies out of it.",
                path=path,
            )
    return Program(files)


def _walk(folder: int, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield (path, open descriptor) of every entry below an open folder; each descriptor is closed afterwards.

    Everything is opened relative to the folder above it and never through a link, so that a folder which is exchanged
    for a link while we read cannot lead us elsewhere.
    """
    try:
        with os.scandir(folder) as entries:
            listed = list(itertools.islice(entries, MAX_ENTRIES + 1))
        if len(listed) > MAX_ENTRIES:
            raise ProgramError(f"the folder {prefix or '.'!r} has more than {MAX_ENTRIES} entries.", path=prefix)
        for entry in sorted(listed, key=lambda e: e.name):
            path = prefix + entry.name
            if is_noise(path) or path == ".venv":
                continue
            if len(path) > MAX_PATH_LENGTH:
                raise ProgramError(f"the path {path[:60]!r}... is longer than {MAX_PATH_LENGTH}.", path=path)
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(_open_folder(entry.name, path, folder), path + "/")
                continue
            descriptor = _open_file(entry.name, path, folder)
            try:
                yield path, descriptor
            finally:
                os.close(descriptor)
    finally:
        os.close(folder)


def _open_folder(place: str | Path, path: str, above: int | None = None) -> int:
    try:
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError as error:
        raise ProgramError(f"the folder {path!r} cannot be read ({error.strerror}).", path=path) from None


def _open_file(place: str | Path, path: str, above: int | None = None) -> int:
    try:
        # O_NOFOLLOW and O_NONBLOCK: neither a link nor a pipe put there a moment ago can send us elsewhere or hang us.
        return os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    except OSError as error:
        raise ProgramError(
            f"{path!r} is a link, or cannot be read ({error.strerror}); a program holds regular files only.", path=path
        ) from None


def _read(descriptor: int, path: str, limit: int, *, allow_links: bool = False) -> File:
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        raise ProgramError(f"{path!r} is a device, pipe or socket; a program holds regular files only.", path=path)
    if info.st_nlink > 1 and not allow_links:
        raise ProgramError(
            f"{path!r} is a hard link to a file that may lie outside the program; copy the file instead.", path=path
        )
    if info.st_size > limit:
        raise ProgramError(
            f"{path!r} has {info.st_size} bytes; at most {limit} are taken for one file of a program.", path=path
        )
    with os.fdopen(descriptor, "rb", closefd=False) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise ProgramError(f"{path!r} grew beyond {limit} bytes while it was read.", path=path)
    return File(data, bool(info.st_mode & stat.S_IXUSR))


def write_folder(program: Program, folder: str | os.PathLike[str], *, read_only: bool = False) -> Path:
    """Write a program's files below `folder` (made if absent) and return it. Existing files of other names stay."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for path, file in program.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        mode = 0o755 if file.executable else 0o644
        target.chmod(mode & 0o555 if read_only else mode)
    return root
