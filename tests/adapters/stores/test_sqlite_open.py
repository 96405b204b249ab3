"""Opening a run: newer versions, foreign files, folders that cannot be written, readers beside the writer."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from leadscrew.adapters.stores import database
from leadscrew.adapters.stores.schema import VERSION
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.proposal import Edit
from leadscrew.errors import NotFoundError, RefusedError, SchemaVersionError, TamperedError
from leadscrew.ports import StoredPlan
from leadscrew.testing.samples import sample_trial, write_run
from leadscrew.testing.store import RECORD_KINDS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a run with 100%? #1"
    with SQLiteStore.create(folder, config={"method": "suite"}, seed=7, record_kinds=RECORD_KINDS) as store:
        write_run(store, plans=2)
        store.commit()
    return folder


def _execute(folder: Path, sql: str) -> None:
    db = sqlite3.connect(folder / "run.db", isolation_level=None)
    db.execute(sql)
    db.close()


def test_the_settings_that_make_a_commit_durable_are_in_force(run: Path) -> None:
    with SQLiteStore.open(run) as store:
        asked = ("journal_mode", "synchronous", "foreign_keys", "user_version")
        assert [store._db.one(f"PRAGMA {name}")[0] for name in asked] == ["wal", 2, 1, VERSION]


def test_a_run_of_a_newer_leadscrew_is_refused(run: Path) -> None:
    _execute(run, f"PRAGMA user_version = {VERSION + 1}")
    for readonly in (False, True):
        with pytest.raises(SchemaVersionError, match=f"version {VERSION + 1}.*up to {VERSION}.*Install"):
            SQLiteStore.open(run, readonly)
    _execute(run, f"PRAGMA user_version = {VERSION}")
    SQLiteStore.open(run).close()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run in"):
        SQLiteStore.open(tmp_path)
    assert list(tmp_path.iterdir()) == [], "looking must not leave anything"
    (tmp_path / "run.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(TamperedError, match="damaged"):
        SQLiteStore.open(tmp_path)
    (tmp_path / "run.db").unlink()
    _execute(tmp_path, "CREATE TABLE something(x)")
    with pytest.raises(TamperedError, match="not that of a run"):
        SQLiteStore.open(tmp_path)


def test_a_second_run_in_the_folder_is_refused_and_the_first_kept(run: Path) -> None:
    with pytest.raises(RefusedError, match="Resume it"):
        SQLiteStore.create(run, config={}, seed=1)
    with SQLiteStore.open(run) as store:
        assert (store.seed, store.config, store.record_kinds) == (7, {"method": "suite"}, RECORD_KINDS)


def test_a_run_can_be_copied_while_nobody_writes(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy")
    with SQLiteStore.open(run) as store, SQLiteStore.open(tmp_path / "copy") as copy:
        assert copy.chain_head() == store.chain_head()
        assert copy.verify() == store.verify()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_reader_needs_no_rights_to_write(run: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    """In a folder that cannot be written SQLite could not make its index; the reader must open all the same."""
    before = sorted(p.name for p in run.iterdir())
    if frozen:
        monkeypatch.setattr(database, "_writable", lambda folder: False)
    with SQLiteStore.open(run, readonly=True) as reader:
        assert [c.id for c in reader.candidates()] == ["0.0", "1.0"]
        assert reader.verify()
    if frozen:
        assert sorted(p.name for p in run.iterdir()) == before


def test_a_reader_sees_commits_as_they_come_and_nothing_before(run: Path) -> None:
    with SQLiteStore.open(run) as store, SQLiteStore.open(run, readonly=True) as reader:
        spend, head = reader.spend(), reader.chain_head()
        store.add_trial(sample_trial(60))
        assert (reader.spend(), reader.chain_head()) == (spend, head)
        assert reader.find_trial(sample_trial(60).key) is None
        store.commit()
        assert reader.spend() == store.spend() != spend
        assert reader.chain_head() == store.chain_head() != head
        assert reader.find_trial(sample_trial(60).key) == sample_trial(60)


def test_a_writer_verifies_what_is_durable(run: Path) -> None:
    with SQLiteStore.open(run) as store:
        links = store.verify()
        store.add_plan(StoredPlan(2, Edit("genetic"), 1))
        assert store.verify() == links
        store.commit()
        assert store.verify() == links + 2


def test_streams_go_on_while_the_writer_writes(run: Path) -> None:
    with SQLiteStore.open(run) as store:
        stream = store.plans()
        assert next(stream).number == 0
        store.add_event("between", {})
        store.commit()
        assert next(stream).number == 1
        store.add_plan(StoredPlan(2, Edit("genetic"), 1))
        store.commit()
        assert [p.number for p in store.plans()] == [0, 1, 2]


def test_the_record_kinds_can_be_declared_anew(run: Path) -> None:
    with SQLiteStore.open(run, record_kinds={"other": {}}) as store:
        assert store.record_kinds == {"other": {}}


def test_reading_leaves_a_crashed_writers_log_alone(run: Path, tmp_path: Path) -> None:
    """The database and its log as they lie after kill -9: a reader sees every commit in them."""
    copy = tmp_path / "crashed"
    with SQLiteStore.open(run) as store:
        store.add_event("in the log only", {})
        store.commit()
        copy.mkdir()
        for name in ("run.db", "run.db-wal"):
            shutil.copy(run / name, copy / name)
    log = (copy / "run.db-wal").read_bytes()
    with SQLiteStore.open(copy, readonly=True) as reader:
        assert [kind for _, kind, _ in reader.events("in the log only")] == ["in the log only"]
    assert (copy / "run.db-wal").read_bytes() == log
    assert os.path.getsize(copy / "run.db-wal") > 0
