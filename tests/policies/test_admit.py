"""Promotion: equal candidates are promoted by chance no more often than said; real gains are found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.policies.admit import paired, paired_family, published

DRAWS = 500


def binary(rng: random.Random, n: int, lift: float = 0.0) -> list[float]:
    """Differences of two programs whose chance on an instance is the same, but for `lift`."""
    out = []
    for _ in range(n):
        chance = rng.betavariate(2, 2) * (1 - lift)
        out.append(float(rng.random() < chance + lift) - float(rng.random() < chance))
    return out


def continuous(rng: random.Random, n: int, lift: float = 0.0) -> list[float]:
    """Differences with skewed, instance-dependent scores and noise of very different size."""
    out = []
    for _ in range(n):
        level, noise = rng.expovariate(1), rng.expovariate(1)
        out.append(rng.gauss(level + lift, noise) - rng.gauss(level, noise))
    return out


@pytest.mark.parametrize("n", [8, 20, 50, 100])
@pytest.mark.parametrize("draw", [binary, continuous])
@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_equal_candidates_are_promoted_no_more_often_than_alpha(draw: object, n: int, alpha: float) -> None:
    rng = random.Random(11)
    promoted = sum(paired(draw(rng, n), alpha=alpha).decision == "promoted" for _ in range(DRAWS))  # type: ignore[operator]
    # 500 draws of a rate alpha scatter; three standard deviations keep chance out of the verdict.
    assert promoted <= DRAWS * alpha + 3 * (DRAWS * alpha * (1 - alpha)) ** 0.5


@pytest.mark.parametrize("draw", [binary, continuous])
def test_three_looks_at_once_stay_at_alpha_as_a_family(draw: object) -> None:
    rng = random.Random(12)
    wrong = 0
    for _ in range(DRAWS):
        family = paired_family([draw(rng, 40) for _ in range(3)], alpha=0.05)  # type: ignore[operator]
        wrong += any(a.decision == "promoted" for a in family)
    assert wrong <= DRAWS * 0.05 + 3 * (DRAWS * 0.05 * 0.95) ** 0.5


def test_the_published_rule_promotes_equal_candidates_half_of_the_time() -> None:
    rng = random.Random(13)
    gains = [sum(continuous(rng, 50)) / 50 for _ in range(DRAWS)]
    assert 0.4 < sum(published(g).decision == "promoted" for g in gains) / DRAWS < 0.6


@pytest.mark.parametrize(("draw", "lift"), [(binary, 0.4), (continuous, 1.2)])
def test_a_real_gain_is_found_nearly_always(draw: object, lift: float) -> None:
    rng = random.Random(14)
    found = sum(paired(draw(rng, 60, lift), alpha=0.05).decision == "promoted" for _ in range(100))  # type: ignore[operator]
    assert found >= 80


@given(st.lists(st.floats(-5, 5, allow_nan=False), min_size=1, max_size=30), st.floats(0, 2))
def test_the_classes_follow_the_gain(differences: list[float], min_delta: float) -> None:
    a = paired(differences, alpha=0.05, min_delta=min_delta)
    assert (a.decision == "rejected") == (a.gain <= 0)
    if a.decision == "promoted":
        assert a.gain >= min_delta
        assert a.p is None or a.p <= 0.05
    assert a.reason


def test_too_few_instances_for_any_test_let_the_higher_mean_win_and_say_so() -> None:
    a = paired([0.25], alpha=0.05)
    assert (a.decision, a.p) == ("promoted", None)
    assert "too few" in a.reason
    assert paired([-0.25], alpha=0.05).decision == "rejected"


def test_a_gain_below_the_least_delta_is_a_near_miss() -> None:
    assert paired([0.001] * 30, alpha=0.05, min_delta=0.01).decision == "near_miss"
    assert paired([0.02] * 30, alpha=0.05, min_delta=0.01).decision == "promoted"
    assert published(0.001, min_delta=0.01).decision == "rejected"


def test_a_domain_whose_aggregate_fell_is_not_promoted_by_its_instances() -> None:
    assert paired([1.0] * 10, alpha=0.05, gain=-0.1).decision == "rejected"
