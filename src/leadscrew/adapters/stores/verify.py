"""Re-reading a run from its first row to its last, to find the first thing that was altered."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leadscrew.adapters.stores import codec
from leadscrew.adapters.stores.content import Content
from leadscrew.adapters.stores.database import COMMIT_CODE, ENTRY, START, Database, link_hash
from leadscrew.adapters.stores.schema import TABLES, statements
from leadscrew.errors import TamperedError


def verify(folder: Path, *, head: str | None = None) -> int:
    """Check every row against the chain and every content against its digest; return the number of links.

    Raises `TamperedError` naming the first altered, missing or surplus row. `head` is a link that must be the end of some
    commit (a certificate's): it shows that the chain was not cut off before it. Memory does not grow with the run.
    """
    try:
        db = Database(folder / "run.db", readonly=True)
        try:
            with_snapshot = db.one("BEGIN")  # one snapshot, whatever a writer does meanwhile
            assert with_snapshot is None
            _check_file(db)
            links = _check_chain(db, head)
            _check_blobs(db)
            _check_traces(db, Content(db, folder / "traces"))
            return links
        finally:
            db.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError, ValueError, TypeError, IndexError) as error:
        raise TamperedError(f"the database cannot be read as it was written ({error}).", record="database") from error


def _check_file(db: Database) -> None:
    found = {row[0]: row[1] for row in db.stream("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")}
    fresh = sqlite3.connect(":memory:")
    try:
        for statement in statements():
            fresh.execute(statement)
        wanted = dict(fresh.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    finally:
        fresh.close()
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            what = "is missing" if name not in found else "is surplus" if name not in wanted else "was changed"
            raise TamperedError(f"schema: {name} {what}.", record=f"schema {name}")
    fault = db.one("PRAGMA integrity_check(1)")[0]
    if fault != "ok":
        raise TamperedError(f"the database file is damaged: {fault}.", record="database")


def _check_chain(db: Database, head: str | None) -> int:
    cursors: dict[str, Iterator[Any]] = {t: db.stream(f"SELECT * FROM {t} ORDER BY id") for t in TABLES}
    due = dict.fromkeys(TABLES, 1)
    before, links, commits, seen_head = START, 0, 0, head is None
    for number, at, hashes in db.stream("SELECT id, at_ms, hashes FROM link ORDER BY id"):
        commits += 1
        if number != commits:
            raise _fault(f"chain broken at link {links + 1}: commit {commits} is missing", f"commit {commits}")
        if len(hashes) % ENTRY or not hashes or hashes[-ENTRY] != COMMIT_CODE:
            raise _fault(f"chain broken at link {links + 1}: commit {commits} was changed", f"commit {commits}")
        for start in range(0, len(hashes), ENTRY):
            links += 1
            code, stored = hashes[start], bytes(hashes[start + 1 : start + ENTRY])
            last = start + ENTRY == len(hashes)
            if (code == COMMIT_CODE) != last or code > len(TABLES):
                raise _fault(f"chain broken at link {links}: it names no table", f"link {links}")
            if last:
                if link_hash(before, "link", (number, at)) != stored:
                    raise _fault(f"chain broken at link {links}: commit {commits} was changed", f"commit {commits}")
            else:
                table = TABLES[code - 1]
                row = next(cursors[table], None)
                if row is None or row[0] > due[table]:
                    raise _fault(f"{table} {due[table]}: row is missing", f"{table} {due[table]}")
                if row[0] < due[table]:
                    raise _fault(f"surplus row in table {table}: {name_of(db, table, row)}", f"{table} {row[0]}")
                found = link_hash(before, table, row)
                if found != stored:
                    raise _changed(db, table, row, found, hashes[start + ENTRY :], links, cursors, due, (number, at))
                due[table] += 1
            before = stored
        seen_head = seen_head or before.hex() == head
    for table, cursor in cursors.items():
        row = next(cursor, None)
        if row is not None:
            raise _fault(f"surplus row in table {table}: {name_of(db, table, row)}", f"{table} {row[0]}")
    if not seen_head:
        raise _fault(f"the chain does not contain the head {str(head)[:12]}: its end was cut off", "chain head")
    return links


def _changed(
    db: Database, table: str, row: Any, found: bytes, rest: bytes, link: int, cursors: dict[str, Iterator[Any]],
    due: dict[str, int], commit: tuple[int, int],
) -> TamperedError:
    """Tell an altered row from an altered link: if the next link follows from what the row gives, the row is sound."""
    code, following = rest[0], bytes(rest[1:ENTRY])
    due[table] += 1
    if code == COMMIT_CODE:
        sound = link_hash(found, "link", commit) == following
    elif code <= len(TABLES):
        after = next(cursors[TABLES[code - 1]], None)
        sound = after is not None and link_hash(found, TABLES[code - 1], after) == following
    else:
        sound = False
    if sound:
        return _fault(f"chain broken at link {link}: the link was changed, its row was not", f"link {link}")
    return _fault(f"{name_of(db, table, row)} was changed", f"{table} {row[0]}")


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
                return f"trial {row[0]} (key {codec.digest_out(row[1])[:12]}, {place[0]} instance {place[1]}, repeat {row[4]})"
            case _:
                return f"{table} {row[0]}"
    except (TypeError, AttributeError, IndexError):
        # The row that names it is altered too; its number is what is left to name it by.
        return f"{table} {row[0]}"


def _fault(text: str, record: str) -> TamperedError:
    return TamperedError(f"{text}.", record=record)
