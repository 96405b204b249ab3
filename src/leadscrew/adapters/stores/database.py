"""One connection to a run's database, and the hash chain over everything inserted through it."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from leadscrew.adapters.stores.schema import TABLES, VERSION, additions, statements, tables_of
from leadscrew.errors import (
    InfrastructureError,
    LeadscrewError,
    NotFoundError,
    RefusedError,
    SchemaVersionError,
    TamperedError,
)

CODES = {table: code for code, table in enumerate(TABLES, 1)}
COMMIT_CODE = 0
ENTRY = 33
"""Bytes of one chain entry: the table's code and a SHA-256."""
START = hashlib.sha256(b"leadscrew run chain 1").digest()
_encode = msgspec.msgpack.Encoder().encode


def link_hash(before: bytes, table: str, row: Sequence[Any]) -> bytes:
    """Return the link of a row: SHA-256 over the link before, the table's name and the row in MessagePack, `id` too."""
    return hashlib.sha256(b"%b%b\0%b" % (before, table.encode(), _encode(row))).digest()


def marks_of(row: Sequence[Any]) -> bytes:
    """Return one check byte per column: too few to prove anything, enough to say which column was changed."""
    return bytes([zlib.crc32(_encode(value)) & 255 for value in row])


def require(path: Path) -> None:
    """Raise `NotFoundError` if there is no database of that name."""
    if not path.is_file():
        raise NotFoundError(
            f"there is no run in {str(path.parent)!r}: it has no file {path.name!r}. "
            "Give the folder that `leadscrew run` made.",
            name=str(path.parent),
        )


def connect(path: Path, *, readonly: bool) -> sqlite3.Connection:
    """Open the database; a reader never blocks the writer. One of an older schema is brought up to date for the writer.

    Raises `NotFoundError` if there is none, `SchemaVersionError` for one of a newer leadscrew, `TamperedError` for a
    file that is no database of a run.
    """
    require(path)
    uri = path.resolve().as_uri()
    if readonly:
        # Where the folder cannot be written, SQLite could not make its shared index; without a log it needs none.
        idle = not path.with_name(path.name + "-wal").exists() and not _writable(path.parent)
        uri += "?mode=ro&immutable=1" if idle else "?mode=ro"
    else:
        uri += "?mode=rw"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False)
    try:
        _prepare(db, path, readonly)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path, readonly: bool) -> None:
    try:
        found = db.execute("PRAGMA user_version").fetchone()[0]
        db.execute("PRAGMA foreign_keys = ON")
        if not readonly:
            db.execute("PRAGMA synchronous = FULL")
            # Fewer, larger checkpoints: each costs two more flushes of the disk.
            db.execute("PRAGMA wal_autocheckpoint = 4000")
            db.execute("PRAGMA journal_size_limit = 16777216")
            db.execute("PRAGMA cache_size = -8192")
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error
    if found > VERSION:
        raise SchemaVersionError(
            f"the run in {str(path.parent)!r} has schema version {found}, and this leadscrew knows versions up to "
            f"{VERSION}. Install the leadscrew that wrote it, or a newer one."
        )
    if found < 1:
        raise TamperedError(f"{str(path)!r} is a database, but not that of a run.", record="database")
    if found < VERSION and not readonly:
        _upgrade(db, path, found)


def _upgrade(db: sqlite3.Connection, path: Path, found: int) -> None:
    """Add what the schema has gained since; rows and chain stay as they are."""
    try:
        db.execute("BEGIN IMMEDIATE")
        for statement in additions(found):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error


