"""Whatever is altered in a run's database or trace files, `verify` finds it and says what it was."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.stores.inbox import post
from leadscrew.adapters.stores.schema import TABLES
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.adapters.stores.verify import verify as check
from leadscrew.core.program import Program
from leadscrew.core.proposal import Proposal
from leadscrew.core.trial import Outcome, Trace
from leadscrew.errors import SchemaVersionError, TamperedError
from leadscrew.testing.samples import sample_call, sample_reply, sample_trial, write_run
from leadscrew.testing.store import RECORD_KINDS

LARGE = Trace(stdout="".join(str(i * i) for i in range(30_000)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed run with at least one row in every table."""
    folder = tmp_path_factory.mktemp("tamper") / "run"
    store = SQLiteStore.create(folder, config={"a": 1}, seed=7, record_kinds=RECORD_KINDS)
    write_run(store, plans=3)
    store.commit()
    kept = store.put_trace(Trace(stdout="kept"))
    store.put_trace(LARGE)
    store.put_trace(Trace(stdout="to be pruned"))
    store.add_trial(sample_trial(8, Outcome.INFRA))
    tree = Program.of({f"m{i}.py": f"x = {i}\n" for i in range(40)})
    store.add_proposal(2, 1, Proposal(tree, log="long " * 200))
    store.put_program(tree.with_files({"m1.py": "x = 99\n"}))
    for number in range(2):
        store.add_reply(store.add_call(sample_call(number)), sample_reply())
    store.commit()
    store.prune_traces({kept, _digest(LARGE, store)})
    post(folder, "note", {"text": "hello"})
    (message,) = store.inbox()
    store.taken(message)
    store.commit()
    store.close()
    return folder


def _digest(trace: Trace, store: SQLiteStore) -> str:
    return store.put_trace(trace)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


