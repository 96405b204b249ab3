"""How trials become numbers: the divisor is what was planned, failures count at the floor, infra counts for nothing."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.core.task import Aggregate, Objective
from leadscrew.core.trial import Outcome, Purpose, Trial, evaluation_of, mean_aggregate, trial_key, value_of

FAILURES = [o for o in Outcome if o not in (Outcome.OK, Outcome.INFRA)]
MAX = Objective("score", "max", floor=-1.0)


def trial(instance: str, score: float | None, dataset: str = "main", repeat: int = 0, **more: object) -> Trial:
    outcome = Outcome.CRASH if score is None else Outcome.OK
    key = f"{instance}/{repeat}"
    made = Trial(key, "p", instance, "val", dataset, repeat, Purpose.SEARCH, outcome, score)
    return replace(made, **more)  # type: ignore[arg-type]


@st.composite
def complete_sets(draw: st.DrawFn) -> list[Trial]:
    """Trials of several data sets, instances and repeats, any of them failed by the candidate."""
    out = []
    for dataset in range(draw(st.integers(1, 3))):
        for instance in range(draw(st.integers(1, 4))):
            for repeat in range(draw(st.integers(1, 3))):
                score = draw(st.none() | st.integers(-8, 8).map(float))
                cost = draw(st.none() | st.integers(0, 8).map(float)) if score is not None else None
                out.append(
                    trial(
                        f"{dataset}.{instance}",
                        score,
                        f"d{dataset}",
                        repeat,
                        costs={} if cost is None else {"cost": cost},
                    )
                )
    return out


def by_hand(trials: list[Trial]) -> Fraction:
    """The nested mean, in exact arithmetic."""

    def mean(values: list[Fraction]) -> Fraction:
        return sum(values, Fraction(0)) / len(values)

    sets = []
    for dataset in sorted({t.dataset for t in trials}):
        inside = [t for t in trials if t.dataset == dataset]
        sets.append(
            mean(
                [
                    mean([Fraction(max(-1, -1 if t.score is None else t.score)) for t in inside if t.instance == name])
                    for name in sorted({t.instance for t in inside})
                ]
            )
        )
    return mean(sets)


@given(complete_sets(), st.randoms(use_true_random=False))
def test_the_mean_is_nested_and_failures_count_at_the_floor(trials: list[Trial], rng: object) -> None:
    value = mean_aggregate(trials, MAX, len(trials)).value
    assert value == pytest.approx(float(by_hand(trials)))
    shuffled = list(trials)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert mean_aggregate(shuffled, MAX, len(trials)).value == pytest.approx(value)


@given(complete_sets(), st.integers(1, 5))
def test_a_missing_trial_makes_the_evaluation_incomplete(trials: list[Trial], missing: int) -> None:
    assert mean_aggregate(trials, MAX, len(trials) + missing).value is None
    aggregate = mean_aggregate(trials, MAX, len(trials))
    assert evaluation_of("p", "val", trials, MAX, aggregate, planned=len(trials) + missing).value is None


@given(complete_sets(), st.data())
def test_one_infra_trial_makes_the_evaluation_incomplete(trials: list[Trial], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(trials) - 1))
    trials[place] = replace(trials[place], outcome=Outcome.INFRA, score=None, costs={})
    aggregate = mean_aggregate(trials, MAX, len(trials))
    assert aggregate == Aggregate(None)
    found = evaluation_of("p", "val", trials, MAX, Aggregate(99.0), planned=len(trials))
    assert found.value is None
    assert not found.complete
    assert math.isnan(found.by_instance()[trials[place].instance])


def test_no_trials_are_no_value() -> None:
    assert mean_aggregate([], MAX, 0).value is None


@given(complete_sets())
def test_a_failure_never_counts_for_more_than_a_success_at_the_floor(trials: list[Trial]) -> None:
    """Crashing must not pay: what crashes scores what the floor says, whatever the direction."""
    for outcome, direction in itertools.product(FAILURES, ("max", "min")):
        objective = Objective("score", direction, floor=-8.0 if direction == "max" else 8.0)  # type: ignore[arg-type]
        whole = mean_aggregate(trials, objective, len(trials)).value
        failed = [replace(t, outcome=outcome, score=None, costs={}) for t in trials]
        value = mean_aggregate(failed, objective, len(trials)).value
        assert value == objective.floor
        assert whole is not None
        assert not objective.better(value, whole)


def test_costs_are_nested_like_scores_and_leave_failures_out() -> None:
    trials = [
        trial("a", 1.0, repeat=0, costs={"tokens": 10.0}),
        trial("a", 1.0, repeat=1, costs={"tokens": 20.0}),
        trial("b", 1.0, repeat=0, costs={"tokens": 45.0}),
        trial("b", None, repeat=1),
        trial("c", 1.0, "other", costs={"tokens": 70.0}),
    ]
    aggregate = mean_aggregate(trials, MAX, 5)
    assert aggregate.costs == {"tokens": ((15.0 + 45.0) / 2 + 70.0) / 2}
    assert aggregate.per_dataset == {"main": 0.5, "other": 1.0}
    assert aggregate.value == 0.75


def test_an_evaluation_folds_repeats_and_counts_failures() -> None:
    trials = [trial("a", 1.0), trial("a", 0.0, repeat=1), trial("b", None), trial("b", 1.0, repeat=1)]
    trials[2] = replace(trials[2], outcome=Outcome.TIMEOUT)
    found = evaluation_of("p", "val", trials, MAX, Aggregate(0.25), planned=4, rung=2, passed=False)
    assert found.by_instance() == {"a": 0.5, "b": 0.0}
    assert found.instances == ("a", "b")
    assert found.failures == {"timeout": 1}
    assert (found.value, found.rung, found.passed, found.planned) == (0.25, 2, False, 4)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_trial_has_a_score_exactly_when_it_is_ok(outcome: Outcome) -> None:
    score = None if outcome is Outcome.OK else 1.0
    with pytest.raises(ValueError, match="exactly when it is ok"):
        Trial("k", "p", "i", "val", "main", 0, Purpose.SEARCH, outcome, score)


def test_an_infra_trial_cannot_be_counted() -> None:
    infra = replace(trial("a", None), outcome=Outcome.INFRA)
    with pytest.raises(ValueError, match="cannot be counted"):
        value_of(infra, MAX)


def test_every_part_of_the_key_matters() -> None:
    texts = ("program", "instance", "input_digest", "scorer", "train", "environment", "limits", "models")
    base: dict[str, object] = {**dict.fromkeys(texts, "x"), "seed": 1, "repeat": 1}
    keys = {trial_key(**base)}  # type: ignore[arg-type]
    for name in base:
        keys.add(trial_key(**{**base, name: "y" if name in texts else 2}))  # type: ignore[arg-type]
    assert len(keys) == 1 + len(base)
    swapped = {**base, "program": "a", "instance": "b"}
    back = {**base, "program": "b", "instance": "a"}
    assert trial_key(**swapped) != trial_key(**back)  # type: ignore[arg-type]
