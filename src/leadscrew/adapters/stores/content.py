"""Content-addressed content of a run: blobs, programs, traces. Each distinct content is stored once, compressed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container
from pathlib import Path
from typing import Any, TypeVar

from leadscrew.adapters.stores import codec
from leadscrew.adapters.stores.database import Database
from leadscrew.core.program import File, Program
from leadscrew.core.trial import Trace
from leadscrew.errors import InfrastructureError, NotFoundError, TamperedError

INLINE = 400
"""Texts of more characters go to a blob, where they are compressed and shared."""
TRACE_IN_DATABASE = 64 * 1024
_RECENT = 4096
K = TypeVar("K")
V = TypeVar("V")


class Content:
    """Blobs, programs and traces of one database; large traces are files in `folder`."""

    def __init__(self, db: Database, folder: Path) -> None:
        self._db = db
        self._folder = folder
        self._blob_ids: dict[bytes, int] = {}
        self._program_ids: dict[str, int] = {}
        self._trace_seen: dict[str, None] = {}
        row = db.one("SELECT id, manifest FROM program WHERE base IS NULL ORDER BY id DESC LIMIT 1")
        self._keyframe: tuple[int, dict[str, list[Any]]] | None = (row[0], _manifest(row[1])) if row else None

    # -- blobs and texts -----------------------------------------------------------------------

    def put_blob(self, data: bytes) -> int:
        """Store bytes once; return the blob's id."""
        digest = hashlib.sha256(data).digest()
        known = self._blob_ids.get(digest)
        if known is not None:
            return known
        row = self._db.one("SELECT id FROM blob WHERE digest = ?", (digest,))
        number: int = row[0] if row else self._db.append("blob", digest, len(data), codec.pack(data))
        return _remember(self._blob_ids, digest, number)

    def blob(self, number: int) -> bytes:
        """Read a blob back, its digest checked."""
        row = self._db.one("SELECT digest, packed FROM blob WHERE id = ?", (number,))
        if row is None:
            raise TamperedError(f"blob {number} is named by another row, but it is missing.", record=f"blob {number}")
        name = f"blob {row[0].hex()[:12]}"
        try:
            data = codec.unpack(row[1])
        except TamperedError as error:
            raise TamperedError(f"{name}: {error}", record=name) from None
        if hashlib.sha256(data).digest() != row[0]:
            raise TamperedError(f"{name}: content does not match its digest.", record=name)
        return data

    def text_in(self, text: str) -> str | int:
        """Return the stored form of a text: itself, or the id of a blob where it is long or holds lone surrogates."""
        if len(text) <= INLINE:
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                pass
            else:
                return text
        return self.put_blob(text.encode("utf-8", "surrogatepass"))

    def text_out(self, stored: str | int) -> str:
        """Return what `text_in` was given."""
        return stored if isinstance(stored, str) else self.blob(stored).decode("utf-8", "surrogatepass")

    def json_in(self, value: Any) -> str | int:
        """Return the stored form of a JSON value."""
        text = codec.dumps(value)
        return text if len(text) <= INLINE else self.put_blob(text.encode("ascii"))

    def json_out(self, stored: str | int, empty: Any) -> Any:
        """Return what `json_in` was given; `empty` is what an empty collection comes back as."""
        return codec.loads(self.text_out(stored), empty)

    # -- programs ------------------------------------------------------------------------------

    def put_program(self, program: Program) -> int:
        """Store a tree once; return its id."""
        digest = program.digest
        known = self.program_id(digest)
        if known is not None:
            return known
        manifest = {path: [self.put_blob(file.data), int(file.executable)] for path, file in program.items()}
        base, body = None, _lines(manifest)
        if self._keyframe is not None and len(manifest) > 4:
            # A tree of many files differs from the last one in few: only these are written.
            changed = _lines(_difference(self._keyframe[1], manifest))
            if 2 * len(changed) < len(body):
                base, body = self._keyframe[0], changed
        number = self._db.append("program", bytes.fromhex(digest), base, codec.pack(body))
        if base is None:
            self._keyframe = (number, manifest)
        return _remember(self._program_ids, digest, number)

    def program_id(self, digest: str) -> int | None:
        """Return the id of a stored tree."""
        known = self._program_ids.get(digest)
        if known is not None:
            return known
        row = self._db.one("SELECT id FROM program WHERE digest = ?", (codec.digest_in(digest),))
        return _remember(self._program_ids, digest, int(row[0])) if row else None

    def program_digest(self, number: int) -> str:
        """Return the digest of a stored tree by its id."""
        return str(self._db.one("SELECT digest FROM program WHERE id = ?", (number,))[0].hex())

    def program(self, digest: str) -> Program:
        """Read a tree back, its digest checked."""
        row = self._db.one("SELECT base, manifest FROM program WHERE digest = ?", (codec.digest_in(digest),))
        if row is None:
            raise NotFoundError(f"this run holds no program {digest!r}.", name=digest)
        manifest = _manifest(row[1])
        if row[0] is not None:
            base = _manifest(self._db.one("SELECT manifest FROM program WHERE id = ?", (row[0],))[0])
            manifest = {path: entry for path, entry in {**base, **manifest}.items() if entry}
        program = Program({path: File(self.blob(entry[0]), bool(entry[1])) for path, entry in manifest.items()})
        if program.digest != digest:
            name = f"program {digest[:12]}"
            raise TamperedError(f"{name}: the tree that is stored has the digest {program.digest[:12]}.", record=name)
        return program

    # -- traces --------------------------------------------------------------------------------

    def put_trace(self, trace: Trace) -> str:
        """Store a trace once; return its digest, empty for an empty trace."""
        data = codec.trace_to_bytes(trace)
        if not data:
            return ""
        digest = hashlib.sha256(data).digest()
        name = digest.hex()
        if name in self._trace_seen or self._db.one("SELECT 1 FROM trace WHERE digest = ?", (digest,)):
            return name
        packed = codec.pack(data)
        place = "database" if len(data) <= TRACE_IN_DATABASE else "file"
        if place == "file":
            self._write_file(name, packed)
        number = self._db.append("trace", digest, len(data), hashlib.sha256(packed).digest(), place)
        if place == "database":
            self._db.write("INSERT INTO trace_data VALUES (?,?)", (number, packed))
        _remember(self._trace_seen, name, None)
        return name

    def trace(self, digest: str) -> Trace:
        """Read a trace back, its digest checked; a pruned one says so in `stderr`."""
        if not digest:
            return Trace()
        row = self._db.one("SELECT id, size, place FROM trace WHERE digest = ?", (codec.digest_in(digest),))
        if row is None:
            raise NotFoundError(f"this run holds no trace {digest!r}.", name=digest)
        if self._db.one("SELECT 1 FROM tombstone WHERE trace = ?", (row[0],)):
            return Trace(stderr=f"[this trace of {row[1]} bytes was pruned]")
        name = f"trace {digest[:12]}"
        packed = self.packed_trace(row[0], digest, row[2])
        if packed is None:
            raise TamperedError(f"{name}: its content is missing.", record=name)
        try:
            data = codec.unpack(packed)
        except TamperedError as error:
            raise TamperedError(f"{name}: {error}", record=name) from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise TamperedError(f"{name}: content does not match its digest.", record=name)
        return codec.trace_from_bytes(data)

    def packed_trace(self, number: int, digest: str, place: str) -> bytes | None:
        """Return the compressed bytes of a trace, or None if they are gone."""
        if place == "file":
            try:
                return self.trace_path(digest).read_bytes()
            except FileNotFoundError:
                return None
        row = self._db.one("SELECT packed FROM trace_data WHERE id = ?", (number,))
        return bytes(row[0]) if row else None

    def trace_path(self, digest: str) -> Path:
        """Return where a large trace lies."""
        return self._folder / digest[:2] / digest

    def prune(self, keep: Container[str]) -> int:
        """Drop the content of every trace not in `keep`, leaving tombstones; return how many bytes of traces went.

        The tombstones are durable before anything is removed, and a prune that was killed is completed by the next one.
        """
        gone = 0
        for number, digest, size in self._db.all("SELECT id, digest, size FROM trace"):
            buried = self._db.one("SELECT 1 FROM tombstone WHERE trace = ?", (number,))
            if not buried and digest.hex() not in keep:
                self._db.append("tombstone", number, digest, size)
                gone += size
        self._db.commit()
        dead = "SELECT trace.id, trace.digest, trace.place FROM tombstone JOIN trace ON trace.id = tombstone.trace"
        for number, digest, place in self._db.all(dead):
            if place == "file":
                self.trace_path(digest.hex()).unlink(missing_ok=True)
            elif self._db.one("SELECT 1 FROM trace_data WHERE id = ?", (number,)):
                self._db.write("DELETE FROM trace_data WHERE id = ?", (number,))
        self._db.commit()
        return gone

    def _write_file(self, name: str, packed: bytes) -> None:
        path = self.trace_path(name)
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                sync(self._folder)
            write_file(path, packed)
        except OSError as error:
            raise InfrastructureError(
                f"the trace file {str(path)!r} cannot be written ({error}). Free disk space, then resume the run."
            ) from error


def write_file(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole and durable, or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remember(known: dict[K, V], key: K, value: V) -> V:
    if len(known) >= _RECENT:
        known.clear()
    known[key] = value
    return value


def _lines(manifest: dict[str, list[Any]]) -> bytes:
    return json.dumps([[path, *entry] for path, entry in manifest.items()], separators=(",", ":")).encode("ascii")


def _manifest(packed: bytes) -> dict[str, list[Any]]:
    return {path: entry for path, *entry in json.loads(codec.unpack(packed))}


def _difference(old: dict[str, list[Any]], new: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What `new` adds to `old`; a path that is gone has an empty entry."""
    changed = {path: entry for path, entry in new.items() if old.get(path) != entry}
    return {**changed, **{path: [] for path in old if path not in new}}
