"""What the history says: the rows and files of the projection, built from records. Pure but for reading the store.

Field names follow the published files (Meta-Harness release: `evolution_summary.jsonl`, `frontier_val.json`,
`log.jsonl`); further fields are ours. Texts of programs, inputs and proposers appear only as JSON strings: quoted, as
data.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leadscrew.core.archive import Archive
from leadscrew.core.proposal import Candidate, Verdict
from leadscrew.core.task import Instance, Objective
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trial
from leadscrew.ports import Store

PREVIEW = 200
MAX_FIELD = 200_000
"""Characters of one input, answer, prompt or response; what is longer is cut, and the row says so."""


def system_name(candidate: Candidate) -> str:
    """Return the unique name of a candidate in the history: its id and the proposer's label, fit for a folder.

    Two candidates of the same label have different names, because the id is part of it.
    """
    label = re.sub(r"[^A-Za-z0-9_.]+", "-", candidate.name).strip("-.")[:60]
    return f"{candidate.id}-{label}" if label else candidate.id


class Scale:
    """How values are shown: in percent with one decimal where the objective runs from 0 to 1, else as they are."""

    def __init__(self, objective: Objective) -> None:
        self.percent = objective.floor == 0.0 and objective.ceiling == 1.0
        self.unit = "percent" if self.percent else (objective.unit or objective.name)

    def __call__(self, value: float | None) -> float | None:
        """Return the shown form of a value or difference."""
        if value is None:
            return None
        return round(100 * value, 1) + 0.0 if self.percent else value


def summary_row(candidate: Candidate, verdict: Verdict | None, scale: Scale) -> dict[str, Any]:
    """Return a candidate's row of `evolution_summary.jsonl`. Deltas are positive for an improvement, null without a
    value to compare with; `delta` is against the best *before* the iteration."""
    facts: Mapping[str, Any] = verdict.facts if verdict else {}
    val = candidate.evaluations.get("val")
    ranked = val if candidate.status == "evaluated" and val is not None and val.complete and val.passed else None
    value = scale(ranked.value) if ranked else None
    delta = scale(facts.get("delta"))
    row: dict[str, Any] = {
        "iteration": facts.get("iteration", candidate.plan),
        "system": system_name(candidate),
        "avg_val": value,
        "axis": _text(candidate.claim.extra.get("axis")),
        "hypothesis": candidate.claim.hypothesis,
        "delta": delta,
        "outcome": _outcome(candidate, val, value, delta, scale),
    }
    if candidate.claim.tags:
        row["components"] = list(candidate.claim.tags)
    row |= {
        "id": candidate.id,
        "base": facts.get("base") or next(iter(candidate.sources("base", "parent")), None),
        "delta_parent": scale(facts.get("delta_parent")),
        "delta_baseline": scale(facts.get("delta_baseline")),
        "verdict": verdict.klass if verdict else candidate.status,
        "reason": (verdict.reason if verdict else candidate.reason)[:2000],
        "unit": scale.unit,
    }
    if val is not None:
        row["per_dataset"] = {name: scale(number) for name, number in val.aggregate.per_dataset.items()}
        row["costs"] = dict(val.aggregate.costs)
    if flags := candidate.claim.extra.get("flags"):
        row["flags"] = flags
    return row


def _outcome(
    candidate: Candidate, val: Evaluation | None, value: float | None, delta: float | None, scale: Scale
) -> str:
    if candidate.status == "held":
        return "held"
    if candidate.status == "failed" or val is None or not val.complete:
        return "failed"
    if value is None:
        return f"stopped at rung {val.rung}"
    sign = "%" if scale.percent else ""
    return f"{value:.6g}{sign}" + ("" if delta is None else f" ({delta:+.3g})")


def frontier(archive: Archive, scale: Scale) -> dict[str, Any]:
    """Return `frontier_val.json`: the best system of each data set and the strict Pareto set, best first."""
    out: dict[str, Any] = {}
    for dataset, best in archive.dataset_bests().items():
        candidate = archive[best.candidate]
        out[dataset] = {
            "best_system": system_name(candidate),
            "accuracy": scale(best.value),
            "ctx_len": _context(candidate),
        }
    out["_pareto"] = [
        {
            "system": system_name(c),
            "val_accuracy": scale(c.value),
            "ctx_len": _context(c),
            "costs": dict(c.evaluations["val"].aggregate.costs),
        }
        for c in archive.frontier()
    ]
    champion = archive.champion
    out["_champion"] = {"system": system_name(champion), "val_accuracy": scale(champion.value)} if champion else None
    out["_unit"] = scale.unit
    return out


def _context(candidate: Candidate) -> float | None:
    """The published cost column: characters of context, counted over all calls, where the domain reports them."""
    costs = candidate.evaluations["val"].aggregate.costs
    return next((costs[name] for name in ("context_chars", "ctx_len", "context_tokens") if name in costs), None)


def numbers(candidate: Candidate, scale: Scale, *, instances: bool) -> dict[str, Any]:
    """Return `val.json`: what an evaluation came to; `instances` adds the value of each val instance."""
    out: dict[str, Any] = {"system": system_name(candidate), "id": candidate.id, "unit": scale.unit}
    for split in ("train", "val"):
        evaluation = candidate.evaluations.get(split)
        if evaluation is None:
            continue
        part: dict[str, Any] = {
            "value": evaluation.value,
            "shown": scale(evaluation.value),
            "total": evaluation.planned,
            "per_dataset": dict(evaluation.aggregate.per_dataset),
            "costs": dict(evaluation.aggregate.costs),
            "failures": dict(evaluation.failures),
            "complete": evaluation.complete,
            "full": evaluation.passed,
            "rung": evaluation.rung,
        }
        if instances and split == "val":
            part["instances"] = {i: None if v != v else v for i, v in evaluation.by_instance().items()}
        if split == "val":
            out |= part
        else:
            out["train"] = part
    return out


def proposal_file(candidate: Candidate, verdict: Verdict | None, *, log: bool) -> dict[str, Any]:
    """Return `proposal.json`: who proposed what on which base, and what was decided."""
    out: dict[str, Any] = {
        "id": candidate.id,
        "system": system_name(candidate),
        "name": candidate.name,
        "operator": candidate.operator,
        "program": candidate.program,
        "edges": [{"kind": e.kind, "source": e.source, "detail": dict(e.detail)} for e in candidate.edges],
        "claim": {
            "hypothesis": candidate.claim.hypothesis,
            "components": list(candidate.claim.tags),
            "expected": candidate.claim.expected,
            **{k: v for k, v in candidate.claim.extra.items() if k not in ("hypothesis", "components", "expected")},
        },
        "status": candidate.status,
        "outcome": candidate.outcome.value,
        "reason": candidate.reason,
        "verdict": verdict.klass if verdict else None,
        "verdict_reason": verdict.reason if verdict else None,
    }
    if log:
        out["log"] = candidate.log
    return out


# -- what happened on each instance ------------------------------------------------------------------


def search_trials(store: Store, candidate: Candidate, *, val: bool) -> list[Trial]:
    """Return the train trials of a candidate, and the val trials where they may be shown; test trials never."""
    evaluation = candidate.evaluations.get("val") or candidate.evaluations.get("train")
    if evaluation is None:
        return []
    shown = ("train", "val") if val else ("train",)
    purposes = (Purpose.SEARCH, Purpose.CONFIRM)
    return [t for t in store.trials(evaluation.program) if t.split in shown and t.purpose in purposes]


def log_rows(
    store: Store,
    candidate: Candidate,
    trials: Sequence[Trial],
    instances: Mapping[str, Instance],
    *,
    learner: bool,
    mode: str,
    val: bool,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `log.jsonl`: `meta`, a `step` per train item, an `eval_step` per val trial, `done`.

    A learner that got its labels in one batch predicted no train item: its rows have no prediction, and say so.
    """
    yield {"type": "meta", "system": system_name(candidate), "id": candidate.id, "mode": mode}
    order = {name: number for number, name in enumerate(instances)}
    train = {t.instance: t for t in trials if t.split == "train"}
    steps = [i for i in instances.values() if i.split == "train" and (learner or i.id in train)]
    for step, instance in enumerate(steps):
        yield {"type": "step", "step": step, **_row(store, instance, train.get(instance.id))}
    evaluated = [t for t in trials if t.split == "val"] if val else []
    evaluated.sort(key=lambda t: (order.get(t.instance, len(order)), t.repeat, t.purpose.value))
    for step, trial in enumerate(evaluated):
        row = _row(store, instances.get(trial.instance), trial)
        yield {"type": "eval_step", "step": step, **row, "repeat": trial.repeat, "purpose": trial.purpose.value}
    evaluation = candidate.evaluations.get("val")
    yield {
        "type": "done",
        "val_acc": evaluation.value if evaluation else None,
        "train_steps": len(steps),
        "val_steps": len(evaluated),
        "failures": dict(evaluation.failures) if evaluation else {},
    }


