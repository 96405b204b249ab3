"""Judge a packing exactly: every number is the double that was given, every comparison is between fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

from leadscrew.ports import BadAnswer

Circle = tuple[Fraction, Fraction, Fraction]
_LARGEST = 4.0


def read(answer: Any, n: int) -> list[Circle]:
    """Return an answer as `n` circles (x, y, r); raises `BadAnswer` unless it is a list of n triples of finite numbers."""
    if not isinstance(answer, list) or len(answer) != n:
        size = f"a list of {len(answer)}" if isinstance(answer, list) else f"a {type(answer).__name__}"
        raise BadAnswer(f"the answer must be a list of {n} circles [x, y, r], not {size}")
    circles: list[Circle] = []
    for i, circle in enumerate(answer):
        if not isinstance(circle, list) or len(circle) != 3:
            raise BadAnswer(f"circle {i} must be [x, y, r], not a {type(circle).__name__}")
        x, y, r = (_exact(value, i) for value in circle)
        circles.append((x, y, r))
    return circles


def _exact(value: Any, i: int) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadAnswer(f"circle {i} holds a {type(value).__name__}, which is no number")
    # Compared before it is converted: an integer of a million digits would be slow to divide with.
    if not -_LARGEST <= value <= _LARGEST:
        raise BadAnswer(
            f"circle {i} holds a number outside [-{_LARGEST:g}, {_LARGEST:g}]: it is not in the unit square"
        )
    return Fraction(value)


def fault(circles: Sequence[Circle]) -> str:
    """Return the first rule that a packing in the unit square breaks, or an empty text. There is no tolerance.

    Circles may touch each other and the border.

    >>> half = Fraction(1, 2)
    >>> fault([(half, half, half)]), fault([(half, half, half + Fraction(1, 10**30))])
    ('', 'circle 0 leaves the unit square')
    """
    for i, (x, y, r) in enumerate(circles):
        if r < 0:
            return f"circle {i} has a negative radius"
        if x < r or y < r or x + r > 1 or y + r > 1:
            return f"circle {i} leaves the unit square"
    for (i, (xa, ya, ra)), (j, (xb, yb, rb)) in combinations(enumerate(circles), 2):
        apart = (xa - xb) ** 2 + (ya - yb) ** 2
        if apart < (ra + rb) ** 2:
            gap = math.sqrt(apart) - float(ra + rb)
            return f"circles {i} and {j} overlap (by about {-gap:.1e})"
    return ""


def total(circles: Sequence[Circle]) -> float:
    """Return the sum of the radii, rounded once."""
    return float(sum((r for _, _, r in circles), Fraction(0)))
