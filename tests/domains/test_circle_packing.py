"""Circle packing: the exact checker, and programs that must give feasible packings."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.core.task import Answer, Instance
from leadscrew.domains.circle_packing import CirclePacking
from leadscrew.domains.circle_packing.check import fault, read, total
from leadscrew.errors import DomainError, MissingExtraError
from leadscrew.ports import BadAnswer, Domain
from leadscrew.testing.domain import DomainConformance

HAS_SCIPY = all(importlib.util.find_spec(name) is not None for name in ("numpy", "scipy"))


class TestConformance(DomainConformance):
    def domain(self) -> Domain:
        return CirclePacking(seed=5)

    def right(self, instance: Instance) -> Answer | None:
        grid = [[(2 * i + 1) / 16, (2 * j + 1) / 16, 1 / 16] for i in range(8) for j in range(8)]
        return Answer(grid[: instance.input["n"]])


def judge(circles: list[list[float]]) -> float:
    domain = CirclePacking(n=len(circles))
    return domain.score(domain.instances("val")[0], Answer(circles)).value


def test_touching_is_allowed_and_one_ulp_is_not() -> None:
    touching = [[0.25, 0.5, 0.25], [0.75, 0.5, 0.25]]
    assert judge(touching) == 0.5
    with pytest.raises(BadAnswer, match="circles 0 and 1 overlap"):
        judge([[math.nextafter(0.25, 1), 0.5, 0.25], [0.75, 0.5, 0.25]])
    with pytest.raises(BadAnswer, match="circle 1 leaves the unit square"):
        judge([[0.25, 0.5, 0.25], [0.75, 0.5, math.nextafter(0.25, 1)]])


def test_floats_that_only_look_right_are_refused() -> None:
    """A grid of tenths touches on paper; in doubles 0.3 - 0.1 is less than 0.1 + 0.1."""
    assert 0.3 - 0.1 < 0.2
    with pytest.raises(BadAnswer, match="overlap"):
        judge([[0.1, 0.5, 0.1], [0.3, 0.5, 0.1]])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[0.5, 0.5, 0.5]], "list of 2 circles"),
        ([[0.5, 0.5], [0.1, 0.1, 0.1]], r"circle 0 must be \[x, y, r\]"),
        ([[0.5, 0.5, True], [0.1, 0.1, 0.1]], "no number"),
        ([[0.5, 0.5, -0.1], [0.1, 0.1, 0.1]], "negative radius"),
        ([[0.5, 0.5, 10**6000], [0.1, 0.1, 0.1]], "outside"),
        ([[0.5, 0.5, float("nan")], [0.1, 0.1, 0.1]], "outside"),
        ([[0.5, 0.5, float("inf")], [0.1, 0.1, 0.1]], "outside"),
        ([10**6000, [0.1, 0.1, 0.1]], "circle 0 must be"),
        ({"circles": []}, "not a dict"),
    ],
)
def test_other_answers_are_refused(answer: Any, said: str) -> None:
    domain = CirclePacking(n=2)
    with pytest.raises(BadAnswer, match=said):
        domain.score(domain.instances("train")[0], Answer(answer))


@given(
    x=st.floats(0.25, 0.5),
    y=st.floats(0.3, 0.6),
    r=st.floats(0.01, 0.2),
    angle=st.floats(0, 6.3),
    other=st.floats(0, 0.2),
)
def test_the_checker_agrees_with_exact_arithmetic(x: float, y: float, r: float, angle: float, other: float) -> None:
    """Two circles that nearly touch: what decides is the square of the exact distance."""
    circles = [[x, y, r], [x + (r + other) * math.cos(angle), y + (r + other) * math.sin(angle), other]]
    inside = all(
        Fraction(a) - Fraction(c) >= 0 and Fraction(a) + Fraction(c) <= 1
        for circle in circles
        for a in circle[:2]
        for c in circle[2:]
    )
    (xa, ya, ra), (xb, yb, rb) = ([Fraction(v) for v in circle] for circle in circles)
    apart = (xa - xb) ** 2 + (ya - yb) ** 2 >= (ra + rb) ** 2
    assert (fault(read(circles, 2)) == "") == (inside and apart)


def test_the_sum_is_rounded_once() -> None:
    circles = read([[0.5, 0.5, 0.1]] * 10, 10)
    assert total(circles) == float(sum(Fraction(0.1) for _ in range(10)))


def test_seeds_differ_between_splits_and_runs() -> None:
    inputs = [
        i.input["seed"]
        for seed in (0, 1)
        for split in ("train", "val", "test")
        for i in CirclePacking(seed=seed).instances(split)
    ]
    assert len(inputs) == len(set(inputs)) == 24


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "'n'"),
        ({"cpu_s": 0}, "'cpu_s'"),
        ({"sizes": {"valid": 3}}, "val"),
        ({"packages": "numpy"}, "write one of"),
    ],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DomainError, match=said):
        CirclePacking(**options)


@pytest.mark.skipif(HAS_SCIPY, reason="SciPy is installed")
def test_scipy_can_be_demanded() -> None:
    with pytest.raises(MissingExtraError, match=r"leadscrew\[circles\]"):
        CirclePacking(packages="scipy")
    assert "slsqp" not in CirclePacking().baselines()


def solved(domain: CirclePacking, name: str, folder: Path) -> float:
    (folder / "main.py").write_bytes(domain.baselines()[name]["main.py"].data)
    instance = domain.instances("val")[0]
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); import main; json.dump(main.solve(json.load(sys.stdin)), sys.stdout)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        input=json.dumps(instance.input),
        capture_output=True,
        text=True,
        check=True,
    )
    return domain.score(instance, Answer(json.loads(done.stdout))).value


@pytest.mark.parametrize("n", [1, 2, 5, 26, 30])
def test_the_grid_is_feasible(n: int, tmp_path: Path) -> None:
    value = solved(CirclePacking(n=n), "grid", tmp_path)
    assert value > {1: 0.49, 2: 0.49, 5: 1.09, 26: 2.5414, 30: 2.5}[n]


def test_one_restart_is_feasible(tmp_path: Path) -> None:
    """The time is so short that exactly one start is made."""
    assert solved(CirclePacking(cpu_s=0.01), "restarts", tmp_path) > 2.0


@pytest.mark.slow
def test_restarts_come_close_to_the_record(tmp_path: Path) -> None:
    assert 2.6 < solved(CirclePacking(cpu_s=10), "restarts", tmp_path) < 2.64


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SCIPY, reason="needs the extra 'circles'")
def test_slsqp_comes_close_to_the_record(tmp_path: Path) -> None:
    assert 2.6 < solved(CirclePacking(cpu_s=10, packages="scipy"), "slsqp", tmp_path) < 2.64
