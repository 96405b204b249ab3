"""The SQLite store keeps the contract of the port."""

from __future__ import annotations

from pathlib import Path

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.testing.store import RECORD_KINDS, StoreSuite


class TestSQLiteStore(StoreSuite):
    def create(self, folder: Path) -> SQLiteStore:
        return SQLiteStore.create(folder, config={"method": "suite"}, seed=7, record_kinds=RECORD_KINDS)

    def open(self, folder: Path, readonly: bool = False) -> SQLiteStore:
        return SQLiteStore.open(folder, readonly=readonly)
