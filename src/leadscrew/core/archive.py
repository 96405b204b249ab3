"""The archive: every candidate ever recorded, with what is derived from them kept up to date as they arrive.

Adding a candidate costs the same however many there are; nothing is ever removed. The archive holds numbers and links;
program files and traces stay in the store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leadscrew.core.proposal import Candidate, EdgeKind, Record, Verdict
from leadscrew.core.task import Objective
from leadscrew.core.trial import Evaluation
from leadscrew.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Best:
    """The best value seen somewhere and the candidate that reached it first."""

    value: float
    candidate: str


class Archive:
    """Candidates in order, their children, the Pareto frontier, bests by data set and instance, the champion.

    `objectives[0]` is the primary one; the others are read from an evaluation's costs.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.objectives = tuple(objectives)
        self._candidates: dict[str, Candidate] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._children: dict[str, dict[str, int]] = {}
        self._frontier: dict[str, tuple[float, ...]] = {}
        self._by_program: dict[str, str] = {}
        self._dataset_best: dict[str, Best] = {}
        self._instance_best: dict[str, Best] = {}
        self._champions: list[str] = []
        self._best: Best | None = None
        self._records: dict[str, dict[str, Record]] = {}
        self._record_log: list[Record] = []
        self._plans_applied = 0

    # -- growing -------------------------------------------------------------------------------

    def add(self, candidate: Candidate) -> None:
        """Take in a candidate. Edges must point to candidates that are already here."""
        if candidate.id in self._candidates:
            raise ValueError(f"candidate {candidate.id} is already in the archive")
        for edge in candidate.edges:
            if edge.source not in self._candidates:
                raise ValueError(f"{candidate.id} has an edge to {edge.source}, which is not in the archive")
        candidate = self._share_instances(candidate)
        self._candidates[candidate.id] = candidate
        if candidate.program:
            self._by_program.setdefault(candidate.program, candidate.id)
        for edge in candidate.edges:
            counts = self._children.setdefault(edge.source, {})
            counts[edge.kind] = counts.get(edge.kind, 0) + 1
        val = candidate.evaluations.get("val")
        if val is not None and val.complete and val.passed:
            self._rank(candidate.id, val)

    def judge(self, verdict: Verdict) -> None:
        """Take in a verdict; a champion verdict makes its candidate the champion."""
        self._verdicts[verdict.candidate] = verdict
        if verdict.champion:
            self._champions.append(verdict.candidate)

    def remember(self, record: Record) -> None:
        """Take in a method record; the latest one of a subject is its state."""
        self._records.setdefault(record.kind, {})[record.subject] = record
        self._record_log.append(record)

    def plan_applied(self) -> None:
        """Count one more plan whose judgement is in the archive."""
        self._plans_applied += 1

    # -- reading -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._candidates)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._candidates.values())

    def __contains__(self, candidate: str) -> bool:
        return candidate in self._candidates

    def __getitem__(self, candidate: str) -> Candidate:
        try:
            return self._candidates[candidate]
        except KeyError:
            raise NotFoundError(
                f"there is no candidate {candidate!r}; the ids run from {next(iter(self._candidates), '(none)')} "
                f"to {next(reversed(self._candidates), '(none)')}.",
                name=candidate,
            ) from None

    @property
    def plans_applied(self) -> int:
        """How many plans have been judged."""
        return self._plans_applied

    @property
    def champion(self) -> Candidate | None:
        """The candidate that a verdict made champion last."""
        return self._candidates[self._champions[-1]] if self._champions else None

    @property
    def champions(self) -> tuple[str, ...]:
        """Every candidate that was champion, in order."""
        return tuple(self._champions)

    @property
    def best(self) -> Best | None:
        """The best complete primary value on val."""
        return self._best

    def verdict(self, candidate: str) -> Verdict | None:
        """Return the verdict on a candidate."""
        return self._verdicts.get(candidate)

    def first_with(self, program: str) -> str | None:
        """Return the first candidate that carried this program digest."""
        return self._by_program.get(program)

    def children(self, candidate: str, *kinds: EdgeKind) -> int:
        """Count the edges of these kinds that point at a candidate (all kinds if none is named)."""
        counts = self._children.get(candidate, {})
        return sum(n for kind, n in counts.items() if not kinds or kind in kinds)

    def frontier(self) -> tuple[Candidate, ...]:
        """Return the strict Pareto set over all objectives, best primary value first.

        Of several candidates with exactly the same numbers the oldest stands for all.
        """
        order = sorted(self._frontier, key=lambda i: (self._frontier[i], i), reverse=True)
        return tuple(self._candidates[i] for i in order)

    def dataset_bests(self) -> dict[str, Best]:
        """Return the best candidate on each data set."""
        return dict(self._dataset_best)

    def instance_bests(self) -> dict[str, Best]:
        """Return the best candidate on each val instance."""
        return dict(self._instance_best)

    def record(self, kind: str, subject: str) -> Record | None:
        """Return the latest record of a subject."""
        return self._records.get(kind, {}).get(subject)

    def records(self, kind: str) -> tuple[Record, ...]:
        """Return the latest record of every subject of this kind, in order of first appearance."""
        return tuple(self._records.get(kind, {}).values())

    # -- inside --------------------------------------------------------------------------------

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
        if self._best is None or primary.better(value, self._best.value):
            self._best = Best(value, candidate)
        for dataset, number in evaluation.aggregate.per_dataset.items():
            self._improve(self._dataset_best, dataset, number, candidate)
        for instance, number in zip(evaluation.instances, evaluation.values, strict=True):
            if not math.isnan(number):
                self._improve(self._instance_best, instance, number, candidate)
        vector = self._vector(evaluation)
        if vector is None or any(_covers(held, vector) for held in self._frontier.values()):
            return
        for member in [m for m, held in self._frontier.items() if _covers(vector, held)]:
            del self._frontier[member]
        self._frontier[candidate] = vector

    def _improve(self, table: dict[str, Best], key: str, number: float, candidate: str) -> None:
        held = table.get(key)
        if held is None or self.objectives[0].better(number, held.value):
            table[key] = Best(number, candidate)

    def _share_instances(self, candidate: Candidate) -> Candidate:
        # Ten thousand candidates on the same split would otherwise hold ten thousand equal tuples.
        first = next(iter(self._candidates.values()), None)
        if first is None or not candidate.evaluations:
            return candidate
        shared: dict[str, Any] = {}
        for split, evaluation in candidate.evaluations.items():
            known = first.evaluations.get(split)
            same = known is not None and known.instances == evaluation.instances
            shared[split] = replace(evaluation, instances=known.instances) if known and same else evaluation
        return replace(candidate, evaluations=shared)


def _covers(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether `a` is at least as good as `b` everywhere: it dominates `b` or equals it."""
    return all(x >= y for x, y in zip(a, b, strict=True))
