"""The harness method: what it asks for, how it judges, whom it sends to the test."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.config.checks import build_settings
from leadscrew.core.archive import Archive
from leadscrew.core.proposal import Candidate, Edge, Edit, Judgement, Measure, Results
from leadscrew.core.task import Aggregate, Objective
from leadscrew.core.trial import Evaluation, Outcome, Purpose
from leadscrew.errors import ConfigError
from leadscrew.methods.harness import PRESETS, Harness, HarnessSettings
from leadscrew.operators.scripted import Scripted, Step
from support.learning import Labels, Workshop, rule

RNG = random.Random(0)
ACCURACY = Objective("accuracy", ceiling=1.0)


def candidate(
    id: str, values: Sequence[float], base: str = "", costs: dict[str, float] | None = None, **more: Any
) -> Candidate:
    plan, index = map(int, id.split("."))
    mean = sum(values) / len(values)
    aggregate = Aggregate(mean, costs or {}, {"main": mean})
    val = Evaluation(
        f"p{id}", "val", 0, len(values), tuple(f"v{i}" for i in range(len(values))), tuple(values), aggregate
    )
    edges = (Edge("base", base),) if base else ()
    fields: dict[str, Any] = {"status": "evaluated", "outcome": Outcome.OK, "evaluations": {"val": val}, "edges": edges}
    return Candidate(id, plan, index, f"p{id}", "", "x", **{**fields, **more})


def play(
    method: Harness, plans: Sequence[Sequence[Candidate]], objectives: Sequence[Objective] = (ACCURACY,)
) -> Archive:
    archive = Archive(objectives)
    for number, candidates in enumerate(plans):
        step(method, archive, number, candidates)
    return archive


def step(method: Harness, archive: Archive, number: int, candidates: Sequence[Candidate]) -> Judgement:
    judged = method.judge(archive.snapshot(), number, Edit("x"), Results(candidates=tuple(candidates)))
    apply(archive, judged, candidates)
    return judged


def apply(archive: Archive, judged: Judgement, candidates: Sequence[Candidate] = ()) -> None:
    for c in candidates:
        archive.add(c)
    for verdict in judged.verdicts:
        archive.judge(verdict)
    for record in judged.records:
        archive.remember(record)
    archive.plan_applied()


def classes(judged: Judgement) -> list[str]:
    return [v.klass for v in judged.verdicts]


def hits(n: int, of: int = 20) -> list[float]:
    return [1.0] * n + [0.0] * (of - n)


# -- what it asks for --------------------------------------------------------------------------------


def test_founding_then_iterations_then_the_end() -> None:
    method = Harness(HarnessSettings(iterations=3, candidates=2), proposer="somebody")
    archive = Archive((ACCURACY,))
    plans = [method.plan(archive, n, RNG) for n in range(5)]
    assert isinstance(plans[0], Edit)
    assert plans[0].operator == "found"
    for plan in plans[1:4]:
        assert isinstance(plan, Edit)
        assert (plan.operator, plan.count, plan.parents) == ("somebody", 2, ())
        assert plan.options == {"constants_only": "flag", "dataset_names": "reject"}
    assert plans[4] is None


def test_evidence_is_what_the_settings_say_with_val_in_sight() -> None:
    evidence = Harness(HarnessSettings(evidence="summary", extent="window", window=7)).evidence
    assert (evidence.level, evidence.extent, evidence.window, evidence.val_traces) == ("summary", "window", 7, True)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_tables(preset: str) -> None:
    settings = build_settings(HarnessSettings, PRESETS[preset], "harness")
    assert settings == HarnessSettings(**PRESETS[preset])
    assert (settings.promotion == "published") == (preset == "published")
    assert dataclasses.replace(settings, candidates=1).candidates == 1


@pytest.mark.parametrize("table", [{"alpha": 0.7}, {"candidates": 0}, {"promotion": "best"}, {"iteration": 3}])
def test_settings_out_of_range_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(table))):
        build_settings(HarnessSettings, table, "harness")


# -- how it judges -----------------------------------------------------------------------------------


def test_the_best_founder_leads_and_has_nothing_to_be_compared_with() -> None:
    archive = Archive((ACCURACY,))
    judged = step(
        Harness(), archive, 0, [candidate("0.0", hits(5)), candidate("0.1", hits(8)), candidate("0.2", hits(8))]
    )
    assert classes(judged) == ["dominated", "promoted", "dominated"]
    assert [v.champion for v in judged.verdicts] == [False, True, False]
    for v in judged.verdicts:
        assert v.facts["delta"] is v.facts["delta_parent"] is v.facts["delta_baseline"] is None


def test_deltas_are_against_the_best_before_the_base_and_the_baseline() -> None:
    method = Harness(HarnessSettings(promotion="published"))
    archive = play(
        method, [[candidate("0.0", hits(4)), candidate("0.1", hits(6))], [candidate("1.0", hits(10), "0.0")]]
    )
    judged = step(method, archive, 2, [candidate("2.0", hits(12), "0.0"), candidate("2.1", hits(9), "1.0")])
    facts = judged.verdicts[0].facts
    assert facts["best_before"] == 0.5
    assert [round(facts[k], 9) for k in ("delta", "delta_parent", "delta_baseline")] == [0.1, 0.4, 0.3]
    facts = judged.verdicts[1].facts
    assert [round(facts[k], 9) for k in ("delta", "delta_parent", "delta_baseline")] == [-0.05, -0.05, 0.15]
    assert facts["baseline"] == "0.1"


def test_every_class() -> None:
    objectives = (ACCURACY, Objective("cost", "min"))
    method = Harness()
    archive = play(method, [[candidate("0.0", hits(5), costs={"cost": 5})]], objectives)
    plan = [
        candidate("1.0", hits(12), costs={"cost": 9}),
        candidate("1.1", hits(6), costs={"cost": 8}),
        candidate("1.2", hits(4), costs={"cost": 1}),
        candidate("1.3", hits(4), costs={"cost": 7}),
        candidate("1.4", hits(0), status="failed", outcome=Outcome.CRASH, reason="boom", evaluations={}),
        candidate("1.5", hits(0), status="held", evaluations={}),
        candidate("1.6", hits(11), costs={"cost": 20}),
    ]
    judged = step(method, archive, 1, plan)
    assert classes(judged) == ["promoted", "near_miss", "frontier", "dominated", "failed", "held", "dominated"]
    assert [v.candidate for v in judged.verdicts if v.champion] == ["1.0"]
    assert "boom" in judged.verdicts[4].reason
    assert "1.0 of the same plan is better still" in judged.verdicts[6].reason
    assert all(v.reason for v in judged.verdicts)


def test_incomplete_and_stopped_evaluations_are_never_ranked() -> None:
    method = Harness(HarnessSettings(promotion="published"))
    archive = play(method, [[candidate("0.0", hits(5))]])
    good = candidate("1.0", hits(20))
    val = good.evaluations["val"]
    lost = dataclasses.replace(val, aggregate=Aggregate(None))
    early = dataclasses.replace(val, passed=False, rung=1)
    plan = [
        dataclasses.replace(good, evaluations={"val": lost}),
        dataclasses.replace(good, id="1.1", index=1, evaluations={"val": early}),
    ]
    judged = step(method, archive, 1, plan)
    assert classes(judged) == ["held", "dominated"]
    assert "no fault of the candidate" in judged.verdicts[0].reason
    assert "rung 1" in judged.verdicts[1].reason
    assert archive.champion is not None
    assert archive.champion.id == "0.0"
    assert method.finalists(archive) == ("0.0",)


def test_a_smaller_value_wins_where_smaller_is_better() -> None:
    error = Objective("error", "min", floor=1.0)
    method = Harness()
    archive = play(method, [[candidate("0.0", [0.5] * 12)]], (error,))
    judged = step(method, archive, 1, [candidate("1.0", [0.4] * 12), candidate("1.1", [0.6] * 12)])
    assert classes(judged) == ["promoted", "dominated"]
    assert judged.verdicts[0].facts["delta"] == pytest.approx(0.1)


def test_without_any_sound_founder_the_first_sound_candidate_leads() -> None:
    method = Harness()
    broken = candidate("0.0", hits(0), status="failed", outcome=Outcome.CRASH, evaluations={})
    archive = play(method, [[broken], [candidate("1.0", hits(1))]])
    assert archive.champion is not None
    assert archive.champion.id == "1.0"


def test_a_domain_of_one_instance_can_be_climbed() -> None:
    radii = Objective("radii")
    method = Harness()
    archive = play(method, [[candidate("0.0", [2.5])], [candidate("1.0", [2.6])], [candidate("2.0", [2.55])]], (radii,))
    assert archive.champions == ("0.0", "1.0")
    assert "too few" in archive.verdict("1.0").reason  # type: ignore[union-attr]


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=3), min_size=1, max_size=6),
    st.sampled_from(["paired", "published"]),
)
def test_judging_is_pure_and_complete(scores: list[list[int]], promotion: Any) -> None:
    method = Harness(HarnessSettings(promotion=promotion))
    archive = Archive((ACCURACY,))
    for number, plan in enumerate(scores):
        candidates = [candidate(f"{number}.{i}", hits(n)) for i, n in enumerate(plan)]
        view, results = archive.snapshot(), Results(candidates=tuple(candidates))
        first = method.judge(view, number, Edit("x"), results)
        assert first == method.judge(view, number, Edit("x"), results)
        assert [v.candidate for v in first.verdicts] == [c.id for c in candidates]
        assert sum(v.champion for v in first.verdicts) <= 1
        apply(archive, first, candidates)
        front = {c.id for c in archive.frontier()}
        assert all(v.facts["frontier"] == (v.candidate in front) for v in first.verdicts)
    champions = [archive[c].value or 0.0 for c in archive.champions]
    assert champions == sorted(set(champions))


def test_the_published_preset_selects_as_the_written_rule_does() -> None:
    """The rule of the reference release: the best mean so far leads, the first one of equals."""
    rng = random.Random(40)
    for _ in range(200):
        method = Harness(HarnessSettings(**PRESETS["published"]))
        plans = [
            [candidate(f"{n}.{i}", hits(rng.randint(0, 12), 12)) for i in range(rng.randint(1, 3))] for n in range(8)
        ]
        expected, best = [], None
        for plan in plans:
            top = max(plan, key=lambda c: (c.value or 0.0, -c.index))
            if best is None or (top.value or 0.0) > best:
                best = top.value or 0.0
                expected.append(top.id)
        assert play(method, plans).champions == tuple(expected)


@pytest.mark.parametrize("correction", ["none", "iteration", "run"])
def test_equal_candidates_replace_the_champion_no_more_often_than_alpha(correction: Any) -> None:
    rng = random.Random(31)
    difficulty = [rng.random() for _ in range(40)]

    def luck() -> list[float]:
        return [float(rng.random() < d) for d in difficulty]

    promoted, looks = 0, 1 if correction == "none" else 3
    settings = HarnessSettings(candidates=looks, correction=correction, iterations=1)
    for _ in range(500):
        method = Harness(settings)
        plans = [[candidate("0.0", luck())], [candidate(f"1.{i}", luck()) for i in range(looks)]]
        promoted += len(play(method, plans).champions) - 1
    assert promoted <= 500 * 0.05 + 3 * (500 * 0.05 * 0.95) ** 0.5


# -- near misses -------------------------------------------------------------------------------------


def near_miss(settings: HarnessSettings) -> tuple[Harness, Archive]:
    method = Harness(settings)
    archive = play(method, [[candidate("0.0", hits(8))], [candidate("1.0", hits(10)), candidate("1.1", hits(3))]])
    verdict = archive.verdict("1.0")
    assert verdict is not None
    assert verdict.klass == "near_miss"
    return method, archive


def measured(**values: list[float]) -> Results:
    return Results(
        measured={k[1:].replace("_", "."): candidate("9.9", v).evaluations["val"] for k, v in values.items()}
    )


CONFIRM = HarnessSettings(confirm_repeats=4, iterations=5)


def test_a_near_miss_gets_fresh_repeats_beside_the_champion() -> None:
    method, archive = near_miss(CONFIRM)
    plan = method.plan(archive, 2, RNG)
    assert plan == Measure(("0.0", "1.0"), Purpose.CONFIRM, repeats=(1, 2, 3, 4))
    assert [method.iteration(n) for n in range(1, 7)] == [1, 1, 2, 2, 3, 3]
    assert method.plan(archive, 9, RNG) is not None
    assert method.plan(archive, 11, RNG) is None


def test_without_confirmation_nothing_is_measured_again() -> None:
    method, archive = near_miss(HarnessSettings(iterations=5))
    assert isinstance(method.plan(archive, 2, RNG), Edit)


@pytest.mark.parametrize(
    ("fresh", "klass", "state"), [(hits(18), "promoted", "confirmed"), (hits(9), "near_miss", "refuted")]
)
def test_only_the_fresh_repeats_decide(fresh: list[float], klass: str, state: str) -> None:
    method, archive = near_miss(CONFIRM)
    plan = method.plan(archive, 2, RNG)
    assert plan is not None
    judged = method.judge(archive, 2, plan, measured(c0_0=hits(8), c1_0=fresh))
    assert classes(judged) == [klass]
    apply(archive, judged)
    record = archive.record("near_miss", "1.0")
    assert record is not None
    assert record.data["state"] == state
    assert archive.champion is not None
    assert archive.champion.id == ("1.0" if klass == "promoted" else "0.0")
    again = method.plan(archive, 4, RNG)
    assert isinstance(again, Measure)
    assert again.candidates == (), "each near miss is measured once"
    assert method.judge(archive, 4, again, Results()) == Judgement()


def test_an_answer_that_came_twice_is_judged_once() -> None:
    method, archive = near_miss(CONFIRM)
    plan = method.plan(archive, 2, RNG)
    assert plan is not None
    results = measured(c0_0=hits(8), c1_0=hits(18))
    apply(archive, method.judge(archive, 2, plan, results))
    assert method.judge(archive, 4, plan, results) == Judgement()


def test_a_champion_that_changed_meanwhile_leaves_it_undecided() -> None:
    method, archive = near_miss(CONFIRM)
    plan = method.plan(archive, 2, RNG)
    assert plan is not None
    step(method, archive, 3, [candidate("2.0", hits(20))])
    judged = method.judge(archive, 4, plan, measured(c0_0=hits(8), c1_0=hits(18)))
    assert classes(judged) == ["near_miss"]
    assert "champion changed" in judged.verdicts[0].reason
    assert judged.records[0].data["state"] == "undecided"


def test_two_looks_together_stay_at_alpha() -> None:
    rng = random.Random(32)
    difficulty = [rng.random() for _ in range(40)]
    promoted = 0
    for _ in range(500):
        method = Harness(HarnessSettings(confirm_repeats=1, iterations=1))

        def luck() -> list[float]:
            return [float(rng.random() < d) for d in difficulty]

        archive = play(method, [[candidate("0.0", luck())], [candidate("1.0", luck())]])
        plan = method.plan(archive, 2, RNG)
        if isinstance(plan, Measure) and plan.candidates:
            apply(archive, method.judge(archive, 2, plan, measured(c0_0=luck(), c1_0=luck())))
        promoted += len(archive.champions) - 1
    assert promoted <= 500 * 0.05 + 3 * (500 * 0.05 * 0.95) ** 0.5


# -- the end -----------------------------------------------------------------------------------------


def test_finalists_are_champion_frontier_bests_and_baselines_once_each() -> None:
    objectives = (ACCURACY, Objective("cost", "min"))
    method = Harness(HarnessSettings(promotion="published"))
    special = candidate("2.0", hits(3), costs={"cost": 50})
    val = special.evaluations["val"]
    aggregate = Aggregate(0.15, {"cost": 50}, {"main": 0.0, "other": 1.0})
    special = dataclasses.replace(special, evaluations={"val": dataclasses.replace(val, aggregate=aggregate)})
    archive = play(
        method,
        [
            [candidate("0.0", hits(2), costs={"cost": 9}), candidate("0.1", hits(0), status="failed", evaluations={})],
            [candidate("1.0", hits(9), costs={"cost": 8}), candidate("1.1", hits(5), costs={"cost": 1})],
            [special],
        ],
        objectives,
    )
    assert method.finalists(archive) == ("1.0", "1.1", "2.0", "0.0")
    assert method.finalists(Archive(objectives)) == ()


# -- a whole run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_whole_run_with_confirmation_over_the_real_store(tmp_path: Path, in_flight: int) -> None:
    script = {n: [Step(rule(f"first {k}"), base="0.0", name=f"n{k}")] for k, n in enumerate((1, 3, 5, 7), 2)}
    settings = HarnessSettings(iterations=4, candidates=1, confirm_repeats=2)
    shop = Workshop(tmp_path, Scripted(script), settings=settings, in_flight=in_flight, domain=Labels(val=9))
    assert shop.run() == "done"
    archive = shop.engine.archive
    kinds = [archive.verdict(c.id).klass for c in archive]
    assert archive.plans_applied == 9
    assert "near_miss" in kinds
    states = {r.subject: r.data["state"] for r in archive.records("near_miss")}
    assert states
    assert in_flight > 1 or "open" not in states.values()
    assert archive.champion is not None
    assert archive.best is not None
    iterations = [r.data["iteration"] for r in archive.records("iteration")]
    assert iterations == [0, 1, 2, 3, 4]
    assert all(a < b for a, b in itertools.pairwise(iterations))


def test_a_proposer_that_rewrites_the_history_changes_nothing(tmp_path: Path) -> None:
    def forge(plan: Edit, bench: Any) -> Any:
        root = tmp_path / "history"
        for path in [*root.rglob("val.json"), root / "frontier_val.json", root / "evolution_summary.jsonl"]:
            path.write_text('{"value": 1.0, "_champion": "me"}\n')
        return []

    honest = Scripted([[Step(rule("first 2"), base="0.0")], [Step(rule("letter"), base="1.0")]])
    shop = Workshop(tmp_path / "honest", honest, settings=HarnessSettings(iterations=2))
    shop.run()
    lines: Any = [[forge, Step(rule("first 2"), base="0.0")], [Step(rule("letter"), base="1.0")]]
    forged = Workshop(tmp_path, Scripted(lines), settings=HarnessSettings(iterations=2))
    forged.run()
    for one, other in zip(shop.engine.archive, forged.engine.archive, strict=True):
        assert (one.id, one.value) == (other.id, other.value)
    assert shop.engine.archive.champions == forged.engine.archive.champions
    store = forged.store.open(tmp_path, readonly=True)
    forged.history._store = store
    forged.history.rebuild(forged.engine.archive)
    store.close()
    one, other = ((root / "history" / "frontier_val.json").read_bytes() for root in (tmp_path, tmp_path / "honest"))
    assert one == other
    assert '"me"' not in (tmp_path / "history" / "evolution_summary.jsonl").read_text()
