"""What the genetic proposer keeps of an archive, so that a proposal costs the same however long the history is."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate
from leadscrew.operators.genetic.names import tree_digest
from leadscrew.operators.genetic.options import MOVES, Options

SHORT = 20
"""Hex digits of a `tree_digest` that are kept: 80 bits."""


@dataclass
class Growing:
    """Ids in the order of their candidates, with the positions of these, so that a shorter view can be read off."""

    ids: list[str] = field(default_factory=list)
    at: list[int] = field(default_factory=list)

    def add(self, id: str, position: int) -> None:
        """Append an id."""
        self.ids.append(id)
        self.at.append(position)

    def count(self, archive: Archive) -> int:
        """Return how many of the ids this view of the archive holds."""
        return bisect_left(self.at, len(archive))

    def draw(self, archive: Archive, rng: random.Random) -> str:
        """Draw one of the ids that this view holds; there must be one."""
        return self.ids[rng.randrange(self.count(archive))]


@dataclass
class Memory:
    """Derived from one run's archive alone: valid candidates, digests of all recorded trees, how the moves fared.

    Plans in flight see snapshots of different lengths. Everything is therefore kept with its position, and what is
    returned depends on the view that is handed in, never on what was read for another plan.
    """

    first: Candidate | None = None
    read: int = 0
    valid: Growing = field(default_factory=Growing)
    founders: Growing = field(default_factory=Growing)
    origin: dict[str, str] = field(default_factory=dict)
    """Candidate -> the name of the founding program that its line of bases goes back to."""
    lines: dict[str, Growing] = field(default_factory=dict)
    """Name of a founding program -> the valid candidates of its line."""
    trees: dict[str, int] = field(default_factory=dict)
    """Shortened `tree_digest` -> the position of the first candidate with that tree."""
    tried: dict[str, Growing] = field(default_factory=lambda: {move: Growing() for move in MOVES})
    gained: dict[str, Growing] = field(default_factory=lambda: {move: Growing() for move in MOVES})

    def fits(self, archive: Archive) -> bool:
        """Say whether this memory is of the run that the archive belongs to."""
        return self.first is None or next(iter(archive), None) is self.first

    def follow(self, archive: Archive, program: Callable[[str], Program]) -> None:
        """Take in the candidates that no earlier view held."""
        if len(archive) <= self.read:
            return
        for position, candidate in enumerate(list(islice(archive, self.read, None)), self.read):
            self.first = self.first or candidate
            if candidate.program and archive.first_with(candidate.program) == candidate.id:
                # Reading ten thousand trees again after a resume would take a minute, so own claims are believed.
                told = candidate.claim.extra.get("tree") if candidate.operator == "genetic" else None
                digest = told if isinstance(told, str) else tree_digest(program(candidate.id))
                self.trees.setdefault(digest[:SHORT], position)
            base = next(iter(candidate.sources("base")), "")
            origin = self.origin.setdefault(candidate.id, self.origin.get(base, candidate.name))
            if is_valid(candidate):
                self.valid.add(candidate.id, position)
                self.lines.setdefault(origin, Growing()).add(candidate.id, position)
                if candidate.plan == 0:
                    self.founders.add(candidate.id, position)
            self._credit(archive, candidate, position)
        self.read = len(archive)

    def knows(self, archive: Archive, digest: str) -> bool:
        """Say whether this view holds a candidate with that `tree_digest`."""
        return self.trees.get(digest[:SHORT], len(archive)) < len(archive)

    def weights(self, archive: Archive, options: Options) -> dict[str, float]:
        """Return the weights of the moves, bent by the share of their children that beat their base on val.

        Each weight is multiplied by 4 (gained + 1) / (tried + 4), kept between a third and three: a move that has never
        been tried keeps its weight, and the prior is that one in four gains.
        """
        out = dict(options.weights)
        if options.credit:
            for move in MOVES:
                rate = (self.gained[move].count(archive) + 1) / (self.tried[move].count(archive) + 4)
                out[move] = out.get(move, 0.0) * min(3.0, max(1 / 3, 4 * rate))
        return out

    def base(self, archive: Archive, options: Options, rng: random.Random) -> str | None:
        """Draw a base: a member of the frontier, any valid candidate, or the winner of a tournament on val. With `line`
        only the lines of the named founding programs compete, each as likely as the others."""
        if not self.valid.count(archive):
            return None
        if options.line:
            lines = [line for name in options.line if (line := self.lines.get(name)) and line.count(archive)]
            return self._tournament(archive, options, rng, rng.choice(lines)) if lines else None
        draw = rng.random()
        frontier = archive.frontier()
        if draw < options.frontier and frontier:
            return rng.choice(frontier).id
        if draw < options.frontier + options.any:
            return self.valid.draw(archive, rng)
        return self._tournament(archive, options, rng)

    def donors(self, archive: Archive, base: str, options: Options, rng: random.Random) -> list[str]:
        """Draw distinct donors among the valid candidates: founders by their share, the others by tournament."""
        out: list[str] = []
        for _ in range(options.donors * 3):
            if self.founders.count(archive) and rng.random() < options.founders:
                drawn = self.founders.draw(archive, rng)
            elif self.valid.count(archive):
                drawn = self._tournament(archive, options, rng)
            else:
                break
            if drawn != base and drawn not in out:
                out.append(drawn)
            if len(out) == options.donors:
                break
        return out

    def _tournament(self, archive: Archive, options: Options, rng: random.Random, among: Growing | None = None) -> str:
        drawn = [(among or self.valid).draw(archive, rng) for _ in range(options.tournament)]
        best = drawn[0]
        for other in drawn[1:]:
            new, old = archive[other].value, archive[best].value
            if new is not None and (old is None or archive.objectives[0].better(new, old)):
                best = other
        return best

    def _credit(self, archive: Archive, candidate: Candidate, position: int) -> None:
        base = next(iter(candidate.sources("base")), None)
        if candidate.operator != "genetic" or base is None or candidate.status == "held" or not candidate.program:
            return
        old, new = archive[base].value, candidate.value
        for move in candidate.claim.tags:
            if move in MOVES:
                self.tried[move].add(candidate.id, position)
                if new is not None and (old is None or archive.objectives[0].better(new, old)):
                    self.gained[move].add(candidate.id, position)


def is_valid(candidate: Candidate) -> bool:
    """Say whether a candidate has a tree and a complete, full evaluation on val."""
    val = candidate.evaluations.get("val")
    return (
        candidate.status == "evaluated" and bool(candidate.program) and val is not None and val.complete and val.passed
    )