@contextmanager
def tampering(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database as a forger would: triggers away, rules off, and everything put back afterwards."""
    db = sqlite3.connect(folder / "run.db", isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        db.execute("BEGIN")
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        yield db
        for _, sql in triggers:
            db.execute(sql)
        db.execute("COMMIT")
    finally:
        db.close()


def verify(folder: Path, head: str | None = None) -> int:
    return check(folder, head=head)


def found(folder: Path, head: str | None = None) -> TamperedError:
    with pytest.raises(TamperedError) as caught:
        verify(folder, head)
    assert caught.value.record
    return caught.value


def rows(db: sqlite3.Connection, table: str) -> list[Any]:
    return db.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


def columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def other(value: Any) -> list[Any]:
    """Values that differ from `value`, likeliest to be accepted first."""
    match value:
        case None:
            return [1, "x", b"x"]
        case bytes():
            return [bytes([value[0] ^ 1]) + value[1:] if value else b"x", value + b"x"]
        case str():
            return [value + "x", "database" if value == "file" else "file"]
        case float():
            return [value + 1.0, 0.25]
        case _:
            return [value + 1, value + 1000, 0]


def test_an_untouched_run_verifies(run: Path) -> None:
    with sqlite3.connect(run / "run.db") as db:
        empty = [table for table in TABLES if not rows(db, table)]
        written = sum(len(rows(db, table)) for table in (*TABLES, "link"))
    db.close()
    assert empty == []
    assert verify(run) == written


def test_every_changed_column_is_found_and_named(copy: Path) -> None:
    with tampering(copy) as db:
        places = [
            (table, row[0], column, row[i])
            for table in (*TABLES, "trace_data", "link")
            for row in {row[0]: row for row in (rows(db, table)[0], rows(db, table)[-1])}.values()
            for i, column in enumerate(columns(db, table))
            if column != "id"
        ]
    assert len(places) > 150
    named = 0
    for table, number, column, value in places:
        for new in other(value):
            try:
                with tampering(copy) as db:
                    db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (new, number))
                break
            except sqlite3.IntegrityError:
                continue
        else:
            pytest.fail(f"no other value for {table}.{column} was accepted")
        error = found(copy)
        if table in TABLES:
            assert error.record == f"{table} {number}", (table, number, column, str(error))
            named += column in re.split(r"\W+", str(error).partition(": ")[2])
        with tampering(copy) as db:
            db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (value, number))
    assert verify(copy)
    # One check byte per column: a few changes in a thousand keep it and are named by their row alone.
    in_tables = sum(table in TABLES for table, *_ in places)
    assert named >= 0.95 * in_tables


def test_the_message_speaks_of_candidates_and_trials(copy: Path) -> None:
    with tampering(copy) as db:
        db.execute("UPDATE candidate SET name = 'forged' WHERE plan = 1")
    assert str(found(copy)) == "candidate 1.0: name was changed."


def test_a_forged_reply_is_named(copy: Path) -> None:
    with tampering(copy) as db:
        db.execute("UPDATE reply SET micro_usd = 0 WHERE id = 2")
    assert str(found(copy)) == "reply 2 to call 2: micro_usd was changed."
    with tampering(copy) as db:
        db.execute("UPDATE reply SET micro_usd = 7 WHERE id = 2")
        db.execute("UPDATE call SET candidate = '9.9' WHERE id = 1")
    assert str(found(copy)) == "call 1 (solver, plan 0): candidate was changed."


def test_every_deleted_row_is_found(copy: Path) -> None:
    with tampering(copy) as db:
        places = [(table, row) for table in (*TABLES, "trace_data", "link") for row in rows(db, table)]
    for table, row in places:
        with tampering(copy) as db:
            db.execute(f"DELETE FROM {table} WHERE id = ?", (row[0],))
        error = found(copy)
        if table in TABLES:
            assert error.record == f"{table} {row[0]}", str(error)
        with tampering(copy) as db:
            db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)
    assert verify(copy)


@pytest.mark.parametrize("table", [*TABLES, "trace_data"])
def test_surplus_rows_are_found(copy: Path, table: str) -> None:
    with tampering(copy) as db:
        last = rows(db, table)[-1]
        forged = [last[0] + 1, *last[1:]]
        for i, (column, value) in enumerate(zip(columns(db, table), last, strict=True)):
            if column in ("digest", "key", "name"):
                forged[i] = other(value)[0]
            if column in ("plan", "idx", "number", "trace", "call") and isinstance(value, int):
                forged[i] = value + 100
        db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(last))})", forged)
    error = found(copy)
    assert "surplus row in table" in str(error)
    assert error.record == f"{table} {last[0] + 1}"


@pytest.mark.parametrize("table", ["trial", "event", "candidate", "plan", "verdict", "link"])
def test_swapped_rows_are_found(copy: Path, table: str) -> None:
    with tampering(copy) as db:
        first, second = rows(db, table)[:2]
        db.execute(f"DELETE FROM {table} WHERE id IN (?, ?)", (first[0], second[0]))
        for number, row in ((first[0], second), (second[0], first)):
            db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", (number, *row[1:]))
    found(copy)


def test_a_rewritten_link_is_told_from_a_rewritten_row(copy: Path) -> None:
    with tampering(copy) as db:
        hashes = bytearray(db.execute("SELECT hashes FROM link WHERE id = 2").fetchone()[0])
        hashes[5] ^= 1
        db.execute("UPDATE link SET hashes = ? WHERE id = 2", (bytes(hashes),))
    assert "the link was changed, its row was not" in str(found(copy))


def test_a_chain_that_was_cut_off_is_found_by_its_recorded_head(copy: Path) -> None:
    store = SQLiteStore.open(copy)
    store.add_event("the end", {})
    store.commit()
    head = store.chain_head()
    store.close()
    assert verify(copy, head)
    with tampering(copy) as db:
        db.execute("DELETE FROM event WHERE id = (SELECT max(id) FROM event)")
        db.execute("DELETE FROM link WHERE id = (SELECT max(id) FROM link)")
    assert verify(copy), "without the head nothing contradicts a shorter chain"
    assert "cut off" in str(found(copy, head))


def test_a_changed_or_missing_trace_file_is_found(copy: Path) -> None:
    (path,) = [p for p in (copy / "traces").rglob("*") if p.is_file()]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert found(copy).record == f"trace {path.name[:12]}"
    path.unlink()
    assert "content is missing" in str(found(copy))
    path.write_bytes(data)
    assert verify(copy)


def test_a_changed_schema_is_found(copy: Path) -> None:
    with sqlite3.connect(copy / "run.db") as db:
        db.execute("DROP TRIGGER trial_no_update")
    db.close()
    assert "trial_no_update is missing" in str(found(copy))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_found_or_harmless(run: Path, tmp_path: Path, seed: int) -> None:
    """Bytes of free space may differ; whatever can be read may not."""
    rng = random.Random(seed)
    data = (run / "run.db").read_bytes()
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    before = _dump(run)
    caught = 0
    for _ in range(150):
        place = rng.randrange(len(data))
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        (copy / "run.db").write_bytes(flipped)
        try:
            verify(copy)
        except (TamperedError, SchemaVersionError):
            caught += 1
        else:
            assert _dump(copy) == before, f"byte {place} changed what is read, and verify said nothing"
    assert caught > 5


def _dump(folder: Path) -> list[Any]:
    db = sqlite3.connect(folder / "run.db")
    try:
        return [rows(db, table) for table in (*TABLES, "trace_data", "link")]
    finally:
        db.close()


def test_rows_cannot_be_changed_by_accident(copy: Path) -> None:
    db = sqlite3.connect(copy / "run.db")
    try:
        for table in (*TABLES, "trace_data", "link"):
            with pytest.raises(sqlite3.IntegrityError, match=r"never changed|only after its tombstone"):
                db.execute(f"DELETE FROM {table}")
            column = columns(db, table)[1]
            with pytest.raises(sqlite3.IntegrityError, match="never changed"):
                db.execute(f"UPDATE {table} SET {column} = {column}")
    finally:
        db.close()


def test_a_text_that_is_no_unicode_any_more_is_named(copy: Path) -> None:
    with tampering(copy) as db:
        db.execute("UPDATE candidate SET claim = CAST(x'7b80' AS TEXT) WHERE plan = 1")
    assert str(found(copy)) == "candidate 1.0: claim was changed."
    with SQLiteStore.open(copy, readonly=True) as store, pytest.raises(TamperedError, match="damaged"):
        list(store.candidates())
