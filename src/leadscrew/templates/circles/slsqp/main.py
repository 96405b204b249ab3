"""Multi-start sequential quadratic programming (SLSQP) with exact derivatives: the classical method."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import types
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads would only burn the CPU time of matrices this small
if importlib.util.find_spec("pydoc") is None:
    # SciPy asks for it when it is imported; a box has no documentation and may lack its reader.
    sys.modules["pydoc"] = types.ModuleType("pydoc")
    sys.modules["pydoc"].getdoc = lambda thing: ""  # type: ignore[attr-defined]

import numpy as np
from scipy.optimize import minimize

SHARE_OF_TIME = 0.8
"""Share of the CPU time after which no new start is made."""
START_SHARE = 0.95
"""Radii at the start, as a share of the largest equal division between neighbours."""
ITERATIONS = 200
TOLERANCE = 1e-8
SAFETY = 1e-12
"""Share by which radii are made smaller than rounding allows: no overlap is forgiven."""


class Problem:
    """Variables are x, y and r of every circle, one after the other; constraints are linear borders and pair distances."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.a, self.b = np.triu_indices(n, 1)
        pairs = np.arange(len(self.a))
        self.rows = np.concatenate([pairs] * 6)
        self.columns = np.concatenate([self.a, self.b, n + self.a, n + self.b, 2 * n + self.a, 2 * n + self.b])
        one = np.eye(n)
        zero = np.zeros((n, n))
        self.borders = np.block([[one, zero, -one], [-one, zero, -one], [zero, one, -one], [zero, -one, -one]])
        self.offsets = np.concatenate([np.zeros(n), np.ones(n), np.zeros(n), np.ones(n)])
        self.down = np.concatenate([np.zeros(2 * n), -np.ones(n)])

    def slack(self, v: Any) -> Any:
        """Return how much room every constraint leaves; negative where it is broken."""
        x, y, r = v[: self.n], v[self.n : 2 * self.n], v[2 * self.n :]
        dx, dy = x[self.a] - x[self.b], y[self.a] - y[self.b]
        return np.concatenate([self.borders @ v + self.offsets, dx * dx + dy * dy - (r[self.a] + r[self.b]) ** 2])

    def slope(self, v: Any) -> Any:
        """Return the derivatives of `slack`."""
        x, y, r = v[: self.n], v[self.n : 2 * self.n], v[2 * self.n :]
        dx, dy = 2 * (x[self.a] - x[self.b]), 2 * (y[self.a] - y[self.b])
        dr = -2 * (r[self.a] + r[self.b])
        pairs = np.zeros((len(self.a), 3 * self.n))
        pairs[self.rows, self.columns] = np.concatenate([dx, -dx, dy, -dy, dr, dr])
        return np.vstack([self.borders, pairs])

    def improve(self, start: Any) -> Any:
        """Return a local optimum near `start`, or where the iterations ended."""
        found = minimize(
            lambda v: -v[2 * self.n :].sum(),
            start,
            jac=lambda v: self.down,
            bounds=[(0.0, 1.0)] * (2 * self.n) + [(0.0, 0.5)] * self.n,
            constraints=[{"type": "ineq", "fun": self.slack, "jac": self.slope}],
            method="SLSQP",
            options={"maxiter": ITERATIONS, "ftol": TOLERANCE},
        )
        return found.x


def start(centres: Any, n: int) -> Any:
    """Return centres with radii that do not overlap: the solver often gives up from overlapping ones."""
    x, y = centres[:n], centres[n:]
    apart = np.hypot(x[:, None] - x, y[:, None] - y) + 2 * np.eye(n)
    radii = np.minimum(apart.min(axis=1) / 2, np.minimum.reduce([x, 1 - x, y, 1 - y]))
    return np.concatenate([centres, START_SHARE * radii])


def shrink(v: Any, n: int) -> Any:
    """Return the packing with radii made smaller by the one share that mends every broken constraint."""
    x, y, r = v[:n], v[n : 2 * n], np.maximum(v[2 * n :], 1e-9)
    a, b = np.triu_indices(n, 1)
    share = min(
        np.min(np.hypot(x[a] - x[b], y[a] - y[b]) / (r[a] + r[b])),
        np.min(np.minimum.reduce([x, 1 - x, y, 1 - y]) / r),
        1.0,
    )
    return np.concatenate([x, y, r * max(0.0, share) * (1.0 - SAFETY)])


def solve(input: dict[str, Any]) -> list[list[float]]:
    """Return the best packing found from random starts within the time."""
    n = input["n"]
    rng = np.random.default_rng(input.get("seed", 0))
    until = time.process_time() + SHARE_OF_TIME * input.get("cpu_s", 10.0)
    problem = Problem(n)
    best, best_sum, longest = None, -1.0, 0.0
    while best is None or time.process_time() + longest < until:
        began = time.process_time()
        packing = shrink(problem.improve(start(rng.uniform(0.05, 0.95, 2 * n), n)), n)
        if packing[2 * n :].sum() > best_sum:
            best, best_sum = packing, packing[2 * n :].sum()
        longest = max(longest, time.process_time() - began)
    return [[float(best[i]), float(best[n + i]), float(best[2 * n + i])] for i in range(n)]
