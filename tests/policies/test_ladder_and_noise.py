"""Rungs, gates and the noise floor."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.core.task import Objective
from leadscrew.policies.ladder import passes, rung_sizes
from leadscrew.policies.noise import noise_floor


@given(st.integers(1, 500), st.lists(st.one_of(st.integers(1, 600), st.floats(0.01, 0.99)), max_size=5))
def test_rungs_grow_and_end_with_the_whole_split(split: int, rungs: list[float]) -> None:
    sizes = rung_sizes(split, rungs)
    assert sizes[-1] == split
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] >= 1


def test_one_is_an_instance_and_a_fraction_a_share() -> None:
    assert rung_sizes(30, [1, 0.1, 0.5]) == (1, 3, 15, 30)
    with pytest.raises(ValueError, match="rung"):
        rung_sizes(30, [0])


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1), st.floats(0, 1))
def test_the_champion_itself_always_passes(values: dict[str, float], margin: float) -> None:
    for direction in ("max", "min"):
        assert passes(values, values, Objective("x", direction), margin=margin)  # type: ignore[arg-type]


def test_the_gate_compares_on_the_same_instances_only_and_in_the_right_direction() -> None:
    champion = {"a": 0.5, "b": 0.5, "c": 1.0}
    assert passes({"a": 0.5, "b": 0.4}, champion, Objective("x"), margin=0.1)
    assert not passes({"a": 0.3, "b": 0.3}, champion, Objective("x"), margin=0.1)
    assert passes({"a": 0.3, "b": 0.3}, champion, Objective("x", "min"), margin=0.1)
    assert not passes({"a": 0.9, "b": 0.9}, champion, Objective("x", "min"), margin=0.1)


def test_without_a_champion_there_the_floor_must_be_beaten() -> None:
    assert passes({"z": 0.1}, {}, Objective("x"))
    assert not passes({"z": 0.0}, {}, Objective("x"))
    assert passes({"z": 8.0}, {}, Objective("x", "min", floor=9.0))


def test_the_noise_floor_finds_the_noise_and_not_the_instances() -> None:
    rng = random.Random(2)
    repeats = {}
    for i in range(300):
        level = rng.gauss(0, 50)
        repeats[str(i)] = [rng.gauss(level, 3) for _ in range(3)]
    noise = noise_floor(repeats)
    assert noise.within_sd == pytest.approx(3, rel=0.1)
    assert noise.standard_error(100, 4) == pytest.approx(noise.within_sd / 20)
    assert not noise.deterministic


def test_equal_repeats_are_deterministic_and_single_ones_say_nothing() -> None:
    assert noise_floor({"a": [1.0, 1.0], "b": [0.0, 0.0]}).deterministic
    single = noise_floor({"a": [1.0], "b": [0.0]})
    assert (single.within_sd, single.degrees, single.deterministic) == (0.0, 0, False)
