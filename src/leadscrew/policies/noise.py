"""The noise floor: how much a score moves when the same program meets the same instance again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Noise:
    """`within_sd`: pooled standard deviation of a single trial around its instance's mean, in units of the score.

    `degrees` is the number of repeats beyond the first, summed over instances; 0 means that nothing was repeated.
    """

    within_sd: float
    instances: int
    degrees: int

    @property
    def deterministic(self) -> bool:
        """Whether repeats were run and none of them differed."""
        return self.degrees > 0 and self.within_sd == 0.0

    def standard_error(self, instances: int, repeats: int = 1) -> float:
        """Return the standard error that trial noise alone gives the mean over `instances` x `repeats` trials.

        The choice of instances adds its own error; paired tests account for both.
        """
        return self.within_sd / math.sqrt(instances * repeats)


def noise_floor(repeats: Mapping[str, Sequence[float]]) -> Noise:
    """Pool the variance within instances over their repeats (one-way analysis of variance, error mean square).

    >>> noise_floor({"a": [1.0, 0.0], "b": [1.0, 1.0]}).within_sd
    0.5
    """
    squares, degrees = 0.0, 0
    for values in repeats.values():
        if len(values) < 2:
            continue
        mean = math.fsum(values) / len(values)
        squares += math.fsum((v - mean) ** 2 for v in values)
        degrees += len(values) - 1
    return Noise(math.sqrt(squares / degrees) if degrees else 0.0, len(repeats), degrees)
