"""What can be asked about a run: each question one function that returns plain values for printing or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leadscrew.core.program import diff as tree_diff
from leadscrew.core.program import unified
from leadscrew.core.proposal import Candidate, Edit
from leadscrew.core.trial import Evaluation, Trial
from leadscrew.errors import NotFoundError
from leadscrew.report.calls import summary
from leadscrew.report.numbers import spread
from leadscrew.report.reading import Reading, held, is_running, reading
from leadscrew.roles import caps_in_force

LOG_SHOWN = 4000


def status(run: str | Path) -> dict[str, Any]:
    """How a run stands: state, progress, champion with interval, baselines, spend against caps, what it waits for."""
    with reading(run) as r:
        archive, config = r.archive, r.config
        plans = list(r.store.plans())
        judged = {number for number, _, _ in r.store.judgements()}
        certificate = r.folder / "certificate.json"
        running = is_running(r.folder)
        state = "running" if running else "closed" if certificate.is_file() else "resting"
        kinds: dict[str, int] = {}
        for candidate in archive:
            kind = candidate.status if candidate.status != "failed" else f"failed: {candidate.outcome}"
            kinds[kind] = kinds.get(kind, 0) + 1
        in_force = caps_in_force(config, (data for _, _, data in r.store.events("caps")))
        sittings = [data.get("seconds", 0.0) for _, _, data in r.store.events("sitting")]
        infra = [data for _, _, data in r.store.events("infra")]
        return {
            "folder": str(r.folder),
            "state": state,
            "method": config.run.method,
            "domain": config.domain.name,
            "proposer": config.proposer.name,
            "seed": config.run.seed,
            "plans": {"decided": len(plans), "judged": len(judged)},
            "candidates": len(archive),
            "kinds": kinds,
            "champion": _headline(archive.champion),
            "baseline": _headline(_best_founder(r)),
            "frontier": [c.id for c in archive.frontier()],
            "held": held(r),
            "benches": [str(b) for b in _open_benches(r, {p.number for p in plans} - judged)],
            "spend": r.store.spend().to_json(),
            "models": summary(r),
            "seconds": max(sittings, default=0.0),
            "caps": {k: v for k, v in dataclasses.asdict(in_force.run).items() if v is not None},
            "notes": [str(data.get("text", "")) for _, _, data in r.store.events("note")],
            "infra": str(infra[-1].get("message", "")) if infra else "",
            "certificate": str(certificate) if certificate.is_file() else None,
        }


def show(run: str | Path, candidate: str = "") -> dict[str, Any]:
    """One candidate: scores per split, failures, claim, links, verdict, files and the end of its log."""
    with reading(run) as r:
        c = r.candidate(candidate)
        files = {p: len(f.data) for p, f in r.store.program(c.program).items()} if c.program else {}
        verdict = r.archive.verdict(c.id)
        return {
            **_row(r, c),
            "program": c.program,
            "reason": c.reason,
            "evaluations": {split: _evaluation(e) for split, e in c.evaluations.items()},
            "claim": {k: v for k, v in dataclasses.asdict(c.claim).items() if v},
            "edges": [{"kind": e.kind, "source": e.source, **_plain(e.detail)} for e in c.edges],
            "children": r.archive.children(c.id),
            "verdict": dataclasses.asdict(verdict) if verdict else None,
            "files": files,
            "log": c.log[-LOG_SHOWN:],
        }


def file(run: str | Path, candidate: str, path: str) -> str:
    """The text of one file of a candidate's program."""
    with reading(run) as r:
        return r.store.program(_with_program(r.candidate(candidate)).program).text(path)


def tree(run: str | Path) -> list[dict[str, Any]]:
    """The lineage, each candidate after the one it was made from: `depth` says how far from a founder."""
    with reading(run) as r:
        below: dict[str, list[Candidate]] = {}
        for c in r.archive:
            below.setdefault(_origin(c), []).append(c)
        rows: list[dict[str, Any]] = []
        stack = [(c, 0) for c in reversed(below.get("", []))]
        while stack:
            c, depth = stack.pop()
            rows.append({"depth": depth, **_row(r, c)})
            stack.extend((child, depth + 1) for child in reversed(below.get(c.id, [])))
        return rows


def diff(run: str | Path, old: str, new: str = "") -> str:
    """What changed between two candidates, as a unified diff in git's form."""
    with reading(run) as r:
        a, b = _with_program(r.candidate(old)), _with_program(r.candidate(new))
        return unified(r.store.program(a.program), r.store.program(b.program))


def trials(run: str | Path, candidate: str) -> list[dict[str, Any]]:
    """Every stored trial of a candidate, by split and instance."""
    with reading(run) as r:
        return [_trial(t) for t in _trials(r, r.candidate(candidate))]


def trace(run: str | Path, candidate: str, instance: str) -> dict[str, Any]:
    """A candidate's trials on one instance with what was kept of them: answer, output, logged calls."""
    with reading(run) as r:
        c = r.candidate(candidate)
        found = [t for t in _trials(r, c) if t.instance == instance]
        if not found:
            raise NotFoundError(
                f"candidate {c.id} has no trial on {instance!r}. `leadscrew trace RUN {c.id}` lists those it has.",
                name=instance,
            )
        shown = []
        for t in found:
            kept = r.store.trace(t.trace) if t.trace else None
            shown.append({**_trial(t), "trace": _plain(dataclasses.asdict(kept)) if kept else None})
        return {"candidate": c.id, "instance": instance, "trials": shown}


