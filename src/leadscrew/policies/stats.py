"""Paired tests, intervals and corrections in plain Python. Every p-value is one-sided unless its name says otherwise.

A small p means: the differences tend to be positive. A paired test asks whether a challenger beats a champion on the
*same* instances, so the difficulty of instances cancels (Dror et al. 2018, testing statistical significance in NLP).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

EXACT_LIMIT = 24
"""The most non-zero differences whose 2^n sign patterns are counted exactly (two halves of 4,096 sums each)."""

_TIE = 1e-12


@dataclass(frozen=True, slots=True)
class PairedTest:
    """A p-value, the test that gave it, the number of pairs and of pairs that differ, and their mean difference."""

    p: float
    name: str
    pairs: int
    differing: int
    mean: float


def paired_test(differences: Sequence[float]) -> PairedTest:
    """Test whether paired differences tend to be positive, with the sharpest test that is valid for their form.

    All differences of one size (0/1 scores): exact McNemar. At most 24 that differ: exact sign flips. More: Student t.
    Raises `ValueError` for no pairs or a difference that is not finite.

    >>> paired_test([1, 1, 1, 1, 1, 0]).p, paired_test([1, 1, 1, 1, 1, 0]).name
    (0.03125, 'mcnemar-exact')
    """
    if not differences or not all(math.isfinite(d) for d in differences):
        raise ValueError(f"a paired test needs finite differences, got {list(differences)[:5]!r}")
    moved = [d for d in differences if abs(d) > _TIE]
    mean = math.fsum(differences) / len(differences)
    pairs = len(differences)
    if not moved:
        return PairedTest(1.0, "no-difference", pairs, 0, 0.0)
    size = abs(moved[0])
    if all(abs(abs(d) - size) <= _TIE * max(1.0, size) for d in moved):
        wins = sum(d > 0 for d in moved)
        return PairedTest(mcnemar(wins, len(moved) - wins), "mcnemar-exact", pairs, len(moved), mean)
    if len(moved) <= EXACT_LIMIT:
        return PairedTest(sign_flip(moved), "sign-flip-exact", pairs, len(moved), mean)
    return PairedTest(paired_t(differences), "paired-t", pairs, len(moved), mean)


def two_sided(differences: Sequence[float]) -> PairedTest:
    """Return `paired_test` in its two-sided form: twice the smaller tail, at most 1."""
    up, down = paired_test(differences), paired_test([-d for d in differences])
    return PairedTest(min(1.0, 2 * min(up.p, down.p)), up.name, up.pairs, up.differing, up.mean)


def smallest_p(pairs: int) -> float:
    """Return the smallest one-sided p that an exact paired test on `pairs` pairs can reach: every sign positive, 2^-n.

    >>> smallest_p(5)
    0.03125
    """
    return float(0.5**pairs)


def sign_flip(differences: Sequence[float]) -> float:
    """Return the exact p of the sign-flip permutation test on the sum (Fisher 1935, section 21).

    Under the null every difference is as likely with either sign; p is the share of the 2^n sign patterns whose sum is
    at least the observed one. Zeros carry no information and are dropped. Raises `ValueError` above 24 other ones.

    >>> sign_flip([3.0, 1.0, 2.0])
    0.125
    """
    sizes = [abs(d) for d in differences if d != 0]
    if len(sizes) > EXACT_LIMIT:
        raise ValueError(f"{len(sizes)} differences have too many sign patterns; above {EXACT_LIMIT} use paired_t")
    if not sizes:
        return 1.0
    half = len(sizes) // 2
    left, right = _signed_sums(sizes[:half]), sorted(_signed_sums(sizes[half:]))
    # A pattern equal to the observed one but summed in another order must not fall below it.
    least = math.fsum(d for d in differences if d != 0) - 1e-9 * math.fsum(sizes)
    count = sum(len(right) - bisect_left(right, least - s) for s in left)
    return float(count / 2 ** len(sizes))


def _signed_sums(sizes: Sequence[float]) -> list[float]:
    sums = [0.0]
    for size in sizes:
        sums = [s + size for s in sums] + [s - size for s in sums]
    return sums


def mcnemar(wins: int, losses: int) -> float:
    """Return the exact one-sided McNemar p: P(Binomial(wins + losses, 1/2) >= wins) (McNemar 1947, exact form).

    >>> mcnemar(5, 0), mcnemar(0, 0)
    (0.03125, 1.0)
    """
    n = wins + losses
    return float(sum(math.comb(n, k) for k in range(wins, n + 1)) / 2**n)


def paired_t(differences: Sequence[float]) -> float:
    """Return the one-sided p of Student's paired t test (Student 1908): t = mean / (sd / sqrt(n)), n - 1 degrees.

    Valid when the mean of the differences is close to normal: from about 25 pairs that differ, unless very few of them
    carry most of the sum. Raises `ValueError` for fewer than two pairs.
    """
    n = len(differences)
    if n < 2:
        raise ValueError("a t test needs at least two pairs")
    mean = math.fsum(differences) / n
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    if variance == 0.0:
        return 1.0 if mean <= 0 else smallest_p(n)
    return t_tail(mean / math.sqrt(variance / n), n - 1)


def t_tail(t: float, degrees: float) -> float:
    """Return P(T >= t) of Student's t distribution, by the regularised incomplete beta function.

    >>> round(t_tail(2.0, 10), 4)
    0.0367
    """
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    tail = 0.5 * _beta_inc(degrees / 2, 0.5, degrees / (degrees + t * t))
    return tail if t >= 0 else 1.0 - tail


def _beta_inc(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta I_x(a, b), by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_inc(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * result


def wilcoxon(differences: Sequence[float]) -> float:
    """Return the one-sided p of the Wilcoxon signed-rank test (Wilcoxon 1945); zeros dropped, ties get mean ranks.

    Exact up to 60 non-zero differences (ties included, by counting sums of doubled ranks); above, the normal form with
    tie and continuity correction.

    >>> wilcoxon([1.0, 2.0, 3.0])
    0.125
    """
    moved = sorted((d for d in differences if d != 0), key=abs)
    n = len(moved)
    if n == 0:
        return 1.0
    ranks, ties = _double_ranks([abs(d) for d in moved])
    plus = sum(r for r, d in zip(ranks, moved, strict=True) if d > 0)
    if n <= 60:
        counts = [1] + [0] * sum(ranks)
        reach = 0
        for rank in ranks:
            reach += rank
            for total in range(reach, rank - 1, -1):
                counts[total] += counts[total - rank]
        return float(sum(counts[plus:]) / 2**n)
    mean = n * (n + 1) / 4
    variance = n * (n + 1) * (2 * n + 1) / 24 - sum(t**3 - t for t in ties) / 48
    return 1.0 - NormalDist().cdf((plus / 2 - mean - 0.5) / math.sqrt(variance))


def _double_ranks(sizes: Sequence[float]) -> tuple[list[int], list[int]]:
    """Twice the mean rank of each of the sorted sizes (whole numbers), and the lengths of the runs of equal sizes."""
    ranks: list[int] = []
    ties: list[int] = []
    start = 0
    while start < len(sizes):
        end = start
        while end < len(sizes) and sizes[end] == sizes[start]:
            end += 1
        ranks.extend([start + 1 + end] * (end - start))
        ties.append(end - start)
        start = end
    return ranks, ties


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjusted p-values in the order given (Holm 1979): the family-wise error stays <= alpha.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, running = [0.0] * len(ps), 0.0
    for step, i in enumerate(order):
        running = max(running, min(1.0, (len(ps) - step) * ps[i]))
        adjusted[i] = running
    return adjusted


def bootstrap_interval(
    values: Sequence[float], rng: random.Random, *, draws: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean (Efron 1979), resampling instances.

    Give paired differences to get the interval of a difference. Raises `ValueError` for no values.
    """
    return nested_interval([values], rng, draws=draws, level=level)


