"""Where candidates stand: who may be ranked at all, the founders, and who would be on the frontier."""

from __future__ import annotations

from collections.abc import Sequence

from leadscrew.core.archive import Archive
from leadscrew.core.proposal import Candidate
from leadscrew.core.trial import Evaluation
from leadscrew.policies.pareto import covers, vector


def ranking(candidate: Candidate) -> Evaluation | None:
    """Return the full, complete val evaluation of a candidate, or None if it cannot be ranked."""
    val = candidate.evaluations.get("val")
    return val if candidate.status == "evaluated" and val is not None and val.complete and val.passed else None


def value_of(candidate: Candidate) -> float:
    """Return the full val value; raises `ValueError` for a candidate that cannot be ranked."""
    evaluation = ranking(candidate)
    if evaluation is None or evaluation.value is None:
        raise ValueError(f"{candidate.id} has no full evaluation, so it has no value to compare; ask `ranking` first")
    return evaluation.value


def best_of(archive: Archive, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the first candidate with the best value among those that can be ranked."""
    best: Candidate | None = None
    for candidate in candidates:
        if ranking(candidate) is None:
            continue
        if best is None or archive.objectives[0].better(value_of(candidate), value_of(best)):
            best = candidate
    return best


def founders(archive: Archive) -> list[Candidate]:
    """Return the candidates of the founding plan, in order: the seed program and the baselines."""
    out: list[Candidate] = []
    while f"0.{len(out)}" in archive:
        out.append(archive[f"0.{len(out)}"])
    return out


def on_frontier(archive: Archive, candidate: Candidate, siblings: Sequence[Candidate]) -> bool:
    """Say whether nothing in the archive or of the same plan is at least as good in every objective.

    Of candidates with equal numbers the oldest stands for all, as in the archive.
    """
    mine = _vector(archive, candidate)
    if mine is None or any((v := _vector(archive, c)) and covers(v, mine) for c in archive.frontier()):
        return False
    for other in siblings:
        theirs = _vector(archive, other)
        if other.id == candidate.id or theirs is None or not covers(theirs, mine):
            continue
        if theirs != mine or other.index < candidate.index:
            return False
    return True


def _vector(archive: Archive, candidate: Candidate) -> tuple[float, ...] | None:
    evaluation = ranking(candidate)
    return vector(evaluation, archive.objectives) if evaluation else None
