"""The tests and intervals against brute force, tables and each other."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.policies import stats

small = st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.25]), min_size=1, max_size=9)
finite = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 3))


def by_counting(differences: list[float], statistic: object = sum) -> float:
    sizes = [abs(d) for d in differences if d]
    seen = sum(d for d in differences if d)
    signs = list(itertools.product((1, -1), repeat=len(sizes)))
    return sum(sum(s * z for s, z in zip(p, sizes, strict=True)) >= seen - 1e-9 for p in signs) / len(signs)


@given(small)
def test_sign_flip_counts_every_pattern(differences: list[float]) -> None:
    assert stats.sign_flip(differences) == pytest.approx(by_counting(differences), abs=1e-12)


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_is_the_sign_flip_of_equal_sizes(wins: int, losses: int) -> None:
    assert stats.mcnemar(wins, losses) == pytest.approx(stats.sign_flip([1.0] * wins + [-1.0] * losses))


@given(small)
def test_wilcoxon_counts_every_pattern_of_ranks(differences: list[float]) -> None:
    moved = [d for d in differences if d]
    order = sorted(abs(d) for d in moved)
    rank = {z: fmean(i + 1 for i, o in enumerate(order) if o == z) for z in order}
    signed = [math.copysign(rank[abs(d)], d) for d in moved]
    assert stats.wilcoxon(differences) == pytest.approx(by_counting(signed), abs=1e-12)


@given(st.lists(finite, min_size=1, max_size=40))
def test_both_tails_together_cover_everything_and_scale_does_not_matter(differences: list[float]) -> None:
    up, down = stats.paired_test(differences).p, stats.paired_test([-d for d in differences]).p
    assert 0 <= up <= 1
    assert up + down >= 1 - 1e-9
    assert stats.paired_test([4 * d for d in differences]).p == pytest.approx(up, abs=1e-9)
    assert stats.two_sided(differences).p <= 1


@given(st.lists(finite, min_size=1, max_size=12))
def test_no_p_value_is_smaller_than_the_smallest_attainable(differences: list[float]) -> None:
    assert stats.paired_test(differences).p >= stats.smallest_p(len(differences)) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("t", "degrees", "tail"),
    [
        (0.0, 7, 0.5),
        (1.0, 1, 0.25),
        (2.228139, 10, 0.025),
        (1.697261, 30, 0.05),
        (2.660283, 60, 0.005),
        (12.706205, 1, 0.025),
    ],
)
def test_student_tails_are_those_of_the_tables(t: float, degrees: int, tail: float) -> None:
    assert stats.t_tail(t, degrees) == pytest.approx(tail, rel=1e-5)
    assert stats.t_tail(-t, degrees) == pytest.approx(1 - tail, rel=1e-5)
    assert stats.t_quantile(1 - tail, degrees) == pytest.approx(t, abs=1e-4)


def test_the_large_sample_forms_meet_the_exact_ones() -> None:
    rng = random.Random(3)
    for _ in range(20):
        differences = [rng.gauss(0.2, 1) for _ in range(24)]
        assert stats.paired_t(differences) == pytest.approx(stats.sign_flip(differences), abs=0.02)
    ranks = [rng.gauss(0.1, 1) for _ in range(61)]
    assert stats.wilcoxon(ranks) == pytest.approx(stats.wilcoxon(ranks[:60]), abs=0.1)


def test_the_form_of_the_differences_chooses_the_test() -> None:
    assert stats.paired_test([1, -1, 1, 0]).name == "mcnemar-exact"
    assert stats.paired_test([0.5, -1, 1, 0]).name == "sign-flip-exact"
    assert stats.paired_test([0.01 * i for i in range(1, 40)]).name == "paired-t"
    assert stats.paired_test([0.0, 0.0]) == stats.PairedTest(1.0, "no-difference", 2, 0, 0.0)
    for broken in ([], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="finite"):
            stats.paired_test(broken)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_only_raises_p_values_and_keeps_their_order(ps: list[float]) -> None:
    adjusted = stats.holm(ps)
    assert all(a >= p for a, p in zip(adjusted, ps, strict=True))
    assert min(adjusted) == pytest.approx(min(1.0, len(ps) * min(ps)))
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    assert all(adjusted[a] <= adjusted[b] for a, b in itertools.pairwise(order))


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = random.Random(5)
    covered = {"t": 0, "wilson": 0, "bootstrap": 0}
    for _ in range(200):
        numbers = [rng.gauss(3, 2) for _ in range(30)]
        hits = [float(rng.random() < 0.3) for _ in range(60)]
        low, high = stats.mean_interval(numbers)
        covered["t"] += low <= 3 <= high
        low, high = stats.mean_interval(hits)
        covered["wilson"] += low <= 0.3 <= high
        low, high = stats.bootstrap_interval(numbers, rng, draws=200)
        covered["bootstrap"] += low <= 3 <= high
    assert all(170 <= n <= 200 for n in covered.values()), covered


def test_an_interval_of_one_number_says_that_nothing_is_known() -> None:
    assert stats.mean_interval([0.5]) == (-math.inf, math.inf)
    for call in (stats.mean_interval, lambda v: stats.bootstrap_interval(v, random.Random(0))):
        with pytest.raises(ValueError, match="at least one"):
            call([])
