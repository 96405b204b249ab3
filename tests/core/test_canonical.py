"""One value, one byte form: the ground of every digest."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.core.canonical import canonical_json, digest_of, json_fault

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_canonical_json_reads_back_and_is_accepted(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value
    assert json_fault(value) is None
    assert digest_of(value) == digest_of(json.loads(canonical_json(value)))


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert canonical_json(value) == canonical_json(dict(reversed(value.items())))


@given(st.lists(st.integers(), min_size=2, unique=True))
def test_the_order_of_lists_does(value: list[int]) -> None:
    assert digest_of(value) != digest_of(value[::-1])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan], {"a": -math.inf}])
def test_numbers_that_are_not_finite_have_no_canonical_form(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(value)
    assert json_fault(value) == "a number that is not finite"


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (_nested(65), "nesting deeper"),
        (_nested(100_000), "nesting deeper"),
        (10**4000, "integer of more than 4000 digits"),
        (-(10**4000), "integer of more than 4000 digits"),
        ({1: "a"}, "key of type int"),
        ({"a": {None: 1}}, "key of type NoneType"),
        (b"bytes", "value of type bytes"),
        ([{1, 2}], "value of type set"),
        (1j, "value of type complex"),
    ],
    ids=lambda v: str(v)[:20] if isinstance(v, str) else type(v).__name__,
)
def test_answers_that_json_cannot_hold_are_named(value: Any, fault: str) -> None:
    assert fault in (json_fault(value) or "")


def test_the_limits_themselves_are_accepted() -> None:
    assert json_fault(_nested(64)) is None
    assert json_fault(10**4000 - 1) is None


def test_lone_surrogates_have_a_digest() -> None:
    assert digest_of("\ud800") != digest_of("\udfff")
