"""The archive: every candidate ever recorded, with what is derived from them kept up to date as they arrive.

Adding a candidate costs the same however many there are; nothing is ever removed. The archive holds numbers and links;
program files and traces stay in the store. A snapshot is what the archive was at one moment: plans in flight read one
each, so that what they decide never depends on which of them happens to finish first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from leadscrew.core.proposal import Candidate, EdgeKind, Record, Verdict
from leadscrew.core.task import Objective, Split
from leadscrew.core.trial import Evaluation
from leadscrew.errors import NotFoundError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Best:
    """The best value seen somewhere and the candidate that reached it first."""

    value: float
    candidate: str


class _Log:
    """What only ever grows, shared by an archive and its snapshots. Lists are in order of arrival."""

    __slots__ = ("candidates", "champions", "children", "order", "position", "program", "records", "verdicts")

    def __init__(self) -> None:
        self.candidates: dict[str, Candidate] = {}
        self.order: list[str] = []
        self.position: dict[str, int] = {}
        self.program: dict[str, int] = {}
        self.children: dict[tuple[str, EdgeKind], list[int]] = {}
        self.verdicts: dict[str, list[tuple[int, Verdict]]] = {}
        self.records: dict[str, dict[str, list[tuple[int, Record]]]] = {}
        self.champions: list[str] = []


class Archive:
    """Candidates in order, their children, the Pareto frontier, bests by data set and instance, the champion.

    `objectives[0]` is the primary one; the others are read from an evaluation's costs.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.objectives = tuple(objectives)
        self._log = _Log()
        self._size = 0
        self._clock = 0
        self._champion_count = 0
        self._plans_applied = 0
        self._best: Best | None = None
        self._frontier: dict[str, tuple[float, ...]] = {}
        self._dataset_best: dict[str, Best] = {}
        self._instance_best: dict[str, Best] = {}
        self._frozen = False

    def snapshot(self) -> Archive:
        """Return a read-only archive that stays as this one is now, however this one grows.

        Costs as much as the frontier and the instances are large, not the history.
        """
        view = Archive(self.objectives)
        view._log = self._log
        view._size, view._clock = self._size, self._clock
        view._champion_count, view._plans_applied = self._champion_count, self._plans_applied
        view._best = self._best
        view._frontier = dict(self._frontier)
        view._dataset_best = dict(self._dataset_best)
        view._instance_best = dict(self._instance_best)
        view._frozen = True
        return view

    # -- growing -------------------------------------------------------------------------------

    def add(self, candidate: Candidate) -> None:
        """Take in a candidate. Edges must point to candidates that are already here."""
        self._check_growing()
        log = self._log
        if candidate.id in log.candidates:
            raise ValueError(f"candidate {candidate.id} is already in the archive")
        for edge in candidate.edges:
            if edge.source not in log.candidates:
                raise ValueError(f"{candidate.id} has an edge to {edge.source}, which is not in the archive")
        candidate = self._share_instances(candidate)
        log.candidates[candidate.id] = candidate
        log.position[candidate.id] = self._size
        log.order.append(candidate.id)
        if candidate.program:
            log.program.setdefault(candidate.program, self._size)
        for edge in candidate.edges:
            log.children.setdefault((edge.source, edge.kind), []).append(self._size)
        self._size += 1
        val = candidate.evaluations.get("val")
        if candidate.status == "evaluated" and val is not None and val.complete and val.passed:
            self._rank(candidate.id, val)

    def judge(self, verdict: Verdict) -> None:
        """Take in a verdict; a champion verdict makes its candidate the champion."""
        self._check_growing()
        self._log.verdicts.setdefault(verdict.candidate, []).append((self._tick(), verdict))
        if verdict.champion:
            self._log.champions.append(verdict.candidate)
            self._champion_count += 1

    def remember(self, record: Record) -> None:
        """Take in a method record; the latest one of a subject is its state."""
        self._check_growing()
        self._log.records.setdefault(record.kind, {}).setdefault(record.subject, []).append((self._tick(), record))

    def plan_applied(self) -> None:
        """Count one more plan whose judgement is in the archive."""
        self._check_growing()
        self._plans_applied += 1

    # -- reading -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Candidate]:
        return (self._log.candidates[i] for i in islice(self._log.order, self._size))

    def __contains__(self, candidate: object) -> bool:
        return self._log.position.get(candidate, self._size) < self._size  # type: ignore[call-overload,no-any-return]

    def __getitem__(self, candidate: str) -> Candidate:
        if candidate not in self:
            ends = f"the ids run from {self._log.order[0]} to {self._log.order[self._size - 1]}" if self._size else ""
            raise NotFoundError(f"there is no candidate {candidate!r}; {ends or 'there are none yet'}.", name=candidate)
        return self._log.candidates[candidate]

    def at(self, position: int) -> Candidate:
        """Return the candidate that arrived as number `position` (from 0; negative counts from the end)."""
        return self._log.candidates[self._log.order[range(self._size)[position]]]

    @property
    def plans_applied(self) -> int:
        """How many plans have been judged."""
        return self._plans_applied

    @property
    def champion(self) -> Candidate | None:
        """The candidate that a verdict made champion last."""
        return self._log.candidates[self._log.champions[self._champion_count - 1]] if self._champion_count else None

    @property
    def champions(self) -> tuple[str, ...]:
        """Every candidate that was made champion, in order."""
        return tuple(self._log.champions[: self._champion_count])

    @property
    def best(self) -> Best | None:
        """The best complete primary value on val."""
        return self._best

    def verdict(self, candidate: str) -> Verdict | None:
        """Return the latest verdict on a candidate."""
        return _latest(self._log.verdicts.get(candidate, []), self._clock)

    def first_with(self, program: str) -> str | None:
        """Return the first candidate that carried this program digest."""
        position = self._log.program.get(program, self._size)
        return self._log.order[position] if position < self._size else None

    def children(self, candidate: str, *kinds: EdgeKind) -> int:
        """Count the edges of these kinds that point at a candidate (all kinds if none is named)."""
        wanted = kinds or ("parent", "donor", "base", "inspiration", "evidence", "triggered_by", "meta")
        return sum(bisect_left(self._log.children.get((candidate, kind), []), self._size) for kind in wanted)

    def frontier(self) -> tuple[Candidate, ...]:
        """Return the strict Pareto set over all objectives, best primary value first.

        Of several candidates with exactly the same numbers the oldest stands for all.
        """
        order = sorted(self._frontier, key=lambda i: (tuple(-x for x in self._frontier[i]), self._log.position[i]))
        return tuple(self._log.candidates[i] for i in order)

    def dataset_bests(self) -> dict[str, Best]:
        """Return the best candidate on each data set."""
        return dict(self._dataset_best)

    def instance_bests(self) -> dict[str, Best]:
        """Return the best candidate on each val instance."""
        return dict(self._instance_best)

    def record(self, kind: str, subject: str) -> Record | None:
        """Return the latest record of a subject."""
        return _latest(self._log.records.get(kind, {}).get(subject, []), self._clock)

    def records(self, kind: str) -> tuple[Record, ...]:
        """Return the latest record of every subject of this kind, in order of first appearance."""
        found = (_latest(entries, self._clock) for entries in self._log.records.get(kind, {}).values())
        return tuple(record for record in found if record is not None)

    # -- inside --------------------------------------------------------------------------------

    def _check_growing(self) -> None:
        if self._frozen:
            raise ValueError("a snapshot of the archive cannot grow")

    def _tick(self) -> int:
        self._clock += 1
        return self._clock - 1

    def _vector(self, evaluation: Evaluation) -> tuple[float, ...] | None:
        """All objectives turned so that more is better; None where one was not measured."""
        out: list[float] = []
        for i, objective in enumerate(self.objectives):
            number: float | None = evaluation.value if i == 0 else evaluation.aggregate.costs.get(objective.name)
            if number is None or not math.isfinite(number):
                return None
            out.append(number if objective.direction == "max" else -number)
        return tuple(out)

    def _rank(self, candidate: str, evaluation: Evaluation) -> None:
        primary = self.objectives[0]
        value = evaluation.value
        assert value is not None
        if math.isnan(value):
            # Nothing would ever be better than what cannot be compared.
            return
        if self._best is None or primary.better(value, self._best.value):
            self._best = Best(value, candidate)
        for dataset, number in evaluation.aggregate.per_dataset.items():
            self._improve(self._dataset_best, dataset, number, candidate)
        for instance, number in zip(evaluation.instances, evaluation.values, strict=True):
            self._improve(self._instance_best, instance, number, candidate)
        vector = self._vector(evaluation)
        if vector is None or any(_covers(held, vector) for held in self._frontier.values()):
            return
        for member in [m for m, held in self._frontier.items() if _covers(vector, held)]:
            del self._frontier[member]
        self._frontier[candidate] = vector

    def _improve(self, table: dict[str, Best], key: str, number: float, candidate: str) -> None:
        held = table.get(key)
        if math.isnan(number):
            return
        if held is None or self.objectives[0].better(number, held.value):
            table[key] = Best(number, candidate)

    def _share_instances(self, candidate: Candidate) -> Candidate:
        # Ten thousand candidates on the same split would otherwise hold ten thousand equal tuples.
        if not self._size or not candidate.evaluations:
            return candidate
        first = self._log.candidates[self._log.order[0]]
        shared: dict[Split, Evaluation] = {}
        for split, evaluation in candidate.evaluations.items():
            known = first.evaluations.get(split)
            same = known is not None and known.instances == evaluation.instances
            shared[split] = replace(evaluation, instances=known.instances) if known and same else evaluation
        return replace(candidate, evaluations=shared)


def _covers(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether `a` is at least as good as `b` everywhere: it dominates `b` or equals it."""
    return all(x >= y for x, y in zip(a, b, strict=True))


def _latest(entries: Sequence[tuple[int, _T]], clock: int) -> _T | None:
    for time, entry in reversed(entries):
        if time < clock:
            return entry
    return None
