"""Staged evaluation: small rungs first, and the gate between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leadscrew.core.task import Objective


def rung_sizes(split: int, rungs: Sequence[float]) -> tuple[int, ...]:
    """Return how many instances each rung covers, growing, the last being the whole split.

    A whole number is a number of instances, a fraction below 1 a share of the split (rounded up). Rungs that would not
    grow are left out, so a small split has fewer rungs. Raises `ValueError` for a rung that is not positive.

    >>> rung_sizes(50, [0.1, 20]), rung_sizes(4, [5, 10]), rung_sizes(50, [])
    ((5, 20, 50), (4,), (50,))
    """
    sizes: list[int] = []
    for rung in rungs:
        if not rung > 0:
            raise ValueError(f"a rung is a number of instances or a share below 1, got {rung!r}")
        # The rounding guards against 0.1 * 30 being a hair above 3.
        size = math.ceil(round(split * rung, 9)) if rung < 1 else math.ceil(rung)
        if (not sizes or size > sizes[-1]) and size < split:
            sizes.append(size)
    return (*sizes, split)


def passes(
    values: Mapping[str, float],
    reference: Mapping[str, float],
    objective: Objective,
    *,
    margin: float = 0.05,
) -> bool:
    """Say whether a candidate may climb to the next rung, from its value per instance and the champion's.

    It may if its mean is not worse than the champion's mean on the *same* instances by more than `margin` (in units of
    the score). Where the champion was not measured on all of them, it is enough to beat the objective's floor.

    >>> passes({"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 1.0, "c": 0.0}, Objective("accuracy"), margin=0.1)
    False
    """
    mean = math.fsum(values.values()) / len(values)
    if values.keys() <= reference.keys():
        held = math.fsum(reference[i] for i in values) / len(values)
        # A lead that differs from the margin by rounding only is on it.
        return objective.gain(mean, held) >= -margin - 1e-12
    return objective.better(mean, objective.floor)
