"""The red team on this machine: every attack is held, and every control shows that the attack is real."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from leadscrew.errors import NotFoundError, UsageError
from leadscrew.testing.redteam import Attack, Report, Row, Sighting, attacks, run, select
from leadscrew.testing.redteam.other_user import report_from
from leadscrew.testing.redteam.runner import line, run_attack, summary

QUICK = select((), slow=False)


@pytest.fixture(scope="module")
def report() -> Report:
    return run(slow=False)


@pytest.mark.parametrize("name", [attack.name for attack in QUICK])
def test_the_attack_is_held_and_real(name: str, report: Report) -> None:
    row = next(row for row in report.rows if row.name == name)
    if row.skipped:
        pytest.skip(row.skipped)
    assert row.held, row.seen
    assert row.controlled, row.control_seen


@pytest.mark.slow
def test_all_attacks_are_held_and_real() -> None:
    out = io.StringIO()
    report = run(out, as_json=True)
    told = json.loads(out.getvalue())
    assert told["attempts"] == told["controls"] >= 30
    assert told["breaches"] == 0
    assert report.passed


def test_there_are_many_attacks_each_with_a_name_of_its_own() -> None:
    names = [attack.name for attack in attacks()]
    assert len(names) == len(set(names)) >= 80
    assert {attack.family for attack in attacks()} == {
        "lookup", "host", "protocol", "state", "limits", "survival", "network", "neighbour", "tree", "answer", "grading",
        "allowance", "identity", "key", "cache", "smuggle", "leak", "outage", "injection", "flood",
    }  # fmt: skip
    assert len(QUICK) >= 60


def test_every_built_in_domain_has_a_look_up_attack() -> None:
    about = " ".join(attack.name for attack in select(("lookup",)))
    for domain in ("docstrings", "debian", "jsonl", "folder", "packing"):
        assert domain in about


def test_an_unknown_name_is_refused_with_the_families() -> None:
    with pytest.raises(NotFoundError, match="give a family") as caught:
        select(("netwrk",))
    assert caught.value.name == "netwrk"


ROW = Row("a/b", "a", "about", "defence", True, True, "seen", "control seen", 0.1)


def _report(*rows: Row) -> Report:
    return Report(rows, "bubblewrap", "root", 1.0)


def test_a_breach_or_a_failed_control_fails_the_report() -> None:
    assert _report(ROW).passed
    assert not _report(ROW, replace(ROW, held=False)).passed
    assert not _report(ROW, replace(ROW, controlled=False)).passed
    assert not _report(replace(ROW, skipped="no such socket")).passed
    counted = _report(ROW, replace(ROW, held=False), replace(ROW, controlled=False), replace(ROW, skipped="none"))
    assert (counted.attempts, counted.controls, counted.breaches) == (3, 2, 1)
    assert counted.to_json()["skipped"] == 1


def test_a_report_survives_its_way_to_another_user_and_back() -> None:
    report = _report(ROW, replace(ROW, skipped="none"))
    assert report_from(json.loads(json.dumps(report.to_json()))) == report


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_must_exist_and_be_able_to_run_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no user"):
        run(user="leadscrew-nobody-has-this-name")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(closed / "python"))
    with pytest.raises(UsageError, match="may not run"):
        run(user="nobody")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_an_ordinary_user_cannot_become_another() -> None:
    with pytest.raises(UsageError, match="only root"):
        run(user="nobody")


def test_rows_say_what_happened() -> None:
    assert "held" in line(ROW)
    assert "BREACHED" in line(replace(ROW, held=False))
    assert "NO CONTROL" in line(replace(ROW, controlled=False))
    assert "no such socket" in line(replace(ROW, skipped="no such socket"))
    assert "1 attempts, 1 controls, 0 breaches as root in bubblewrap" in summary(_report(ROW))


async def _raises(error: Exception) -> Row:
    async def strike(arena: object) -> Sighting:
        raise error

    from leadscrew.adapters.sandboxes import choose

    return await run_attack(Attack("x/y", "x", "about", "defence", strike), choose("none"))


async def test_a_host_that_fails_is_a_breach_and_no_control() -> None:
    row = await _raises(RuntimeError("boom"))
    assert (row.held, row.controlled) == (False, False)
    assert "boom" in row.seen


async def test_what_an_answer_does_to_a_naive_harness_is_a_control() -> None:
    row = await _raises(RecursionError("deep"))
    assert (row.held, row.controlled) == (False, True)


async def test_both_arenas_are_emptied(tmp_path: object) -> None:
    seen = []

    async def strike(arena) -> Sighting:  # type: ignore[no-untyped-def]
        seen.append((arena.defended, arena.folder))
        arena.decoy("x", "y")
        return Sighting(not arena.defended, "")

    from leadscrew.adapters.sandboxes import choose

    row = await run_attack(Attack("x/y", "x", "about", "defence", strike), choose("none"))
    assert row.held
    assert row.controlled
    assert [defended for defended, _ in seen] == [True, False]
    assert not any(folder.exists() for _, folder in seen)
