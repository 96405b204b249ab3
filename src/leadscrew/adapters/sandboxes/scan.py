"""The scan for gold: no file that boxes would show may hold the texts of val or test (design invariant 2).

A text is found where a run of its words stands in a file in the same order, whatever the white space, line breaks,
comment signs or escaped newlines between them. Compressed files (gzip, bzip2, xz, zip) are opened.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from leadscrew.adapters.sandboxes.runtime import cache_folder
from leadscrew.core.canonical import digest_of
from leadscrew.errors import DomainError

FORMAT = 1
WINDOW = 5
"""Words of a text that are looked up at once, at its beginning, middle and end."""
RUN = 12
"""Words in a row that make a hit; a shorter text must be there as a whole (but its first and last word)."""
SHORTEST = 24
"""Bytes below which a text says nothing: it would be found by chance."""

_CHUNK = 32 << 20
_OVERLAP = 1 << 16
_UNPACKED = 256 << 20
_SPACES = bytes.maketrans(bytes([*range(32), 127]), b" " * 33)
_NOISE = frozenset([b"#", b"*", b"//", b"|", b">", b"--", b";"])


@dataclass(frozen=True, slots=True)
class Hit:
    """A probe that was found: its number, the file, and a few of its words."""

    probe: int
    file: str
    hint: str


def scan(
    probes: Iterable[str],
    paths: Iterable[str],
    masks: Iterable[str] = (),
    cache: Path | None = None,
    *,
    again: bool = False,
) -> int:
    """Refuse if a file under `paths`, but not `masks`, holds one of `probes`; return how many files were looked at.

    A scan that found nothing is remembered in the cache folder by a digest of the texts and of the files' names, sizes
    and times; `again` does it anyway. Raises `DomainError` naming the files.

    >>> scan(["the quick brown fox jumps over the lazy dog again"], [], again=True)
    0
    """
    texts = [p for p in probes if len(p) >= SHORTEST]
    files = list(_files(paths, masks))
    marks = digest_of([FORMAT, [[f, s.st_size, s.st_mtime_ns, s.st_ino] for f, s in files]])
    note = (cache or cache_folder()) / "scans" / digest_of([marks, digest_of(texts)])[:32]
    if not texts or (note.exists() and not again):
        return len(files)
    hits = find(texts, [f for f, _ in files])
    if hits:
        raise DomainError(_refusal(hits))
    note.parent.mkdir(parents=True, exist_ok=True)
    note.touch()
    return len(files)


def _refusal(hits: Sequence[Hit]) -> str:
    files = list(dict.fromkeys(h.file for h in hits))
    shown = "; ".join(f"{file} (near {next(h.hint for h in hits if h.file == file)!r})" for file in files[:3])
    more = f" and {len(files) - 3} more files" if len(files) > 3 else ""
    count = len({h.probe for h in hits})
    return (
        f"{count} text{'s' if count > 1 else ''} of val or test can be read in software that boxes would mount: "
        f"{shown}{more}. A program could look its answers up there. Add the path to the domain's `masks()`, leave the "
        "package out of the program environment, or drop those instances."
    )


def find(probes: Sequence[str], files: Iterable[str]) -> list[Hit]:
    """Return at most one hit per probe and file."""
    index = _Index(probes)
    hits = []
    for file in files:
        seen: set[int] = set()
        for data in _contents(file):
            for number in index.search(data):
                if number not in seen:
                    seen.add(number)
                    hits.append(Hit(number, file, index.hint(number)))
    return hits


class _Index:
    def __init__(self, probes: Sequence[str]) -> None:
        self.words = [_fold(p.encode("utf-8", "replace")) for p in probes]
        self.anchors: dict[bytes, dict[tuple[bytes, ...], list[tuple[int, int, int]]]] = {}
        """Longest word of a window -> window -> (probe, place of the window in it, place of the word in that)."""
        self.short: list[tuple[int, bytes, bytes]] = []
        for number, words in enumerate(self.words):
            last = len(words) - 1 - WINDOW  # the first and last word of a text may be glued to what stands beside it
            if last < 1:
                middle = words[len(words) // 2] if len(words) >= 3 else b""
                self.short.append((number, b" ".join(words), middle))
                continue
            for place in {1, (1 + last) // 2, last}:
                window = tuple(words[place : place + WINDOW])
                anchor = max(range(WINDOW), key=lambda i: len(window[i]))
                self.anchors.setdefault(window[anchor], {}).setdefault(window, []).append((number, place, anchor))

    def hint(self, number: int) -> str:
        words = self.words[number]
        middle = len(words) // 2
        return b" ".join(words[max(middle - 2, 0) : middle + 3]).decode("utf-8", "replace")[:60]

    def search(self, data: bytes) -> Iterator[int]:
        words = _fold(data)
        anchors = self.anchors
        for at in [i for i, word in enumerate(words) if word in anchors]:
            for window, entries in anchors[words[at]].items():
                for number, place, anchor in entries:
                    start = at - anchor
                    if start >= 0 and tuple(words[start : start + WINDOW]) == window:
                        probe = self.words[number]
                        if _run(words, start, probe, place) >= min(RUN, len(probe) - 2):
                            yield number
        if self.short:
            known, text = set(words), b" ".join(words)
            for number, needle, middle in self.short:
                if (not middle or middle in known) and needle in text:
                    yield number


def _run(words: Sequence[bytes], start: int, probe: Sequence[bytes], place: int) -> int:
    """Return how many words in a row agree around a place where a window agrees."""
    left = 0
    while place - left > 0 and start - left > 0 and words[start - left - 1] == probe[place - left - 1]:
        left += 1
    right = 0
    while start + right < len(words) and place + right < len(probe) and words[start + right] == probe[place + right]:
        right += 1
    return left + right


def _fold(data: bytes) -> list[bytes]:
    if b"\\" in data:
        data = data.replace(b"\\n", b" ").replace(b"\\t", b" ").replace(b'\\"', b'"').replace(b"\\'", b"'")
    return [word for word in data.translate(_SPACES).split() if word not in _NOISE]


def _files(paths: Iterable[str], masks: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    hidden = {os.path.realpath(m) for m in masks}

    for top in dict.fromkeys(os.path.realpath(p) for p in paths):
        if top in hidden:  # a mask around it does not hide what is mounted by name
            continue
        if not os.path.isdir(top):
            folders: Iterable[tuple[str, list[str], list[str]]] = [(os.path.dirname(top), [], [os.path.basename(top)])]
        else:
            folders = os.walk(top)
        for folder, below, names in folders:
            below[:] = sorted(d for d in below if os.path.join(folder, d) not in hidden)
            for name in sorted(names):
                path = os.path.join(folder, name)
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode) and path not in hidden:
                    yield path, status


def _contents(file: str) -> Iterator[bytes]:
    """Yield the content of a file in overlapping pieces, compressed ones unpacked as well."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(6)
            stream.seek(0)
            rest = b""
            while piece := stream.read(_CHUNK):
                yield rest + piece
                rest = piece[-_OVERLAP:]
        yield from _unpacked(file, head)
    except PermissionError:
        return  # what the engine cannot read, a box of the same user cannot either


def _unpacked(file: str, head: bytes) -> Iterator[bytes]:
    try:
        if head[:2] == b"\x1f\x8b":
            with gzip.open(file) as stream:
                yield stream.read(_UNPACKED)
        elif head[:3] == b"BZh":
            with bz2.open(file) as stream:
                yield stream.read(_UNPACKED)
        elif head == b"\xfd7zXZ\0":
            with lzma.open(file) as stream:
                yield stream.read(_UNPACKED)
        elif head[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    if member.file_size <= _UNPACKED and not member.flag_bits & 1:
                        yield archive.read(member)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return  # not what its first bytes say: searched as it is
