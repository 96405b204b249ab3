"""Strict dominance: the reference form, the archive's incremental set and the plain definition agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leadscrew.core.archive import Archive
from leadscrew.core.proposal import Candidate
from leadscrew.core.task import Aggregate, Objective
from leadscrew.core.trial import Evaluation, Outcome
from leadscrew.policies.pareto import dominates, strict_front, vector
from leadscrew.policies.rank import best_of, on_frontier, ranking

points = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12)
OBJECTIVES = (Objective("accuracy"), Objective("context_chars", "min"))


def candidate(index: int, point: tuple[int, int], status: str = "evaluated", plan: int = 1) -> Candidate:
    aggregate = Aggregate(float(point[0]), {"context_chars": float(point[1])}, {"main": float(point[0])})
    val = Evaluation(f"p{index}", "val", 0, 1, ("v",), (float(point[0]),), aggregate)
    return Candidate(
        f"{plan}.{index}",
        plan,
        index,
        f"p{index}",
        "",
        "x",
        status,
        Outcome.OK,
        evaluations={"val": val},  # type: ignore[arg-type]
    )


@given(points)
def test_nobody_kept_is_dominated_and_everybody_left_out_is_covered(found: list[tuple[int, int]]) -> None:
    named = {i: (a, -c) for i, (a, c) in enumerate(found)}
    kept = strict_front(named)
    assert not any(dominates(named[a], named[b]) for a in kept for b in kept)
    for i, point in named.items():
        if i not in kept:
            assert any(dominates(named[k], point) or (named[k] == point and k < i) for k in kept)


@given(points)
def test_the_archive_keeps_the_same_set(found: list[tuple[int, int]]) -> None:
    archive = Archive(OBJECTIVES)
    for i, point in enumerate(found):
        archive.add(candidate(i, point))
    reference = strict_front({f"1.{i}": (a, -c) for i, (a, c) in enumerate(found)})
    assert {c.id for c in archive.frontier()} == set(reference)


@given(points, points)
def test_a_plan_knows_before_it_is_recorded_who_will_be_on_the_frontier(
    old: list[tuple[int, int]], new: list[tuple[int, int]]
) -> None:
    archive = Archive(OBJECTIVES)
    for i, point in enumerate(old):
        archive.add(candidate(i, point))
    plan = [candidate(i, point, plan=2) for i, point in enumerate(new)]
    foreseen = {c.id for c in plan if on_frontier(archive, c, plan)}
    for c in plan:
        archive.add(c)
    assert foreseen == {c.id for c in archive.frontier() if c.plan == 2}


def test_equal_cost_and_lower_accuracy_is_dominated_as_the_reference_misses() -> None:
    assert strict_front({"a": (50, -100), "b": (40, -100), "c": (30, 0)}) == ("a", "c")


def test_a_missing_cost_has_no_place_and_failed_candidates_no_rank() -> None:
    good, failed = candidate(0, (1, 1)), candidate(1, (4, 0), status="failed")
    assert vector(good.evaluations["val"], (*OBJECTIVES, Objective("tokens", "min"))) is None
    assert ranking(failed) is None
    archive = Archive(OBJECTIVES)
    assert best_of(archive, [failed, good]) is good
    assert not on_frontier(archive, failed, [])


def test_a_candidate_that_failed_as_a_whole_never_leads_the_archive() -> None:
    archive = Archive((Objective("score", floor=0.0),))
    archive.add(candidate(0, (0, 0), status="failed"))
    honest = candidate(1, (-3, 0))
    archive.add(honest)
    assert archive.best is not None
    assert archive.best.candidate == honest.id
    assert archive.frontier() == (honest,)
