"""A run of the first schema, written by the first release: read as it is, brought up to date when it is written on.

`version_1.sql` is that run as SQL: old tables, rows, links of the chain and triggers.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from leadscrew.adapters.stores.schema import VERSION
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Spend
from leadscrew.core.proposal import Edit
from leadscrew.errors import TamperedError
from leadscrew.ports import StoredPlan
from leadscrew.testing.samples import sample_call, sample_reply, sample_trial

HEAD = "d7418cc3ec710c4f59f27c2a9bf50424437244762dabf9e2c1246071294da822"
DIGEST = "af09b816cc333c1f6254c2722ec81317e9fc6f54b6eb3326afeda8b8984775c7"
LINKS = 33
"""What the first release said of the run."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    for part in ("inbox", "traces"):
        (folder / part).mkdir(parents=True)
    db = sqlite3.connect(folder / "run.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(Path(__file__).with_name("version_1.sql").read_text(encoding="utf-8"))
    db.execute("PRAGMA user_version = 1")
    db.close()
    return folder


def _version(folder: Path) -> int:
    db = sqlite3.connect(folder / "run.db")
    try:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
    finally:
        db.close()


def test_an_old_run_is_read_as_it_is(old: Path) -> None:
    with SQLiteStore.open(old, readonly=True) as store:
        assert (store.chain_head(), store.archive_digest(), store.verify(HEAD)) == (HEAD, DIGEST, LINKS)
        assert [c.id for c in store.candidates()] == ["0.0", "1.0"]
        assert (list(store.calls()), dict(store.call_spend())) == ([], {})
        assert store.find_reply("a" * 64, "b" * 64, 0) is store.find_shared("a" * 64, "b" * 64, 0) is None
        assert store.spend() == Spend(2, 24, 30)
    assert _version(old) == 1


def test_writing_on_brings_an_old_run_up_to_date(old: Path) -> None:
    with SQLiteStore.open(old, readonly=True) as early:
        with SQLiteStore.open(old) as store:
            assert (store.chain_head(), store.archive_digest(), store.verify(HEAD)) == (HEAD, DIGEST, LINKS)
            store.add_plan(StoredPlan(2, Edit("genetic"), 2))
            store.add_trial(sample_trial(5))
            store.add_reply(store.add_call(sample_call(5)), sample_reply())
            store.commit()
            assert store.verify(HEAD) == LINKS + 6
        assert [(n, reply) for n, _, reply in early.calls()] == [(1, sample_reply())], (
            "a reader from before sees it too"
        )
    assert _version(old) == VERSION
    with SQLiteStore.open(old) as store:
        assert store.verify(HEAD) == LINKS + 6
        assert store.spend() == Spend(3, 36, 45, 1, 12, 1, 7)
        assert store.archive_digest() == DIGEST


def test_an_upgraded_run_has_the_schema_of_a_new_one(old: Path, tmp_path: Path) -> None:
    SQLiteStore.open(old).close()
    SQLiteStore.create(tmp_path / "new", config={}, seed=1).close()
    found = []
    for folder in (old, tmp_path / "new"):
        db = sqlite3.connect(folder / "run.db")
        found.append(set(db.execute("SELECT name, sql FROM sqlite_master")))
        db.close()
    assert found[0] == found[1]


def test_an_upgrade_happens_whole_or_not_at_all(old: Path) -> None:
    db = sqlite3.connect(old / "run.db", isolation_level=None)
    db.execute("CREATE TABLE reply(x)")
    with pytest.raises(TamperedError, match="reply"):
        SQLiteStore.open(old)
    assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'call'").fetchall()
    db.execute("DROP TABLE reply")
    db.execute("BEGIN IMMEDIATE")
    db.execute("ROLLBACK")
    db.close()
    assert _version(old) == 1
    SQLiteStore.open(old).close()
    assert _version(old) == VERSION


def test_an_old_schema_with_new_tables_is_found(old: Path) -> None:
    """The version names the schema: tables that it does not have are surplus."""
    SQLiteStore.open(old).close()
    db = sqlite3.connect(old / "run.db", isolation_level=None)
    db.execute("PRAGMA user_version = 1")
    db.close()
    with SQLiteStore.open(old, readonly=True) as store, pytest.raises(TamperedError, match="surplus"):
        store.verify()
