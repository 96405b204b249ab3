"""What the genetic proposer keeps of an archive, so that a proposal costs the same however long the history is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate
from leadscrew.operators.genetic.names import tree_digest
from leadscrew.operators.genetic.options import MOVES, Options


@dataclass
class Memory:
    """Derived from the archive alone: valid candidates, digests of all recorded trees, and how the moves fared."""

    read: int = 0
    valid: list[str] = field(default_factory=list)
    founders: list[str] = field(default_factory=list)
    trees: dict[str, str] = field(default_factory=dict)
    """`tree_digest` -> the first candidate with that tree."""
    tried: dict[str, int] = field(default_factory=dict)
    gained: dict[str, int] = field(default_factory=dict)

    def follow(self, archive: Archive, program: Callable[[str], Program]) -> None:
        """Take in the candidates that were added since the last call."""
        new = list(islice(archive, self.read, None))
        self.read += len(new)
        for candidate in new:
            if candidate.program:
                first = archive.first_with(candidate.program)
                if first == candidate.id:
                    self.trees.setdefault(tree_digest(program(candidate.id)), candidate.id)
            if is_valid(candidate):
                self.valid.append(candidate.id)
                if candidate.plan == 0:
                    self.founders.append(candidate.id)
            self._credit(archive, candidate)

    def weights(self, options: Options) -> dict[str, float]:
        """Return the weights of the moves, bent by the share of their children that beat their base.

        Each weight is multiplied by 4 (gained + 1) / (tried + 4), kept between a third and three: a move that has never
        been tried keeps its weight, and the prior is that one in four gains.
        """
        out = dict(options.weights)
        if options.credit:
            for move in MOVES:
                rate = (self.gained.get(move, 0) + 1) / (self.tried.get(move, 0) + 4)
                out[move] = out.get(move, 0.0) * min(3.0, max(1 / 3, 4 * rate))
        return out

    def base(self, archive: Archive, options: Options, rng: random.Random) -> str | None:
        """Draw a base: a member of the frontier, any valid candidate, or the winner of a tournament on val."""
        if not self.valid:
            return None
        draw = rng.random()
        frontier = archive.frontier()
        if draw < options.frontier and frontier:
            return rng.choice(frontier).id
        if draw < options.frontier + options.any:
            return rng.choice(self.valid)
        return self._tournament(archive, options, rng)

    def donors(self, archive: Archive, base: str, options: Options, rng: random.Random) -> list[str]:
        """Draw distinct donors among the valid candidates: founders by their share, the others by tournament."""
        out: list[str] = []
        for _ in range(options.donors * 3):
            if self.founders and rng.random() < options.founders:
                drawn = rng.choice(self.founders)
            elif self.valid:
                drawn = self._tournament(archive, options, rng)
            else:
                break
            if drawn != base and drawn not in out:
                out.append(drawn)
            if len(out) == options.donors:
                break
        return out

    def _tournament(self, archive: Archive, options: Options, rng: random.Random) -> str:
        drawn = [rng.choice(self.valid) for _ in range(options.tournament)]
        best = drawn[0]
        for other in drawn[1:]:
            new, old = archive[other].value, archive[best].value
            if new is not None and (old is None or archive.objectives[0].better(new, old)):
                best = other
        return best

    def _credit(self, archive: Archive, candidate: Candidate) -> None:
        base = next(iter(candidate.sources("base")), None)
        if candidate.operator != "genetic" or base is None or candidate.status == "held":
            return
        old, new = archive[base].value, candidate.value
        won = new is not None and (old is None or archive.objectives[0].better(new, old))
        for move in candidate.claim.tags:
            if move in MOVES:
                self.tried[move] = self.tried.get(move, 0) + 1
                self.gained[move] = self.gained.get(move, 0) + won


def is_valid(candidate: Candidate) -> bool:
    """Say whether a candidate has a tree and a complete, full evaluation on val."""
    val = candidate.evaluations.get("val")
    return (
        candidate.status == "evaluated" and bool(candidate.program) and val is not None and val.complete and val.passed
    )
