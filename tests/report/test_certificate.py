"""The certificate as text, and the check that it is the one the run closed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.canonical import digest_of
from leadscrew.errors import TamperedError
from leadscrew.report.certificate import certificate_text, check_certificate
from support.made_run import make_run


def certificate(**changes: Any) -> dict[str, Any]:
    """A certificate as `finalize` writes it."""
    row = {"id": "0.1", "name": "double", "baseline": True, "val": 0.5, "test": 0.55, "interval": [0.4, 0.7]}
    made: dict[str, Any] = {
        "version": 1,
        "improved": True,
        "verdict": "improved: 1.0 beats the best baseline on test, double, by 0.2 (p = 0.01)",
        "champion": {"id": "1.0", "name": "plus one", "program": "p", "val": 0.75, "hypothesis": "adding one is right"},
        "objective": {"name": "accuracy", "direction": "max", "floor": 0.0, "ceiling": 1.0, "unit": ""},
        "test": {
            "best": 0.75,
            "best_interval": [0.6, 0.9],
            "baseline": 0.55,
            "baseline_id": "0.1",
            "baseline_name": "double",
            "difference": 0.2,
            "interval": [0.1, 0.3],
            "interval_level": 0.95,
            "p_value": 0.00001,
            "p_test": "two-sided mcnemar",
            "instances": 40,
            "digest": "d" * 64,
            "rows": [row | {"failures": {"crash": 2}, "costs": {}, "per_dataset": {}}],
        },
        "val_visible": True,
        "candidates": 5,
        "evaluated": 3,
        "openings": 1,
        "recheck": {"checked": 8, "mismatches": []},
        "spend": {"trials": 12, "cpu_ms": 2400, "wall_ms": 3600, "calls": 0, "micro_usd": 0, "seconds": 9.5},
        "caps": {"trials": 50},
        "tamper_exposed": False,
        "sandbox": {
            "name": "bubblewrap",
            "version": "0.11",
            "isolated": True,
            "limits": {"cpu": "cgroup"},
            "warnings": [],
        },
        "seed": 3,
        "chain_head": "c" * 64,
    }
    return made | changes


def test_the_text_says_what_the_json_says() -> None:
    text = certificate_text(certificate())
    for words in [
        "Improved: 1.0 beats",
        "1.0 plus one, fixed on val at 0.7500",
        "0.7500 (95 % interval 0.6000 to 0.9000)",
        "0.5500, double",
        "+0.2000 (95 % interval 0.1000 to 0.3000)",
        "1.0e-05, two-sided mcnemar, 40 instances",
        "5 candidates, 3 of them evaluated",
        "yes, with answers",
        "opened once",
        "8 answers, all the same",
        "12 trials, 2.4 s of processor time in boxes, 3.6 s of wall time in boxes, 9.5 seconds",
        "bubblewrap 0.11",
        "c" * 64,
        "double (baseline)",
        "2 crash",
    ]:
        assert words in text


def test_doubts_are_not_hidden() -> None:
    plain = {"name": "none", "version": "", "isolated": False, "limits": {}, "warnings": ["anything goes"]}
    text = certificate_text(
        certificate(
            improved=False,
            openings=4,
            val_visible=False,
            tamper_exposed=True,
            sandbox=plain,
            recheck={"checked": 8, "mismatches": [{"candidate": "1.0"}]},
            spend={"trials": 1, "micro_usd": None},
        )
    )
    for words in [
        "improved                no",
        "opened 4 times in all",
        "NOT ISOLATED",
        "warning: anything goes",
        "1 came out differently",
        "money unknown",
        "tamper-exposed",
    ]:
        assert words in text


def test_a_certificate_must_be_the_one_that_was_closed_with(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r")
    said = certificate()
    del said["chain_head"]
    with SQLiteStore.open(folder) as store:
        with pytest.raises(TamperedError, match="never closed"):
            check_certificate(certificate(), store)
        store.add_event("closed", {"certificate": digest_of(said)})
        store.commit()
        good = said | {"chain_head": store.chain_head()}
        check_certificate(good, store)
        with pytest.raises(TamperedError, match="not what the run was closed with"):
            check_certificate(good | {"improved": False}, store)
        with pytest.raises(TamperedError, match="chain head"):
            check_certificate(good | {"chain_head": "0" * 64}, store)
