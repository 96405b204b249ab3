"""Random restarts in pure Python: penalised quasi-Newton descent on centres and radii, repaired at the end."""

from __future__ import annotations

import math
import random
import time
from typing import Any

SHARE_OF_TIME = 0.8
"""Share of the CPU time after which no new start is made."""
STIFFNESS = (10.0, 100.0, 1000.0, 10000.0, 100000.0)
"""Weights of the penalty, one after the other."""
STEPS = 120
MEMORY = 8
REACH = 0.06
"""Pairs with a wider gap than this are left out until the next weight."""
MOVED = 2
"""How many circles are placed anew when the best packing is disturbed."""
FRESH_STARTS = 3
SAFETY = 1e-12
"""Share by which radii are made smaller than rounding allows: no overlap is forgiven."""

Vector = list[float]


def near_pairs(v: Vector, n: int) -> list[tuple[int, int]]:
    """Return the pairs of circles that are or may come close to each other."""
    return [
        (i, j)
        for i in range(n)
        for j in range(i + 1, n)
        if math.hypot(v[3 * i] - v[3 * j], v[3 * i + 1] - v[3 * j + 1]) < v[3 * i + 2] + v[3 * j + 2] + REACH
    ]


def penalised(v: Vector, pairs: list[tuple[int, int]], weight: float) -> tuple[float, Vector]:
    """Return minus the sum of radii plus the weighted squares of all violations, and its gradient."""
    slope = [0.0] * len(v)
    value = 0.0
    double = 2.0 * weight
    for k in range(0, len(v), 3):
        x, y, r = v[k], v[k + 1], v[k + 2]
        value -= r
        pull = -1.0
        if x < r:
            value += weight * (r - x) ** 2
            slope[k] -= double * (r - x)
            pull += double * (r - x)
        if x + r > 1.0:
            value += weight * (x + r - 1.0) ** 2
            slope[k] += double * (x + r - 1.0)
            pull += double * (x + r - 1.0)
        if y < r:
            value += weight * (r - y) ** 2
            slope[k + 1] -= double * (r - y)
            pull += double * (r - y)
        if y + r > 1.0:
            value += weight * (y + r - 1.0) ** 2
            slope[k + 1] += double * (y + r - 1.0)
            pull += double * (y + r - 1.0)
        if r < 0.0:
            value += weight * r * r
            pull += double * r
        slope[k + 2] += pull
    for i, j in pairs:
        a, b = 3 * i, 3 * j
        dx, dy, reach = v[a] - v[b], v[a + 1] - v[b + 1], v[a + 2] + v[b + 2]
        squared = dx * dx + dy * dy
        if reach <= 0.0 or squared >= reach * reach:
            continue
        distance = math.sqrt(squared) or 1e-9
        over = reach - distance
        value += weight * over * over
        push = double * over
        slope[a + 2] += push
        slope[b + 2] += push
        push /= distance
        slope[a] -= push * dx
        slope[b] += push * dx
        slope[a + 1] -= push * dy
        slope[b + 1] += push * dy
    return value, slope


def dot(a: Vector, b: Vector) -> float:
    """Return the scalar product."""
    return sum(map(float.__mul__, a, b))


def descend(v: Vector, n: int, weight: float) -> Vector:
    """Return a local minimum of the penalised sum: limited-memory BFGS (Nocedal 1980) with halved steps."""
    pairs = near_pairs(v, n)
    value, slope = penalised(v, pairs, weight)
    memory: list[tuple[Vector, Vector, float]] = []
    for _ in range(STEPS):
        way = [-g for g in slope]
        used: list[float] = []
        for s, y, inverse in reversed(memory):
            share = inverse * dot(s, way)
            used.append(share)
            way = [w - share * b for w, b in zip(way, y, strict=True)]
        if memory:
            s, y, inverse = memory[-1]
            scale = 1.0 / (inverse * dot(y, y))
            way = [w * scale for w in way]
        else:
            scale = 0.02 / (max(map(abs, way)) or 1.0)
            way = [w * scale for w in way]
        for (s, y, inverse), share in zip(memory, reversed(used), strict=True):
            back = share - inverse * dot(y, way)
            way = [w + back * a for w, a in zip(way, s, strict=True)]
        descent = dot(way, slope)
        if descent >= -1e-14:
            break
        longest = max(map(abs, way))
        step = min(1.0, 0.1 / longest)
        for _ in range(20):
            tried = [a + step * w for a, w in zip(v, way, strict=True)]
            new_value, new_slope = penalised(tried, pairs, weight)
            if new_value <= value + 1e-4 * step * descent:
                break
            step *= 0.5
        else:
            break
        s = [a - b for a, b in zip(tried, v, strict=True)]
        y = [a - b for a, b in zip(new_slope, slope, strict=True)]
        curvature = dot(s, y)
        if curvature > 1e-14:
            memory = [*memory, (s, y, 1.0 / curvature)][-MEMORY:]
        gained = value - new_value
        v, value, slope = tried, new_value, new_slope
        if gained < 1e-9:
            break
    return v


def repaired(v: Vector, n: int) -> list[list[float]]:
    """Return the packing with radii made smaller by the one share that mends every broken constraint."""
    circles = [
        [min(max(v[3 * i], 0.0), 1.0), min(max(v[3 * i + 1], 0.0), 1.0), max(v[3 * i + 2], 0.0)] for i in range(n)
    ]
    share = 1.0
    for i, (x, y, r) in enumerate(circles):
        if r > 0.0:
            share = min(share, x / r, y / r, (1.0 - x) / r, (1.0 - y) / r)
        for other_x, other_y, other_r in circles[:i]:
            if r + other_r > 0.0:
                share = min(share, math.hypot(x - other_x, y - other_y) / (r + other_r))
    return [[x, y, r * share * (1.0 - SAFETY)] for x, y, r in circles]


def scattered(n: int, rng: random.Random) -> Vector:
    """Return circles at random places with a small radius."""
    v: Vector = []
    for _ in range(n):
        v += [rng.uniform(0.05, 0.95), rng.uniform(0.05, 0.95), 0.4 / math.sqrt(n)]
    return v


def disturbed(circles: list[list[float]], rng: random.Random) -> Vector:
    """Return a packing with a few circles placed anew."""
    moved = [list(circle) for circle in circles]
    for i in rng.sample(range(len(moved)), min(MOVED, len(moved))):
        moved[i][0], moved[i][1] = rng.uniform(0.05, 0.95), rng.uniform(0.05, 0.95)
    return [value for circle in moved for value in circle]


def solve(input: dict[str, Any]) -> list[list[float]]:
    """Return the best packing found from random starts and disturbed good packings within the time."""
    n = input["n"]
    rng = random.Random(input.get("seed", 0))
    until = time.process_time() + SHARE_OF_TIME * input.get("cpu_s", 10.0)
    best: list[list[float]] = []
    best_sum, longest, starts = -1.0, 0.0, 0
    while not best or time.process_time() + longest < until:
        began = time.process_time()
        v = scattered(n, rng) if starts < FRESH_STARTS else disturbed(best, rng)
        for weight in STIFFNESS:
            v = descend(v, n, weight)
        packing = repaired(v, n)
        total = sum(r for _, _, r in packing)
        if total > best_sum:
            best, best_sum = packing, total
        starts += 1
        longest = max(longest, time.process_time() - began)
    return best