def nested_interval(
    groups: Sequence[Sequence[float]], rng: random.Random, *, draws: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Return the bootstrap interval of the mean over all values, resampling within each group (data set) apart.

    Raises `ValueError` for no values.
    """
    if not groups or not all(groups):
        raise ValueError("an interval needs at least one value in each group")
    total = sum(len(group) for group in groups)
    means = sorted(
        math.fsum(math.fsum(rng.choices(group, k=len(group))) for group in groups) / total for _ in range(draws)
    )
    cut = (1 - level) / 2
    return means[int(cut * (draws - 1))], means[math.ceil((1 - cut) * (draws - 1))]


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> tuple[float, float]:
    """Return an interval of the mean without resampling: Wilson's for 0/1 values (Wilson 1927), else Student's.

    A single value, unless it is 0 or 1, has no interval: (-inf, inf).

    >>> low, high = mean_interval([1, 1, 1, 0])
    >>> round(low, 3), round(high, 3)
    (0.301, 0.954)
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    n, mean = len(values), math.fsum(values) / len(values)
    if all(v in (0, 1) for v in values):
        z = NormalDist().inv_cdf((1 + level) / 2)
        centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
        spread = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
        return max(0.0, centre - spread), min(1.0, centre + spread)
    if n < 2:
        return -math.inf, math.inf
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    half = t_quantile((1 + level) / 2, n - 1) * error
    return mean - half, mean + half


def t_quantile(q: float, degrees: float) -> float:
    """Return the value that Student's t stays below with probability `q` (0 < q < 1), by bisection.

    >>> round(t_quantile(0.975, 10), 3)
    2.228
    """
    if q < 0.5:
        return -t_quantile(1 - q, degrees)
    low, high = 0.0, 1.0
    while 1 - t_tail(high, degrees) < q:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - t_tail(middle, degrees) < q else (low, middle)
    return (low + high) / 2