def _row(store: Store, instance: Instance | None, trial: Trial | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "instance": instance.id if instance else trial.instance if trial else "",
        "dataset": instance.dataset if instance else trial.dataset if trial else "",
        "input": _cut(instance.input if instance else None),
        "input_preview": plain(instance.input if instance else "")[:PREVIEW],
        "pred": None,
        "tgt": _cut(instance.expected if instance else None),
        "ok": None,
        "prompt_len": 0,
        "prompt_hash": None,
    }
    if trial is None:
        return row | {"outcome": "not predicted: its label was part of one batch"}
    trace = store.trace(trial.trace) if trial.trace else None
    answer = trial.detail.get("prediction", trace.answer if trace else None)
    row |= {"pred": _cut(answer), "ok": _right(trial), "score": trial.score, "outcome": trial.outcome.value}
    if trial.message:
        row["message"] = trial.message
    if trial.costs:
        row["costs"] = dict(trial.costs)
    if trace is None:
        return row
    calls = [{k: _cut(v) for k, v in call.items()} for call in trace.calls]
    if calls:
        # The published columns hold the last call; every call is listed, so none goes unseen or uncounted.
        prompt = plain(trace.calls[-1].get("prompt", ""))
        row |= {
            "prompt_len": len(prompt),
            "prompt_hash": hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:8],
            "prompt": _cut(prompt),
            "response": calls[-1].get("response"),
            "calls": calls,
            "prompt_len_all": sum(len(plain(call.get("prompt", ""))) for call in trace.calls),
        }
    for name in ("stdout", "stderr"):
        if text := getattr(trace, name):
            row[name] = text
    if trace.files:
        row["files"] = {path: _cut(text) for path, text in trace.files.items()}
    return row


