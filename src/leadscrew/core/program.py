"""A program: an immutable tree of files named by its content, with regions, differences and their application."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from leadscrew.core.canonical import digest_of
from leadscrew.errors import ProgramError

MAX_PATH_LENGTH = 240
# What a run leaves behind rather than what somebody wrote: it never counts as part of a program.
_NOISE = re.compile(
    r"(^|/)(__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.hypothesis|\.git|\.DS_Store|node_modules)(/|$)"
    r"|\.(pyc|pyo|swp|tmp~)$|~$"
)


def is_noise(path: str) -> bool:
    """Say whether `path` names byte code, a cache or an editor's leftovers, which never count as change.

    >>> is_noise("pkg/__pycache__/a.cpython-311.pyc"), is_noise("pkg/a.py")
    (True, False)
    """
    return _NOISE.search(path) is not None


def check_path(path: str) -> str:
    """Return `path` if it is a clean relative POSIX path, else raise `ProgramError`.

    Refused: empty, absolute, backslashes, `.` or `..` parts, control characters, over-long names.

    >>> check_path("skills/plan.md")
    'skills/plan.md'
    """
    parts = path.split("/")
    if (
        not path
        or len(path) > MAX_PATH_LENGTH
        or path.startswith("/")
        or "\\" in path
        or any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 200 for part in parts)
        or any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF for char in path)
    ):
        raise ProgramError(
            f"the path {path!r} cannot be part of a program: a file outside its tree could be meant. "
            "Write a relative path with forward slashes and no '.' or '..' parts.",
            path=path,
        )
    return path


@dataclass(frozen=True, slots=True)
class File:
    """The bytes of one file and whether it may be executed."""

    data: bytes
    executable: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, 64 hex digits."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a tree: the paths that match `include` and none of `exclude` (glob patterns; `**` crosses folders).

    >>> Region(("skills/**",), ("skills/meta/**",)).covers("skills/plan.md")
    True
    """

    include: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()

    def covers(self, path: str) -> bool:
        """Say whether `path` lies inside the region."""
        return any(_glob(p).fullmatch(path) for p in self.include) and not any(
            _glob(p).fullmatch(path) for p in self.exclude
        )


EVERYTHING = Region()


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    out, i = "", 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out, i = out + r"(?:[^/]+/)*", i + 3
        elif pattern.startswith("**", i):
            out, i = out + r".*", i + 2
        elif pattern[i] == "*":
            out, i = out + r"[^/]*", i + 1
        elif pattern[i] == "?":
            out, i = out + r"[^/]", i + 1
        else:
            out, i = out + re.escape(pattern[i]), i + 1
    return re.compile(out, re.DOTALL)


class Program(Mapping[str, File]):
    """An immutable tree of files, in path order, named by the digest of its content.

    Paths are checked, noise (byte code, caches) is left out, and a path that is both a file and a folder is refused.

    >>> program = Program.of({"main.py": "print(1)\\n"})
    >>> program.text("main.py"), len(program.digest)
    ('print(1)\\n', 64)
    """

    __slots__ = ("_digest", "_files")

    def __init__(self, files: Mapping[str, File]) -> None:
        kept = {path: files[path] for path in sorted(files) if not is_noise(check_path(path))}
        folders = {path[:i] for path in kept for i, char in enumerate(path) if char == "/"}
        for path in kept:
            if path in folders:
                raise ProgramError(f"{path!r} is both a file and a folder of the same program.", path=path)
        self._files = MappingProxyType(kept)
        self._digest: str | None = None

    @classmethod
    def of(cls, files: Mapping[str, str | bytes | File]) -> Program:
        """Build a program from texts (stored as UTF-8), bytes or files by path."""
        return cls({path: _as_file(content) for path, content in files.items()})

    @property
    def digest(self) -> str:
        """SHA-256 over paths, modes and contents, 64 hex digits: the program's name."""
        if self._digest is None:
            self._digest = digest_of([[p, f.executable, f.digest] for p, f in self._files.items()])
        return self._digest

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(len(file.data) for file in self._files.values())

    def __getitem__(self, path: str) -> File:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Program({self.digest[:12]}, {len(self)} files, {self.size} bytes)"

    def __reduce__(self) -> tuple[type[Program], tuple[dict[str, File]]]:
        return (Program, (dict(self._files),))

    def text(self, path: str) -> str:
        """Return one file as text; raises `ProgramError` if it is missing or no UTF-8."""
        if path not in self._files:
            raise ProgramError(f"the program has no file {path!r}; it has {', '.join(self) or 'none'}.", path=path)
        try:
            return self._files[path].data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProgramError(f"{path!r} is no UTF-8 text ({error}).", path=path) from None

    def part(self, region: Region) -> Program:
        """Return the program that holds only the files of `region`."""
        if region == EVERYTHING:
            return self
        return Program({path: file for path, file in self._files.items() if region.covers(path)})

    def with_files(self, changes: Mapping[str, str | bytes | File | None]) -> Program:
        """Return a new program with some files set, or removed where the value is None."""
        files = dict(self._files)
        for path, content in changes.items():
            if content is None:
                files.pop(path, None)
            else:
                files[path] = _as_file(content)
        return Program(files)

    def graft(self, donor: Program, region: Region) -> Program:
        """Return this program with `region` replaced by what `donor` holds there."""
        kept = {path: file for path, file in self._files.items() if not region.covers(path)}
        return Program({**kept, **donor.part(region)})


