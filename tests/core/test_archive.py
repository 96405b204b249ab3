"""The archive keeps its derived facts up to date: they always equal what a look at everything would say."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadscrew.core.archive import Archive, Best
from leadscrew.core.proposal import Candidate, Edge, Record, Verdict
from leadscrew.core.task import Aggregate, Objective
from leadscrew.core.trial import Evaluation, Outcome
from leadscrew.errors import NotFoundError

OBJECTIVES = (Objective("score", "max"), Objective("cost", "min"))
SMALL = st.integers(0, 4).map(float)  # few values, so that ties and duplicates are common


def candidate(
    number: int,
    value: float | None = 0.0,
    cost: float | None = 0.0,
    *,
    values: Sequence[float] = (),
    edges: tuple[Edge, ...] = (),
    passed: bool = True,
    program: str = "",
    status: str = "evaluated",
) -> Candidate:
    names = tuple(f"i{n}" for n in range(len(values)))
    sets = {} if value is None else {f"d{n}": v for n, v in enumerate(values[:2]) if not math.isnan(v)}
    aggregate = Aggregate(value, {} if cost is None else {"cost": cost}, sets)
    found = Evaluation("p", "val", 0, len(names), names, array("d", values), aggregate, passed=passed)
    return Candidate(
        f"{number}.0", number, 0, program, "", "op", status, Outcome.OK, edges=edges, evaluations={"val": found}  # type: ignore[arg-type]
    )  # fmt: skip


ROWS = st.lists(
    st.tuples(
        st.none() | SMALL, st.none() | SMALL, st.lists(SMALL | st.just(math.nan), min_size=3, max_size=3), st.booleans()
    ),
    max_size=25,
)


def brute_frontier(ranked: list[tuple[str, float, float]]) -> list[str]:
    """Strictly non-dominated, of equals the oldest, best primary value first."""
    kept = []
    for place, (name, value, cost) in enumerate(ranked):
        dominated = any(v >= value and c <= cost and (v, c) != (value, cost) for _, v, c in ranked)
        doubled = any((v, c) == (value, cost) for _, v, c in ranked[:place])
        if not dominated and not doubled:
            kept.append((-value, cost, place, name))
    return [name for *_, name in sorted(kept)]


@settings(max_examples=200)
@given(ROWS)
def test_frontier_and_bests_equal_a_look_at_everything(
    rows: list[tuple[float | None, float | None, list[float], bool]],
) -> None:
    archive = Archive(OBJECTIVES)
    counted: list[tuple[str, float, float | None, list[float]]] = []
    for number, (value, cost, values, passed) in enumerate(rows):
        archive.add(candidate(number, value, cost, values=values, passed=passed))
        if value is not None and passed:
            counted.append((f"{number}.0", value, cost, values))
        ranked = [(name, value, cost) for name, value, cost, _ in counted if cost is not None]
        assert [c.id for c in archive.frontier()] == brute_frontier(ranked)
        best = max((value for _, value, _, _ in counted), default=None)
        first = next((name for name, value, _, _ in counted if value == best), "")
        assert archive.best == (None if best is None else Best(best, first))
    wins: dict[str, Best] = {}
    for name, _, _, values in counted:
        for place, number in enumerate(values):
            held = wins.get(f"i{place}")
            if not math.isnan(number) and (held is None or number > held.value):
                wins[f"i{place}"] = Best(number, name)
    assert archive.instance_bests() == wins
    assert archive.dataset_bests() == {f"d{k[1]}": b for k, b in wins.items() if k in ("i0", "i1")}


@given(ROWS, st.integers(0, 25))
def test_a_snapshot_stays_as_it_was(
    rows: list[tuple[float | None, float | None, list[float], bool]], moment: int
) -> None:
    """A snapshot equals an archive that was never grown further."""
    growing, stopped = Archive(OBJECTIVES), Archive(OBJECTIVES)
    view = growing.snapshot()
    for number, (value, cost, values, passed) in enumerate(rows):
        if number == moment:
            view = growing.snapshot()
        for archive in (growing, stopped) if number < moment else (growing,):
            edges = (Edge("parent", f"{number - 1}.0"),) if number else ()
            archive.add(
                candidate(number, value, cost, values=values, passed=passed, edges=edges, program=f"p{number % 3}")
            )
            archive.judge(Verdict(f"{number // 2}.0", f"klass {number}", "", champion=number % 4 == 0))
            archive.remember(Record("state", f"s{number % 2}", {"n": number}))
            archive.plan_applied()
    if moment >= len(rows):
        view = growing.snapshot()
    assert [c.id for c in view] == [c.id for c in stopped]
    assert len(view) == len(stopped)
    assert [c.id for c in view.frontier()] == [c.id for c in stopped.frontier()]
    assert view.best == stopped.best
    assert view.champions == stopped.champions
    assert (view.champion and view.champion.id) == (stopped.champion and stopped.champion.id)
    assert view.plans_applied == stopped.plans_applied
    assert view.instance_bests() == stopped.instance_bests()
    assert view.dataset_bests() == stopped.dataset_bests()
    assert view.records("state") == stopped.records("state")
    for number in range(len(rows)):
        name = f"{number}.0"
        assert (name in view) == (name in stopped)
        assert view.children(name) == stopped.children(name)
        assert view.verdict(name) == stopped.verdict(name)
        assert view.first_with(f"p{number}") == stopped.first_with(f"p{number}")
        assert view.record("state", f"s{number}") == stopped.record("state", f"s{number}")
    with pytest.raises(ValueError, match="cannot grow"):
        view.add(candidate(99))


def test_the_direction_belongs_to_the_objective() -> None:
    archive = Archive((Objective("loss", "min"),))
    for number, value in enumerate((3.0, 1.0, 2.0)):
        archive.add(candidate(number, value, None, values=[value]))
    assert archive.best == Best(1.0, "1.0")
    assert [c.id for c in archive.frontier()] == ["1.0"]
    assert archive.instance_bests() == {"i0": Best(1.0, "1.0")}


def test_what_cannot_be_compared_never_ranks() -> None:
    """A NaN that came first would be best for ever; an incomplete, gated, failed or held one must not compete at all."""
    archive = Archive(OBJECTIVES)
    archive.add(candidate(0, math.nan, 0.0, values=[math.nan]))
    archive.add(candidate(1, None, None, values=[9.0]))
    archive.add(candidate(2, 9.0, 0.0, values=[9.0], passed=False))
    archive.add(candidate(3, 9.0, 0.0, values=[9.0], status="failed"))
    archive.add(candidate(4, 9.0, 0.0, values=[9.0], status="held"))
    assert archive.best is None
    assert archive.frontier() == ()
    assert archive.instance_bests() == {}
    archive.add(candidate(5, 1.0, 1.0, values=[1.0]))
    assert archive.best == Best(1.0, "5.0")
    assert len(archive) == 6


def test_negative_scores_beat_no_score() -> None:
    """A crash must not be crowned over honest negative numbers."""
    archive = Archive((Objective("score", "max", floor=-100.0),))
    archive.add(candidate(0, -5.0, None, values=[-5.0]))
    archive.add(candidate(1, None, None, status="failed"))
    assert archive.best == Best(-5.0, "0.0")


def test_children_are_counted_by_kind() -> None:
    archive = Archive(OBJECTIVES)
    archive.add(candidate(0))
    archive.add(candidate(1, edges=(Edge("parent", "0.0"), Edge("meta", "0.0"))))
    archive.add(candidate(2, edges=(Edge("parent", "0.0"), Edge("donor", "1.0"))))
    assert archive.children("0.0") == 3
    assert archive.children("0.0", "parent") == 2
    assert archive.children("0.0", "meta", "donor") == 1
    assert archive.children("2.0") == 0


def test_edges_point_to_what_is_there() -> None:
    archive = Archive(OBJECTIVES)
    with pytest.raises(ValueError, match="not in the archive"):
        archive.add(candidate(0, edges=(Edge("parent", "0.0"),)))
    archive.add(candidate(0))
    with pytest.raises(ValueError, match="already"):
        archive.add(candidate(0))


def test_an_unknown_candidate_is_named_with_the_range() -> None:
    archive = Archive(OBJECTIVES)
    with pytest.raises(NotFoundError, match="none yet"):
        archive["1.0"]
    for number in range(3):
        archive.add(candidate(number))
    with pytest.raises(NotFoundError, match=r"from 0\.0 to 2\.0") as caught:
        archive["7.0"]
    assert caught.value.name == "7.0"


def test_adding_costs_the_same_however_many_there_are() -> None:
    """Counted in lines of Python, not in time."""

    def lines(archive: Archive, numbers: range) -> int:
        count = 0

        def trace(frame: object, event: str, arg: object) -> object:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            for number in numbers:
                # Never on the frontier: what is measured is the history, not the frontier.
                archive.add(candidate(number, 0.0, 1.0, values=[0.0, 0.0], edges=(Edge("parent", "0.0"),)))
                archive.judge(Verdict(f"{number}.0", "kept", ""))
                archive.remember(Record("state", "s", {"n": number}))
                archive.snapshot()
                archive.children("0.0")
                archive.frontier()
        finally:
            sys.settrace(before)
        return count

    archive = Archive(OBJECTIVES)
    archive.add(candidate(0, 1.0, 0.0, values=[1.0, 1.0]))
    early = lines(archive, range(1, 51))
    for number in range(51, 4000):
        archive.add(candidate(number, 0.0, 1.0, values=[0.0, 0.0], edges=(Edge("parent", "0.0"),)))
        archive.remember(Record("state", "s", {"n": number}))
    assert lines(archive, range(4000, 4050)) <= 1.05 * early


def test_equal_instance_tuples_are_shared() -> None:
    archive = Archive(OBJECTIVES)
    for number in range(3):
        archive.add(candidate(number, values=[1.0, 2.0]))
    first, *others = (c.evaluations["val"].instances for c in archive)
    assert all(names is first for names in others)
