"""Strict Pareto dominance in its plain reference form. The archive keeps the same set incrementally.

Published rule with its fault mended: a point with equal cost and lower accuracy is dominated (Meta-Harness keeps it).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from leadscrew.core.task import Objective
from leadscrew.core.trial import Evaluation

Key = TypeVar("Key", bound=Hashable)


def covers(a: Sequence[float], b: Sequence[float]) -> bool:
    """Say whether `a` is at least as good as `b` in every coordinate (more is better)."""
    return all(x >= y for x, y in zip(a, b, strict=True))


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Say whether `a` is at least as good as `b` everywhere and better somewhere.

    >>> dominates((50, -100), (40, -100)), dominates((50, -100), (50, -100))
    (True, False)
    """
    return covers(a, b) and tuple(a) != tuple(b)


def strict_front(points: Mapping[Key, Sequence[float]]) -> tuple[Key, ...]:
    """Return the keys of the points that no other dominates, in order; of equal points only the first.

    >>> strict_front({"a": (50, -100), "b": (40, -100), "c": (30, 0), "d": (50, -100)})
    ('a', 'c')
    """
    seen: set[tuple[float, ...]] = set()
    out: list[Key] = []
    for key, point in points.items():
        if tuple(point) in seen or any(dominates(other, point) for other in points.values()):
            continue
        seen.add(tuple(point))
        out.append(key)
    return tuple(out)


def vector(evaluation: Evaluation, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Return all objectives of an evaluation turned so that more is better; None where one was not measured.

    The first objective is the evaluation's value, the others are its costs by name.
    """
    out: list[float] = []
    for i, objective in enumerate(objectives):
        number = evaluation.value if i == 0 else evaluation.aggregate.costs.get(objective.name)
        if number is None or not math.isfinite(number):
            return None
        out.append(number if objective.direction == "max" else -number)
    return tuple(out)
