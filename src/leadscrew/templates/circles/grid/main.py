"""A square grid of equal circles, and the circles left over in the gaps between four of them."""

from __future__ import annotations

import math
from typing import Any

SAFETY = 1e-12
"""Share by which radii are made smaller: decimal fractions of the grid are rounded, and no overlap is forgiven."""


def solve(input: dict[str, Any]) -> list[list[float]]:
    """Return n circles [x, y, r]: as many as fit in a grid, the others in its gaps."""
    n = input["n"]
    side = max(1, math.isqrt(n))
    while side**2 + (side - 1) ** 2 < n:
        side += 1
    radius = 0.5 / side
    gap = radius * (math.sqrt(2.0) - 1.0)
    circles = [[(2 * i + 1) * radius, (2 * j + 1) * radius, radius] for i in range(side) for j in range(side)]
    circles += [[2 * i * radius, 2 * j * radius, gap] for i in range(1, side) for j in range(1, side)]
    return [[x, y, r * (1.0 - SAFETY)] for x, y, r in circles[:n]]
