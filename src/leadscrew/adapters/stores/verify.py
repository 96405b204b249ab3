"""Re-reading a run from its first row to its last, to find the first thing that was altered."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from leadscrew.adapters.stores import codec
from leadscrew.adapters.stores.content import Content
from leadscrew.adapters.stores.database import COMMIT_CODE, ENTRY, START, Database, link_hash, marks_of
from leadscrew.adapters.stores.schema import statements, tables_of
from leadscrew.errors import TamperedError


def verify(folder: Path, *, head: str | None = None) -> int:
    """Check every row against the chain and every content against its digest; return the number of links.

    Raises `TamperedError` naming the first altered, missing or surplus row. `head` is a link that must be the end of
    some commit (a certificate's): it shows that the chain was not cut off before it. Memory does not grow with the run.
    """
    try:
        db = Database(folder / "run.db", readonly=True)
        try:
            db.keep_bytes()
            # One snapshot of the whole, whatever a writer does meanwhile.
            db.one("BEGIN")
            _check_schema(db)
            # The chain first: it names what was altered, where SQLite's own check names pages and indexes.
            links = _Chain(db).check(head)
            _check_blobs(db)
            _check_traces(db, Content(db, folder / "traces"))
            _check_pages(db)
            return links
        finally:
            db.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError, ValueError, TypeError, IndexError) as error:
        raise TamperedError(f"the database cannot be read as it was written ({error}).", record="database") from error


def _check_schema(db: Database) -> None:
    found = {row[0]: row[1] for row in db.stream("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")}
    fresh = sqlite3.connect(":memory:")
    try:
        for statement in statements(db.version):
            fresh.execute(statement)
        wanted = dict(fresh.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    finally:
        fresh.close()
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            what = "is missing" if name not in found else "is surplus" if name not in wanted else "was changed"
            raise TamperedError(f"schema: {name} {what}.", record=f"schema {name}")


def _check_pages(db: Database) -> None:
    fault = db.one("PRAGMA integrity_check(1)")[0]
    if fault != "ok":
        raise TamperedError(f"the database file is damaged: {fault}.", record="database")


class _Chain:
    """One walk along the chain, with a cursor on every table."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._tables = tables = tables_of(db.version)
        self._cursors: dict[str, Iterator[Any]] = {t: db.stream(f"SELECT * FROM {t} ORDER BY id") for t in tables}
        self._columns = {t: [row[1] for row in db.all(f"PRAGMA table_info({t})")] for t in tables}
        self._due = dict.fromkeys(tables, 1)
        self._head = START
        self._links = 0

    def check(self, head: str | None) -> int:
        """Walk to the end; return the number of links."""
        seen_head = head is None
        stored = self._db.stream("SELECT id, at_ms, hashes, marks FROM link ORDER BY id")
        for due, (number, at, hashes, marks) in enumerate(stored, 1):
            if number != due:
                raise _fault(f"chain broken at link {self._links + 1}: commit {due} is missing", f"commit {due}")
            self._check_commit(number, at, hashes, marks)
            seen_head = seen_head or self._head.hex() == head
        for table, cursor in self._cursors.items():
            row = next(cursor, None)
            if row is not None:
                raise self._surplus(table, row)
        if not seen_head:
            raise _fault(f"the chain does not contain the head {str(head)[:12]}: its end was cut off", "chain head")
        return self._links

    def _check_commit(self, number: int, at: int, hashes: bytes, marks: bytes) -> None:
        entries = [(hashes[i], hashes[i + 1 : i + ENTRY]) for i in range(0, len(hashes), ENTRY)]
        codes = [code for code, _ in entries]
        changed = _fault(f"chain broken at link {self._links + 1}: commit {number} was changed", f"commit {number}")
        if len(hashes) % ENTRY or not codes or codes.pop() != COMMIT_CODE:
            raise changed
        if not all(0 < code <= len(self._tables) for code in codes):
            raise changed
        place = 0
        for (code, link), after in pairwise(entries):
            table = self._tables[code - 1]
            width = len(self._columns[table])
            row = self._next(table)
            found = link_hash(self._head, table, row)
            if found != link:
                raise self._altered(table, row, found, marks[place : place + width], after, (number, at, marks))
            self._head = link
            self._links += 1
            place += width
        if link_hash(self._head, "link", (number, at, marks)) != entries[-1][1]:
            raise changed
        self._head = entries[-1][1]
        self._links += 1

    def _next(self, table: str) -> Any:
        row, due = next(self._cursors[table], None), self._due[table]
        if row is None or row[0] > due:
            raise _fault(f"{table} {due}: row is missing", f"{table} {due}")
        if row[0] < due:
            raise self._surplus(table, row)
        self._due[table] = due + 1
        return row

    def _surplus(self, table: str, row: Any) -> TamperedError:
        return _fault(f"surplus row in table {table}: {name_of(self._db, table, row)}", f"{table} {row[0]}")

    def _altered(
        self, table: str, row: Any, found: bytes, marks: bytes, after: tuple[int, bytes], commit: tuple[int, int, bytes]
    ) -> TamperedError:
        """Tell an altered row from an altered link: if the next link follows from the row, the row is sound."""
        code, following = after
        next_table = "link" if code == COMMIT_CODE else self._tables[code - 1]
        next_row = commit if code == COMMIT_CODE else next(self._cursors[next_table], None)
        if next_row is not None and link_hash(found, next_table, next_row) == following:
            number = self._links + 1
            return _fault(f"chain broken at link {number}: the link was changed, its row was not", f"link {number}")
        pairs = zip(self._columns[table], marks, marks_of(row), strict=False)
        columns = [name for name, kept, now in pairs if kept != now]
        what = (
            f"{', '.join(columns)} {'was' if len(columns) == 1 else 'were'} changed"
            if columns
            else "the row was changed"
        )
        return _fault(f"{name_of(self._db, table, row)}: {what}", f"{table} {row[0]}")


def _check_blobs(db: Database) -> None:
    for digest, size, packed in db.stream("SELECT digest, size, packed FROM blob ORDER BY id"):
        _check_content(f"blob {digest.hex()[:12]}", digest, size, packed)


def _check_traces(db: Database, content: Content) -> None:
    for number, digest, size, packed_digest, place, buried in db.stream(
        "SELECT trace.id, trace.digest, trace.size, packed_digest, place, tombstone.id "
        "FROM trace LEFT JOIN tombstone ON tombstone.trace = trace.id ORDER BY trace.id"
    ):
        name = f"trace {digest.hex()[:12]}"
        packed = content.packed_trace(number, digest.hex(), place)
        if packed is None:
            if buried is None:
                raise _fault(f"{name}: content is missing", name)
            continue
        if hashlib.sha256(packed).digest() != packed_digest:
            raise _fault(f"{name}: content does not match its digest", name)
        _check_content(name, digest, size, packed)
    row = db.one("SELECT id FROM trace_data WHERE id NOT IN (SELECT id FROM trace WHERE place = 'database')")
    if row is not None:
        raise _fault(f"surplus row in table trace_data: {row[0]}", f"trace_data {row[0]}")


def _check_content(name: str, digest: bytes, size: int, packed: bytes) -> None:
    try:
        data = codec.unpack(packed)
    except TamperedError as error:
        raise _fault(f"{name}: {error}", name) from None
    if hashlib.sha256(data).digest() != digest or len(data) != size:
        raise _fault(f"{name}: content does not match its digest", name)


def name_of(db: Database, table: str, row: Any) -> str:
    """Name a row as people know it, its row number last."""
    try:
        match table:
            case "candidate" | "proposal":
                return f"{table} {row[1]}.{row[2]}"
            case "plan":
                return f"plan {row[1]}"
            case "blob" | "program" | "trace":
                return f"{table} {row[1].hex()[:12]} (row {row[0]})"
            case "edge" | "evaluation":
                owner = db.one("SELECT plan, idx FROM candidate WHERE id = ?", (row[1],))
                return f"{table} {row[0]} of candidate {owner[0]}.{owner[1]}"
            case "verdict":
                owner = db.one("SELECT plan, idx FROM candidate WHERE id = ?", (row[2],))
                return f"verdict {row[0]} on candidate {owner[0]}.{owner[1]}"
            case "trial":
                place = db.one("SELECT split, name FROM instance WHERE id = ?", (row[3],))
                key = codec.digest_out(row[1])[:12]
                return f"trial {row[0]} (key {key}, {place[0]} instance {place[1]}, repeat {row[4]})"
            case "call":
                return f"call {row[0]} ({row[1]}, plan {row[2]})"
            case "reply":
                return f"reply {row[0]} to call {row[1]}"
            case _:
                return f"{table} {row[0]}"
    except (TypeError, AttributeError, IndexError):
        # The row that names it is altered too; its number is what is left to name it by.
        return f"{table} {row[0]}"


def _fault(text: str, record: str) -> TamperedError:
    return TamperedError(f"{text}.", record=record)