def _as_file(content: str | bytes | File) -> File:
    if isinstance(content, File):
        return content
    return File(content.encode("utf-8") if isinstance(content, str) else bytes(content))


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two programs. `old_path` is set for a rename; `file` is None for a deletion."""

    kind: Literal["add", "delete", "modify", "rename", "mode"]
    path: str
    file: File | None
    old_path: str | None = None
    before: str | None = None
    """Digest of the file that the change expects to find, None for an addition."""


@dataclass(frozen=True, slots=True)
class Patch:
    """The changes that turn the program `before` (a digest) into another."""

    changes: tuple[Change, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that the patch touches, old names of renamed files included."""
        return tuple(sorted({p for c in self.changes for p in (c.path, c.old_path) if p}))


def diff(old: Program, new: Program) -> Patch:
    """Return the patch from `old` to `new`. A file whose bytes only moved is one rename.

    >>> a = Program.of({"x.py": "1\\n", "y.py": "2\\n"})
    >>> [c.kind for c in diff(a, Program.of({"x.py": "1\\n", "z.py": "2\\n"})).changes]
    ['rename']
    """
    changes: list[Change] = []
    removed = {path: old[path] for path in old if path not in new}
    by_digest: dict[tuple[str, bool], list[str]] = {}
    for path, file in removed.items():
        by_digest.setdefault((file.digest, file.executable), []).append(path)
    for path, file in new.items():
        if path in old:
            if old[path].data != file.data:
                changes.append(Change("modify", path, file, before=old[path].digest))
            elif old[path].executable != file.executable:
                changes.append(Change("mode", path, file, before=file.digest))
        else:
            same = by_digest.get((file.digest, file.executable))
            if same:
                source = same.pop(0)
                del removed[source]
                changes.append(Change("rename", path, file, old_path=source, before=file.digest))
            else:
                changes.append(Change("add", path, file))
    changes.extend(Change("delete", path, None, before=file.digest) for path, file in removed.items())
    return Patch(tuple(sorted(changes, key=lambda c: (c.path, c.kind))))


def apply(program: Program, patch: Patch) -> Program:
    """Return `program` with `patch` applied; raises `ProgramError` where a file is not as the patch expects.

    >>> a, b = Program.of({"x": "1"}), Program.of({"y": "2"})
    >>> apply(a, diff(a, b)) == b
    True
    """
    files = dict(program)
    for change in patch.changes:
        source = change.old_path or change.path
        found = program[source].digest if source in program else None
        if found != change.before:
            raise ProgramError(
                f"the patch expects {source!r} to be {(change.before or 'absent')[:12]}, but it is "
                f"{(found or 'absent')[:12]}: it was made for another program.",
                path=source,
            )
        if change.kind == "rename" and change.path in program:
            raise ProgramError(
                f"the patch moves {source!r} to {change.path!r}, where the program already has a file: it was made for "
                "another program.",
                path=change.path,
            )
        if change.kind in ("delete", "rename"):
            files.pop(source, None)
    for change in patch.changes:
        if change.file is not None:
            files[change.path] = change.file
    return Program(files)


def unified(old: Program, new: Program, *, context: int = 3) -> str:
    """Return the difference as a unified diff in git's form, which `git apply` takes; binary files as one line."""
    out: list[str] = []
    for change in diff(old, new).changes:
        source = change.old_path or change.path
        before = old[source] if source in old else None
        mode = "100755" if (change.file or before or File(b"")).executable else "100644"
        out.append(f"diff --git a/{source} b/{change.path}\n")
        if change.kind == "rename":
            out.append(f"similarity index 100%\nrename from {source}\nrename to {change.path}\n")
            continue
        if change.kind == "mode":
            out.append(f"old mode {'100644' if mode == '100755' else '100755'}\nnew mode {mode}\n")
            continue
        if change.kind == "add":
            out.append(f"new file mode {mode}\n")
        elif change.kind == "delete":
            out.append(f"deleted file mode {mode}\n")
        elif before and change.file and before.executable != change.file.executable:
            out.append(f"old mode {'100755' if before.executable else '100644'}\nnew mode {mode}\n")
        old_data, new_data = before.data if before else b"", change.file.data if change.file else b""
        if b"\0" in old_data or b"\0" in new_data or not (_is_text(old_data) and _is_text(new_data)):
            out.append(f"Binary files a/{source} and b/{change.path} differ\n")
            continue
        lines = difflib.unified_diff(
            _lines(old_data),
            _lines(new_data),
            "/dev/null" if change.kind == "add" else f"a/{source}",
            "/dev/null" if change.kind == "delete" else f"b/{change.path}",
            n=context,
        )
        for line in lines:
            out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _lines(data: bytes) -> list[str]:
    # Only \n ends a line for git; str.splitlines would also split at form feeds and Unicode separators.
    return [line for line in re.split(r"(?<=\n)", data.decode("utf-8")) if line]