def why(run: str | Path, candidate: str = "") -> dict[str, Any]:
    """How a candidate came about (plan, base, donors, claim, change) and why it was kept or not, with the numbers."""
    with reading(run) as r:
        c = r.candidate(candidate)
        stored = next(p for p in r.store.plans() if p.number == c.plan)
        verdict = r.archive.verdict(c.id)
        base = r.archive[_origin(c)] if _origin(c) else None
        change: dict[str, Any] = {}
        if base is not None and base.program and c.program:
            before, after = r.store.program(base.program), r.store.program(c.program)
            lines = [line for line in unified(before, after, context=0).splitlines() if line[:3] not in ("+++", "---")]
            change = {
                "files": list(tree_diff(before, after).paths),
                "added": sum(line.startswith("+") for line in lines),
                "removed": sum(line.startswith("-") for line in lines),
            }
        plan = stored.plan
        return {
            **_row(r, c),
            "plan": {
                "number": stored.number,
                "operator": plan.operator if isinstance(plan, Edit) else type(plan).__name__.lower(),
                "decided_after": stored.after,
                "origin": stored.origin,
                "asked_from": list(plan.parents) if isinstance(plan, Edit) else [],
            },
            "base": _row(r, base) if base else None,
            "links": [{"kind": e.kind, **_row(r, r.archive[e.source]), **_plain(e.detail)} for e in c.edges],
            "claim": {k: v for k, v in dataclasses.asdict(c.claim).items() if v},
            "change": change,
            "evaluations": {split: _evaluation(e) for split, e in c.evaluations.items()},
            "gain_over_base": _gain(r, c, base),
            "outcome": str(c.outcome),
            "failure": c.reason,
            "verdict": {"class": verdict.klass, "reason": verdict.reason, "facts": _plain(verdict.facts)}
            if verdict
            else None,
            "champion": c.id in r.archive.champions,
            "still_champion": r.archive.champion is not None and r.archive.champion.id == c.id,
            "on_frontier": c.id in {m.id for m in r.archive.frontier()},
            "ancestry": [_row(r, a) for a in _ancestry(r, c)],
        }


def frontier(run: str | Path) -> dict[str, Any]:
    """The strict Pareto set over all objectives, and the best candidate of each data set."""
    with reading(run) as r:
        return {
            "objectives": [{"name": o.name, "direction": o.direction} for o in r.archive.objectives],
            "members": [{**_row(r, c), "costs": _costs(c)} for c in r.archive.frontier()],
            "dataset_bests": {
                k: {"candidate": b.candidate, "value": b.value} for k, b in r.archive.dataset_bests().items()
            },
        }


# -- details -------------------------------------------------------------------------------------


def _row(r: Reading, c: Candidate) -> dict[str, Any]:
    verdict = r.archive.verdict(c.id)
    return {
        "id": c.id,
        "name": c.name,
        "operator": c.operator,
        "status": c.status,
        "outcome": str(c.outcome),
        "value": c.value,
        "class": verdict.klass if verdict else None,
        "is_champion": r.archive.champion is not None and r.archive.champion.id == c.id,
    }


def _headline(c: Candidate | None) -> dict[str, Any] | None:
    if c is None:
        return None
    val = c.evaluations.get("val")
    return {"id": c.id, "name": c.name, **(_evaluation(val) if val else {"value": None})}


def _evaluation(e: Evaluation) -> dict[str, Any]:
    bounds = spread(e)
    return {
        "value": e.value,
        "low": bounds[0] if bounds else None,
        "high": bounds[1] if bounds else None,
        "instances": len(e.instances),
        "planned": e.planned,
        "rung": e.rung,
        "full": e.passed,
        "failures": dict(e.failures),
        "per_dataset": dict(e.aggregate.per_dataset),
        "costs": dict(e.aggregate.costs),
    }


def _trials(r: Reading, c: Candidate) -> list[Trial]:
    programs = {e.program for e in c.evaluations.values()} or ({c.program} if c.program else set())
    found = [t for p in sorted(programs) for t in r.store.trials(p)]
    return sorted(found, key=lambda t: (t.split, t.dataset, t.instance, t.repeat, t.purpose))


def _trial(t: Trial) -> dict[str, Any]:
    return {
        "split": t.split,
        "dataset": t.dataset,
        "instance": t.instance,
        "repeat": t.repeat,
        "purpose": str(t.purpose),
        "outcome": str(t.outcome),
        "score": t.score,
        "correct": t.correct,
        "costs": dict(t.costs),
        "message": t.message,
        "detail": _plain(t.detail),
        "spend": t.spend.to_json(),
    }


def _best_founder(r: Reading) -> Candidate | None:
    """The best of the programs that were there before the search: the seed and the baselines."""
    objective = r.archive.objectives[0]
    best: Candidate | None = None
    for c in r.archive:
        if c.plan != 0:
            break
        if c.value is not None and (best is None or best.value is None or objective.better(c.value, best.value)):
            best = c
    return best


def _origin(c: Candidate) -> str:
    return next(iter(c.sources("base", "parent")), "")


def _ancestry(r: Reading, c: Candidate) -> list[Candidate]:
    out = []
    while source := _origin(c):
        c = r.archive[source]
        out.append(c)
    return out


def _gain(r: Reading, c: Candidate, base: Candidate | None) -> float | None:
    if base is None or c.value is None or base.value is None:
        return None
    return r.archive.objectives[0].gain(c.value, base.value)


def _costs(c: Candidate) -> dict[str, float]:
    val = c.evaluations.get("val")
    return dict(val.aggregate.costs) if val else {}


def _with_program(c: Candidate) -> Candidate:
    if not c.program:
        raise NotFoundError(f"candidate {c.id} has no program: {c.reason or 'its proposal failed'}.", name=c.id)
    return c


def _open_benches(r: Reading, waiting: set[int]) -> list[Path]:
    return [folder for n in sorted(waiting) if (folder := r.folder / "benches" / str(n)).is_dir()]


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dict(value), default=str))
    return plain
