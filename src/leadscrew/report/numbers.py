"""Intervals for what is shown to people."""

from __future__ import annotations

import math

from leadscrew.core.trial import Evaluation
from leadscrew.policies.stats import mean_interval


def spread(evaluation: Evaluation | None) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over instances, or None where there is none: too few, or incomplete."""
    if evaluation is None or not evaluation.complete or not len(evaluation.values):
        return None
    low, high = mean_interval(list(evaluation.values))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
