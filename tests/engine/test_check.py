"""What a proposal must pass before anything of it runs."""

from __future__ import annotations

import pytest

from leadscrew.core.program import Program, Region
from leadscrew.core.proposal import Proposal
from leadscrew.core.task import Interface
from leadscrew.core.trial import Outcome
from leadscrew.engine.check import CheckSettings, Finding, check_static, source_fault

BASE = Program.of({"main.py": "def solve(input):\n    return 1\n", "notes/a.md": "a\n"})


def check(program: Program | None, **given: object) -> Finding:
    settings = {"interface": Interface("solve"), "settings": CheckSettings(), **given}
    return check_static(Proposal(program, failure="" if program else "cut off"), **settings)  # type: ignore[arg-type]


def test_a_changed_program_passes() -> None:
    assert check(BASE.with_files({"main.py": "def solve(input):\n    return 2\n"}), base=BASE).outcome is Outcome.OK


def test_a_missing_program_carries_its_reason() -> None:
    assert check(None) == Finding(Outcome.INVALID, "cut off")


def test_byte_code_makes_no_new_program() -> None:
    smuggled = BASE.with_files({"__pycache__/main.cpython-311.pyc": b"\0\1"})
    assert smuggled == BASE
    assert "no change: candidate 0.0" in check(smuggled, known="0.0").reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"main.py": "def solve(input:\n"}, "syntax error in line 1"),
        ({"main.py": None}, "'main.py' is missing"),
        ({"main.py": "x = " + "(" * 5000}, "main.py"),
        ({"big.bin": b"x" * (5 << 20)}, "at most"),
        ({"main.py": "\0"}, "main.py"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(changes: dict[str, str | bytes | None], reason: str) -> None:
    finding = check(BASE.with_files(changes), base=BASE)
    assert finding.outcome is Outcome.INVALID
    assert reason in finding.reason


def test_changes_outside_the_region_are_refused() -> None:
    region = Region(("notes/**",))
    assert check(BASE.with_files({"notes/a.md": "b\n"}), base=BASE, region=region).outcome is Outcome.OK
    finding = check(BASE.with_files({"main.py": "def solve(input): return 3\n"}), base=BASE, region=region)
    assert "outside the region" in finding.reason
    moved = BASE.with_files({"main.py": None, "notes/main.py": BASE.text("main.py")})
    assert "main.py" in check(moved, base=BASE, region=region).reason


def test_other_languages_are_not_parsed_as_python() -> None:
    shell = Program.of({"run.sh": "echo hi\n", "x.py": "not python ("})
    command = Interface("solve", command=("sh", "run.sh"))
    assert check(shell, interface=command).outcome is Outcome.OK


def test_parsing_never_runs_anything() -> None:
    assert source_fault(b"raise SystemExit(1)\n") is None
    assert source_fault(b"def f(:") is not None
    assert source_fault(b"# -*- coding: nonsense -*-\nx = 1\n") is not None
