"""The ledger of openings: once per run and split, shared by all runs of a user, torn lines survived."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leadscrew.engine.ledger import Ledger
from leadscrew.errors import InfrastructureError


def test_a_run_counts_once_and_every_run_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "cache" / "openings.jsonl")
    assert ledger.record("split-a", "run-1", "now") == 1
    assert ledger.record("split-a", "run-1", "later") == 1
    assert ledger.record("split-b", "run-1", "now") == 1
    assert ledger.record("split-a", "run-2", "now") == 2


def test_many_at_once_are_all_counted(tmp_path: Path) -> None:
    path = tmp_path / "openings.jsonl"
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda n: Ledger(path).record("split", f"run-{n}", "now"), range(20)))
    assert sorted(counts) == list(range(1, 21))


def test_a_torn_line_is_no_opening_and_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "openings.jsonl"
    Ledger(path).record("split", "run-1", "now")
    with open(path, "ab") as stream:
        stream.write(b'{"split": "split", "ru\n')
    assert Ledger(path).record("split", "run-2", "now") == 2


def test_an_opening_that_cannot_be_counted_does_not_happen(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="stays sealed"):
        Ledger(tmp_path / "file" / "openings.jsonl").record("split", "run", "now")