def stderr_text(store: Store, candidate: Candidate, trials: Sequence[Trial], *, most: int = 20) -> str:
    """Return `stderr.txt`: why the candidate failed, what its proposer logged, and the first errors of its trials.

    Every quoted line begins with `| `, so that no output of a program can pass for a line of ours.
    """
    parts = [f"== check ==\n{_quoted(candidate.reason)}"] if candidate.reason else []
    if candidate.log:
        parts.append(f"== proposer's log ==\n{_quoted(candidate.log)}")
    for trial in trials:
        if len(parts) > most:
            break
        text = store.trace(trial.trace).stderr if trial.trace else ""
        if text or trial.outcome is not Outcome.OK:
            head = f"== {trial.split} {trial.instance}: {trial.outcome.value} =="
            parts.append(f"{head}\n{_quoted(trial.message)}\n{_quoted(text)}".rstrip())
    return "\n\n".join(parts) + "\n" if parts else ""


def paragraph(candidate: Candidate, trials: Sequence[Trial], instances: Mapping[str, Instance], scale: Scale) -> str:
    """Return `summary.md`: one paragraph about the evaluation, written by rule and not by a model."""
    if not trials:
        reason = json.dumps(candidate.reason[:500], ensure_ascii=False)
        return f"{system_name(candidate)} was not evaluated: {reason}.\n"
    said: list[str] = []
    for split in ("train", "val"):
        part = [t for t in trials if t.split == split]
        if not part:
            continue
        right, judged = sum(_right(t) is True for t in part), sum(_right(t) is not None for t in part)
        scores = [t.score for t in part if t.score is not None]
        share = f"{right} of {judged} right" if judged else f"mean score {sum(scores) / max(1, len(scores)):.4g}"
        failed = Counter(t.outcome.value for t in part if t.outcome is not Outcome.OK)
        text = f"On {split}: {share} in {len(part)} trials"
        if failed:
            text += f", {sum(failed.values())} failed ({', '.join(f'{n} {k}' for k, n in failed.most_common())})"
        mixed = Counter(
            (plain(instances[t.instance].expected)[:60], plain(t.detail["prediction"])[:60])
            for t in part
            if _right(t) is False and "prediction" in t.detail and t.instance in instances
        )
        pairs = [
            f"{json.dumps(a, ensure_ascii=False)} taken for {json.dumps(b, ensure_ascii=False)} ({n})"
            for (a, b), n in mixed.most_common(5)
        ]
        if pairs:
            text += f"; most often {', '.join(pairs)}"
        messages = Counter(t.message[:120] for t in part if t.message)
        if messages:
            first, times = messages.most_common(1)[0]
            text += f"; the commonest message is {json.dumps(first, ensure_ascii=False)} ({times})"
        said.append(text + ".")
    return f"{system_name(candidate)}: {' '.join(said)}\n"


def _quoted(text: str) -> str:
    return "\n".join(f"| {line}" for line in text.splitlines())


def _right(trial: Trial) -> bool | None:
    return False if trial.outcome is not Outcome.OK else trial.correct


def plain(value: Any) -> str:
    """Return a value as text: strings as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _cut(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = plain(value)
    return value if len(text) <= MAX_FIELD else f"{text[:MAX_FIELD]} [cut: {len(text)} characters]"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
