"""`circle-packing`: n circles in the unit square that do not overlap, with the largest sum of radii."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace

from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program
from leadscrew.core.task import (
    Answer,
    Instance,
    Interface,
    Limits,
    Objective,
    ProgramEnvironment,
    Provenance,
    Score,
    Split,
)
from leadscrew.domains.circle_packing.check import fault, read, total
from leadscrew.domains.options import choice, number, whole
from leadscrew.domains.templates import template
from leadscrew.errors import DomainError, MissingExtraError
from leadscrew.ports import BadAnswer, BoxReply, Domain

BEST_KNOWN: Mapping[int, float] = {26: 2.6359830853, 32: 2.937, 33: 2.98729, 36: 3.121, 40: 3.29239}
"""Best published sums of radii by number of circles; where a source gives fewer digits, as given."""
_SIZES: Mapping[Split, int] = {"train": 2, "val": 4, "test": 6}


class CirclePacking(Domain):
    """Place `n` circles (26 by default) in the unit square without overlap; the score is the sum of the radii.

    A program has `solve(input) -> [[x, y, r], ...]` with input `{"n", "seed", "cpu_s"}`: how many circles, a seed for
    its random numbers, and the CPU seconds of a trial. Instances differ in the seed only (2 train, 4 val, 6 test), so
    that programs which search at random can be compared in pairs. An answer is checked outside the box in exact
    rational arithmetic with zero tolerance; one that overlaps, leaves the square or has another form is `bad_output`
    and counts as 0.

    The ceiling for n = 26 is 2.6359830853, the largest published value known to us. For comparison: 2.634 before 2025;
    2.63586276 by AlphaEvolve (2025); some published packings hold only with a tolerance of 1e-6. A record is not a
    proof: the ceiling may be passed.

    `cpu_s` is the CPU time of a trial, `packages` is `auto` (NumPy and SciPy where both are installed), `scipy`
    (required: raises `MissingExtraError` without them) or `none`; `sizes` overrides the number of seeds per split.
    """

    name = "circle-packing"
    public_since = "2025-05-14"
    provenance = Provenance("a geometric problem; no data", "none needed", "2025-05-14")

    def __init__(
        self,
        *,
        seed: int = 0,
        n: int = 26,
        cpu_s: float = 10.0,
        packages: str = "auto",
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self._seed = whole(self.name, "seed", seed, 0)
        self._n = whole(self.name, "n", n, 1)
        self._cpu_s = number(self.name, "cpu_s", cpu_s, 0.0)
        self._sizes = {s: whole(self.name, f"sizes.{s}", (sizes or {}).get(s, k), 1) for s, k in _SIZES.items()}
        for split in sizes or {}:
            choice(self.name, "sizes", split, tuple(_SIZES))
        wanted = choice(self.name, "packages", packages, ("auto", "scipy", "none"))
        missing = [p for p in ("numpy", "scipy") if importlib.util.find_spec(p) is None]
        if wanted == "scipy" and missing:
            raise MissingExtraError(
                f"the option packages = 'scipy' of {self.name!r} needs {' and '.join(missing)}: "
                "install leadscrew[circles], or write packages = 'none'.",
                extra="circles",
            )
        self.scipy = wanted != "none" and not missing
        self.environment = ProgramEnvironment(("numpy", "scipy") if self.scipy else ())
        self.interface = Interface("solve", deterministic=False)  # searching stops by the clock
        self.objectives = (Objective("sum_of_radii", "max", floor=0.0, ceiling=BEST_KNOWN.get(n)),)
        self.limits = replace(Limits(), cpu_s=self._cpu_s, wall_s=self._cpu_s * 4 + 10, answer_kb=64)

    def instances(self, split: Split) -> Sequence[Instance]:
        """Return the seeds of a split; seeds of different splits and runs differ."""
        if split not in self._sizes:
            raise DomainError(f"there is no split {split!r}; the splits are {', '.join(self._sizes)}.")
        first = self._seed * 1_000_000 + 100_000 * list(self._sizes).index(split)
        return tuple(
            Instance(f"{split}-{i}", split, {"n": self._n, "seed": first + i, "cpu_s": self._cpu_s})
            for i in range(self._sizes[split])
        )

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        """Return the sum of radii of a feasible packing; raise `BadAnswer` for any other answer."""
        circles = read(answer.value, instance.input["n"])
        broken = fault(circles)
        if broken:
            raise BadAnswer(broken)
        return Score(total(circles))

    def seed(self) -> Program:
        """Return the random restarts in pure Python."""
        return template("circles/restarts")

    def baselines(self) -> Mapping[str, Program]:
        """Return the hand-made grid, random restarts, and with SciPy the classical method: multi-start SLSQP."""
        found = {"grid": template("circles/grid"), "restarts": template("circles/restarts")}
        if self.scipy:
            found["slsqp"] = template("circles/slsqp")
        return found

    def scorer_digest(self) -> str:
        """Return a digest of the exact checker's source."""
        import inspect

        return digest_of([self.name, *(inspect.getsource(f) for f in (read, fault, total))])
