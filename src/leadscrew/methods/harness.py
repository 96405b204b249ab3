"""Meta-Harness: a proposer that sees the whole history as files, a plain outer loop that checks, scores and logs.

Source: "Meta-Harness", arXiv 2603.28052 (section 3, algorithm 1; appendix D), and its reference release.

* Plan 0 evaluates the founding programs, the seed first and then the baselines.
* Every further iteration asks the proposer for `candidates` new programs. It picks the base of each itself, from *all*
  recorded candidates: a fix that once scored badly may be exactly what is needed later.
* A candidate joins the strict Pareto frontier of score and costs, or not; one may become champion. The published rule
  promotes a higher mean. Ours asks for a paired gain beyond chance, and keeps near misses in sight.
* Tested at the end: the champion, the rest of the frontier, the best on each data set, the baselines.

The method is plain functions of the archive rather than a generator: several plans are in flight, and a resumed run
must find itself again from stored verdicts, which the frozen frame of a generator could not do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from leadscrew.core.archive import Archive
from leadscrew.core.proposal import Candidate, Edit, Judgement, Measure, Plan, Record, Results, Verdict
from leadscrew.core.trial import Evaluation, Purpose
from leadscrew.policies.admit import Admission, paired, paired_family, published
from leadscrew.policies.rank import best_of, founders, on_frontier, ranking, value_of
from leadscrew.ports import Evidence


def _at_least(low: float, high: float | None = None) -> dict[str, float]:
    return {"min": low} if high is None else {"min": low, "max": high}


@dataclass(frozen=True, slots=True)
class HarnessSettings:
    """`[harness]`. Probabilities are one-sided; `min_delta` is in units of the score.

    `correction` guards against many looks: `iteration` corrects among the candidates of one plan (Holm), `run` also
    shares `alpha` out over all iterations. `confirm_repeats` > 0 gives every near miss that many fresh repeats, beside
    the champion, in a plan of its own; each of the two looks then gets half of `alpha`.
    `constants_only` and `dataset_names` say what happens to a candidate that only tunes numbers, or names the data.
    """

    iterations: int = field(default=20, metadata=_at_least(0))
    candidates: int = field(default=3, metadata=_at_least(1, 1000))
    evidence: Literal["scores", "summary", "full"] = "full"
    extent: Literal["last", "window", "summary", "full"] = "full"
    window: int = field(default=5, metadata=_at_least(1))
    promotion: Literal["paired", "published"] = "paired"
    alpha: float = field(default=0.05, metadata=_at_least(0, 0.5))
    min_delta: float = field(default=0.0, metadata=_at_least(0))
    correction: Literal["none", "iteration", "run"] = "none"
    confirm_repeats: int = field(default=0, metadata=_at_least(0, 1000))
    constants_only: Literal["off", "flag", "reject"] = "flag"
    dataset_names: Literal["off", "flag", "reject"] = "reject"


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    # Paper, section 4: 20 iterations of two; the release promotes any higher mean and only asks for clean programs.
    "published": {"candidates": 2, "promotion": "published", "constants_only": "off", "dataset_names": "off"},
}
"""Values of `[harness]` by name of the preset."""


class Harness:
    """The method. `proposer` names the operator that every iteration asks."""

    name: ClassVar[str] = "harness"
    record_kinds: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "iteration": {
            "iteration": "int",
            "candidates": "list",
            "champion": "str",
            "promoted": "str",
            "near_misses": "list",
        },
        "near_miss": {"plan": "int", "against": "str", "gain": "float", "state": "str"},
    }

    def __init__(self, settings: HarnessSettings = HarnessSettings(), proposer: str = "genetic") -> None:
        self.settings = settings
        self.proposer = proposer
        self.evidence = Evidence(settings.evidence, settings.extent, settings.window, val_traces=True)

    # -- plan --------------------------------------------------------------------------------------

    def plan(self, archive: Archive, number: int, rng: random.Random) -> Plan | None:
        """Found, then iterate. With confirmation on, every second plan measures near misses (perhaps none)."""
        if number == 0:
            return Edit("found")
        s = self.settings
        if s.confirm_repeats and number % 2 == 0 and number <= 2 * s.iterations:
            return self._confirmation(archive)
        if self.iteration(number) > s.iterations:
            return None
        return Edit(
            self.proposer,
            count=s.candidates,
            options={"constants_only": s.constants_only, "dataset_names": s.dataset_names},
        )

    def iteration(self, number: int) -> int:
        """Return the iteration that a plan number belongs to."""
        return (number + 1) // 2 if self.settings.confirm_repeats else number

    def _confirmation(self, archive: Archive) -> Measure:
        # Looking at the last few plans only keeps the cost flat. Whatever is asked for twice while a first answer is in
        # flight is known to the evaluation cache, and judged once.
        newest = archive.plans_applied - 1
        near = [
            record.subject
            for plan in range(max(0, newest - 7), newest + 1)
            if (log := archive.record("iteration", str(plan))) is not None
            for subject in log.data["near_misses"]
            if (record := archive.record("near_miss", subject)) is not None and record.data["state"] == "open"
        ]
        champion = archive.champion
        subjects = (champion.id, *near) if near and champion is not None else ()
        return Measure(subjects, Purpose.CONFIRM, repeats=tuple(range(1, self.settings.confirm_repeats + 1)))

    # -- judge -------------------------------------------------------------------------------------

    def judge(self, archive: Archive, number: int, plan: Plan, results: Results) -> Judgement:
        """Judge all candidates of a plan together, against the archive as it was before the plan.

        `number` counts the method's own plans; candidates that a person submitted are judged by the same rules.
        """
        if isinstance(plan, Measure):
            return self._judge_confirmation(archive, results)
        ranked = [c for c in results.candidates if ranking(c) is not None]
        champion = archive.champion
        admitted = self._first(archive, ranked) if champion is None else self._against(archive, champion, ranked)
        promoted = best_of(archive, [c for c in ranked if admitted[c.id].decision == "promoted"])
        verdicts = tuple(
            self._verdict(archive, number, c, ranked, admitted.get(c.id), promoted) for c in results.candidates
        )
        near = [v.candidate for v in verdicts if v.klass == "near_miss"]
        now = promoted or champion
        recorded = results.candidates[0].plan if results.candidates else number
        log = Record(
            "iteration",
            str(recorded),
            {
                "iteration": self.iteration(number),
                "candidates": [c.id for c in results.candidates],
                "champion": now.id if now else "",
                "promoted": promoted.id if promoted else "",
                "near_misses": near,
            },
        )
        against = champion.id if champion else ""
        misses = (
            Record("near_miss", c, {"plan": recorded, "against": against, "gain": admitted[c].gain, "state": "open"})
            for c in near
        )
        return Judgement(verdicts, (log, *misses))

    def _first(self, archive: Archive, ranked: Sequence[Candidate]) -> dict[str, Admission]:
        # Nobody to beat yet: the best of the first programs that could be evaluated leads.
        leader = best_of(archive, ranked)
        lead = Admission("promoted", 0.0, None, "first", "the best of the first programs that could be evaluated")
        rest = Admission("rejected", 0.0, None, "first", f"not better than {leader.id if leader else ''}")
        return {c.id: lead if c is leader else rest for c in ranked}

    def _against(self, archive: Archive, champion: Candidate, ranked: Sequence[Candidate]) -> dict[str, Admission]:
        s, primary = self.settings, archive.objectives[0]
        gains = [primary.gain(value_of(c), value_of(champion)) for c in ranked]
        pairs = [self._differences(archive, c.evaluations["val"], champion.evaluations["val"]) for c in ranked]
        if s.promotion == "published" or not all(pairs):
            found = [published(gain, min_delta=s.min_delta) for gain in gains]
        elif s.correction == "none":
            found = [
                paired(d, alpha=self._level, min_delta=s.min_delta, gain=gain)
                for d, gain in zip(pairs, gains, strict=True)
            ]
        else:
            found = paired_family(pairs, alpha=self._level, min_delta=s.min_delta, gains=gains)
        return {c.id: admission for c, admission in zip(ranked, found, strict=True)}

    @property
    def _level(self) -> float:
        """The level of one look: shared over the two looks of a confirmed near miss, and over iterations if asked."""
        s = self.settings
        looks = (2 if s.confirm_repeats else 1) * (max(1, s.iterations) if s.correction == "run" else 1)
        return s.alpha / looks

    def _differences(self, archive: Archive, new: Evaluation, old: Evaluation) -> list[float]:
        before = old.by_instance()
        gain = archive.objectives[0].gain
        return [gain(v, before[i]) for i, v in new.by_instance().items() if i in before]

    def _verdict(
        self,
        archive: Archive,
        number: int,
        candidate: Candidate,
        ranked: Sequence[Candidate],
        admission: Admission | None,
        promoted: Candidate | None,
    ) -> Verdict:
        if admission is None:
            return _unranked(candidate, self.iteration(number))
        facts = self._facts(archive, number, candidate, admission)
        front = on_frontier(archive, candidate, ranked)
        facts["frontier"] = front
        if candidate is promoted:
            return Verdict(candidate.id, "promoted", admission.reason, champion=True, facts=facts)
        if admission.decision == "near_miss":
            return Verdict(candidate.id, "near_miss", admission.reason, facts=facts)
        reason = admission.reason
        if admission.decision == "promoted" and promoted is not None:
            reason = f"{reason}; but {promoted.id} of the same plan is better still"
        where = f"{'none' if front else 'another'} is at least as good in every objective"
        return Verdict(candidate.id, "frontier" if front else "dominated", f"{reason}; {where}", facts=facts)

    def _facts(self, archive: Archive, number: int, candidate: Candidate, admission: Admission) -> dict[str, Any]:
        """The numbers behind a verdict. Deltas are positive for an improvement, None with nothing to compare."""
        gain, value, best = archive.objectives[0].gain, value_of(candidate), archive.best
        base = next(iter(candidate.sources("base") or candidate.sources("parent")), None)
        parent = best_of(archive, [archive[base]]) if base is not None else None
        baseline = best_of(archive, founders(archive))
        return {
            "iteration": self.iteration(number),
            "value": value,
            "best_before": best.value if best else None,
            "base": base,
            "baseline": baseline.id if baseline else None,
            "delta": gain(value, best.value) if best else None,
            "delta_parent": gain(value, value_of(parent)) if parent else None,
            "delta_baseline": gain(value, value_of(baseline)) if baseline else None,
            "against": archive.champion.id if archive.champion else None,
            "gain": admission.gain,
            "p": admission.p,
            "test": admission.test,
            "flags": list(candidate.claim.extra.get("flags", ())),
        }

    def _judge_confirmation(self, archive: Archive, results: Results) -> Judgement:
        """Promote a near miss if its *fresh* repeats alone beat the champion's on the same instances and repeats."""
        champion, gain = archive.champion, archive.objectives[0].gain
        held = results.measured.get(champion.id) if champion else None
        open_misses = [
            (s, e, r)
            for s, e in results.measured.items()
            if (r := archive.record("near_miss", s)) and r.data["state"] == "open" and s != (champion and champion.id)
        ]
        outcomes: dict[str, Admission] = {}
        for subject, fresh, _ in open_misses:
            if held is None or held.value is None or fresh.value is None:
                text = "not decided: the champion changed meanwhile, or repeats are missing"
                outcomes[subject] = Admission("rejected", 0.0, None, "none", text)
                continue
            differences = self._differences(archive, fresh, held)
            lead = gain(fresh.value, held.value)
            outcomes[subject] = paired(differences, alpha=self._level, min_delta=self.settings.min_delta, gain=lead)
        winners = [s for s, a in outcomes.items() if a.decision == "promoted"]
        winner = max(winners, key=lambda s: outcomes[s].gain, default=None)
        verdicts, records = [], []
        for subject, _, record in open_misses:
            a, before = outcomes[subject], archive.verdict(subject)
            state = "undecided" if a.test == "none" else "confirmed" if a.decision == "promoted" else "refuted"
            records.append(Record("near_miss", subject, {**record.data, "gain": a.gain, "state": state}))
            facts = {**(before.facts if before else {}), "confirm_gain": a.gain, "confirm_p": a.p}
            klass = "promoted" if subject == winner else "near_miss"
            verdicts.append(
                Verdict(subject, klass, f"on fresh repeats: {a.reason}", champion=subject == winner, facts=facts)
            )
        return Judgement(tuple(verdicts), tuple(records))

    # -- the end -----------------------------------------------------------------------------------

    def finalists(self, archive: Archive) -> Sequence[str]:
        """Return the champion, then the rest of the frontier, the best on each data set, and the baselines."""
        champion = archive.champion
        order = [champion.id] if champion else []
        order += [c.id for c in archive.frontier()]
        order += [best.candidate for best in archive.dataset_bests().values()]
        order += [c.id for c in founders(archive) if ranking(c) is not None]
        return tuple(dict.fromkeys(order))


def _unranked(candidate: Candidate, iteration: int) -> Verdict:
    facts = {"iteration": iteration, "value": None, "delta": None, "delta_parent": None, "delta_baseline": None}
    val = candidate.evaluations.get("val")
    if candidate.status == "held":
        return Verdict(candidate.id, "held", candidate.reason or "waits for approval", facts=facts)
    if candidate.status == "failed" or val is None:
        reason = candidate.reason or "no evaluation came back"
        return Verdict(candidate.id, "failed", f"{candidate.outcome.value}: {reason}", facts=facts)
    if not val.complete:
        reason = "the evaluation is incomplete through no fault of the candidate; it cannot be ranked"
        return Verdict(candidate.id, "held", reason, facts=facts)
    reason = f"stopped at rung {val.rung} of the ladder with {val.value:.4g} on {len(val.instances)} instances"
    return Verdict(candidate.id, "dominated", reason, facts={**facts, "rung": val.rung, "rung_value": val.value})
