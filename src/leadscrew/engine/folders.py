"""Folders on disk to programs and back, distrusting whatever lies in the folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from leadscrew.core.program import MAX_PATH_LENGTH, File, Program, check_path, is_noise
from leadscrew.errors import ProgramError

MAX_FILES = 2000
MAX_FILE_BYTES = 8 << 20
MAX_TREE_BYTES = 32 << 20


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
        return Program({check_path(root.name): _read(root, root.name, max_file_bytes, allow_links=True)})
    if not stat.S_ISDIR(kind.st_mode):
        raise ProgramError(f"{str(root)!r} is neither a folder nor a regular file.", path=str(root))
    files: dict[str, File] = {}
    total = 0
    pending = [(root, "")]
    while pending:
        place, prefix = pending.pop()
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                path = prefix + entry.name
                if is_noise(path) or (not prefix and entry.name == ".venv"):
                    continue
                if len(path) > MAX_PATH_LENGTH:
                    raise ProgramError(f"the path {path[:60]!r}... is longer than {MAX_PATH_LENGTH}.", path=path)
                if entry.is_dir(follow_symlinks=False):
                    pending.append((Path(entry.path), path + "/"))
                    continue
                files[check_path(path)] = file = _read(Path(entry.path), path, max_file_bytes)
                total += len(file.data)
                if len(files) > max_files or total > max_tree_bytes:
                    raise ProgramError(
                        f"{str(root)!r} holds more than {max_files} files or {max_tree_bytes >> 20} MiB; "
                        "a program is what an agent edits, so leave data and dependencies out of it.",
                        path=path,
                    )
    return Program(files)


def _read(place: Path, path: str, limit: int, *, allow_links: bool = False) -> File:
    try:
        # O_NOFOLLOW and O_NONBLOCK: neither a link nor a pipe put there a moment ago can send us elsewhere or hang us.
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ProgramError(
            f"{path!r} is a link, or cannot be read ({error.strerror}); a program holds regular files only.", path=path
        ) from None
    try:
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
    finally:
        os.close(descriptor)


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
