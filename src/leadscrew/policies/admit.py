"""Who is promoted: the published rule (a higher mean wins) and the noise-aware one (paired, with a near-miss class)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leadscrew.policies.stats import PairedTest, holm, paired_test, smallest_p

Decision = Literal["promoted", "near_miss", "rejected"]


@dataclass(frozen=True, slots=True)
class Admission:
    """What is decided about a challenger: the class, the gain, the p-value where a test was made, the reason in words.

    `gain` is in units of the score, positive when the challenger is better.
    """

    decision: Decision
    gain: float
    p: float | None
    test: str
    reason: str


def published(gain: float, *, min_delta: float = 0.0) -> Admission:
    """Admit a higher mean, as the reference does (Meta-Harness release, the champion is the best mean so far).

    >>> published(0.02).decision, published(0.0).decision
    ('promoted', 'rejected')
    """
    if gain > 0 and gain >= min_delta:
        return Admission("promoted", gain, None, "higher-mean", f"higher mean by {gain:.4g}")
    return Admission("rejected", gain, None, "higher-mean", f"no higher mean ({gain:+.4g})")


def paired(
    differences: Sequence[float], *, alpha: float = 0.05, min_delta: float = 0.0, gain: float | None = None
) -> Admission:
    """Admit a challenger whose paired gain over the champion is larger than chance explains.

    `differences` are challenger minus champion per instance, turned so that positive is better. Promoted: one-sided
    p <= `alpha` and gain >= `min_delta`. Near miss: a gain above zero that one of the two turns down. `gain` is the
    domain's own aggregate difference where it is not the plain mean. With so few instances that no result could reach
    `alpha`, the higher mean decides and the reason says so.

    >>> paired([1, 1, 1, 0, 0, 0]).decision, paired([1] * 6 + [0] * 10).decision
    ('near_miss', 'promoted')
    """
    return _decide(paired_test(differences), alpha=alpha, min_delta=min_delta, gain=gain)


def paired_family(
    differences: Sequence[Sequence[float]],
    *,
    alpha: float = 0.05,
    min_delta: float = 0.0,
    gains: Sequence[float] | None = None,
) -> list[Admission]:
    """Admit several challengers looked at together, p-values corrected by Holm's step-down rule (Holm 1979).

    The chance that *any* of several equal challengers is promoted then stays at or below `alpha`.
    """
    tests = [paired_test(d) for d in differences]
    adjusted = holm([t.p for t in tests])
    whole = gains if gains is not None else [None] * len(tests)
    return [
        _decide(replace(test, p=p), alpha=alpha, min_delta=min_delta, gain=gain)
        for test, p, gain in zip(tests, adjusted, whole, strict=True)
    ]


def _decide(test: PairedTest, *, alpha: float, min_delta: float, gain: float | None) -> Admission:
    gain = test.mean if gain is None else gain
    seen = f"{gain:+.4g} on {test.pairs} instances, {test.differing} of them differing, p = {test.p:.3g} ({test.name})"
    if gain <= 0:
        return Admission("rejected", gain, test.p, test.name, f"not better: {seen}")
    if gain < min_delta:
        return Admission("near_miss", gain, test.p, test.name, f"better by less than {min_delta:.4g}: {seen}")
    if smallest_p(test.pairs) > alpha:
        reason = f"{gain:+.4g}; {test.pairs} instances are too few for any test at {alpha:g}, so the higher mean wins"
        return Admission("promoted", gain, None, "too-few-instances", reason)
    if test.p <= alpha:
        return Admission("promoted", gain, test.p, test.name, f"better beyond chance: {seen}, level {alpha:.3g}")
    reason = f"better, but chance could explain it: {seen}, level {alpha:.3g}"
    return Admission("near_miss", gain, test.p, test.name, reason)