_OUTSIDE = tuple(
    f"SQLITE_{n}" for n in ("IOERR", "CANTOPEN", "BUSY", "LOCKED", "NOMEM", "FULL", "READONLY", "PROTOCOL")
)
"""What is wrong with the machine, not with the file."""


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> LeadscrewError:
    # Python's own refusal to decode a text has no SQLite name: the bytes are not what was written.
    if getattr(error, "sqlite_errorname", "").startswith(_OUTSIDE):
        return InfrastructureError(
            f"{str(path)!r} cannot be read now ({error}). Nothing is lost: mend the cause, then open the run again."
        )
    return TamperedError(f"{str(path)!r} is damaged ({error}).", record="database")


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def create(path: Path) -> None:
    """Make an empty database in WAL mode."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        for statement in statements():
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        db.close()


class Database:
    """Reads and appends. Everything appended since the last `commit` becomes durable together or not at all.

    After a failed write (a full disk, an I/O error) nothing of the open transaction is kept and every further write is
    refused: what the caller holds in memory is ahead of what is stored, so the run must be opened again.
    """

    def __init__(self, path: Path, *, readonly: bool) -> None:
        self.path = path
        self.readonly = readonly
        self._db = connect(path, readonly=readonly)
        self._failed = False
        try:
            self._version = int(self.one("PRAGMA user_version")[0])
            self._last: dict[str, int] = {t: self._highest(t) for t in (*tables_of(self._version), "link")}
            self._head = self._stored_head()
        except BaseException:
            self._db.close()
            raise
        self._hashes = bytearray()
        self._marks = bytearray()
        self._open = False
        self._inserts: dict[str, str] = {}

    @property
    def version(self) -> int:
        """The version of the schema. A reader that opened an older one sees when the writer has brought it up to date."""
        if self._version < VERSION:
            self._version = int(self.one("PRAGMA user_version")[0])
        return self._version

    @property
    def head(self) -> bytes:
        """The last link, uncommitted ones included. A reader sees what the writer has committed by now."""
        return self._stored_head() if self.readonly else self._head

    def keep_bytes(self) -> None:
        """Give texts that are no valid UTF-8 as bytes from now on, so that a damaged row can be named."""
        self._db.text_factory = _text_or_bytes

    @property
    def open(self) -> bool:
        """Whether something is written that is not yet durable."""
        return self._open

    def append(self, table: str, *values: Any) -> int:
        """Insert a row and add its link; return the row's id. Raises `ValueError` where the row breaks the schema."""
        number = self._last[table] + 1
        row = (number, *values)
        link = link_hash(self._head, table, row)
        sql = self._inserts.get(table)
        if sql is None:
            sql = self._inserts[table] = f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})"
        self.write(sql, row)
        self._last[table] = number
        self._head = link
        self._hashes.append(CODES[table])
        self._hashes += link
        self._marks += marks_of(row)
        return number

    def write(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run one writing statement inside the open transaction, beginning one if there is none."""
        if self.readonly or self._failed:
            self._refuse()
        try:
            if not self._open:
                self._db.execute("BEGIN IMMEDIATE")
                self._open = True
            self._db.execute(sql, values)
        except sqlite3.IntegrityError as error:
            raise ValueError(f"the store refuses a row: {error} ({sql} {values!r:.200})") from error
        except sqlite3.DatabaseError as error:
            raise self._fail(error) from error

    def commit(self) -> None:
        """Make everything appended so far durable; does nothing if there is nothing."""
        if not self._open:
            return
        number, at, marks = self._last["link"] + 1, time.time_ns() // 1_000_000, bytes(self._marks)
        head = link_hash(self._head, "link", (number, at, marks))
        hashes = bytes(self._hashes) + bytes((COMMIT_CODE,)) + head
        self.write("INSERT INTO link VALUES (?,?,?,?)", (number, at, hashes, marks))
        try:
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise self._fail(error) from error
        self._last["link"] = number
        self._head = head
        self._hashes.clear()
        self._marks.clear()
        self._open = False

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first row or None."""
        try:
            return self._db.execute(sql, values).fetchone()
        except sqlite3.DatabaseError as error:
            raise _unreadable(self.path, error) from error

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise _unreadable(self.path, error) from error

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield rows one by one."""
        try:
            # Not `yield from`: it would close the cursor with the iterator, perhaps after the connection.
            for row in self._db.execute(sql, values):  # noqa: UP028
                yield row
        except sqlite3.DatabaseError as error:
            raise _unreadable(self.path, error) from error

    def close(self) -> None:
        """Close the connection; what was not committed is dropped."""
        self._db.close()

    def _highest(self, table: str) -> int:
        return int(self.one(f"SELECT coalesce(max(id), 0) FROM {table}")[0])

    def _stored_head(self) -> bytes:
        row = self.one("SELECT hashes FROM link ORDER BY id DESC LIMIT 1")
        return bytes(row[0][-32:]) if row else START

    def _refuse(self) -> None:
        if self.readonly:
            raise RefusedError(
                f"the run {str(self.path.parent)!r} was opened for reading only, so nothing can be written to it. "
                "Open it with readonly=False, or post a message to its inbox."
            )
        raise InfrastructureError(
            f"an earlier write to {str(self.path)!r} failed, so nothing more is written. Open the run again."
        )

    def _fail(self, error: sqlite3.DatabaseError) -> InfrastructureError:
        self._failed = True
        self._open = False
        self._hashes.clear()
        self._marks.clear()
        if self._db.in_transaction:
            self._db.rollback()
        return InfrastructureError(
            f"writing to {str(self.path)!r} failed ({error}). Nothing of this step was kept, and everything "
            "before it is safe. Free disk space or mend the disk, then resume the run."
        )
