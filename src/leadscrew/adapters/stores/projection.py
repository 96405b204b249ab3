"""The archive digest: what a run found, without when, where and at what cost in time it found it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from leadscrew.adapters.stores import codec
from leadscrew.adapters.stores.reader import Reader
from leadscrew.core.proposal import Candidate
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trial


def archive_digest(store: Reader) -> str:
    """Return the SHA-256 over `lines`: equal for runs that agree, whatever their workers, clocks and interruptions."""
    total = hashlib.sha256()
    for line in lines(store):
        total.update(codec.dumps(line, sort=True).encode("ascii") + b"\n")
    return total.hexdigest()


def lines(store: Reader) -> Iterator[list[Any]]:
    """Yield the canonical projection, plan by plan in order of number, one small list at a time.

    Only judged plans count, and of the trials only those that their evaluations rest on: what is still in flight may
    differ between two runs that agree. Infra trials, texts of failures, traces and spend are left out.
    """
    for stored in store.plans():
        judgement = store.judgement(stored.number)
        if judgement is None:
            continue
        yield ["plan", stored.number, codec.plan_kind(stored.plan), codec.plan_to_json(stored.plan)]
        for candidate in store.candidates_of(stored.number):
            yield _candidate(candidate)
            for evaluation in _by_split(candidate):
                named = set(evaluation.instances)
                for trial in store.trials(evaluation.program, evaluation.split, Purpose.SEARCH):
                    if trial.instance in named and trial.outcome is not Outcome.INFRA:
                        yield _trial(trial)
        for name, data in sorted(store.measured(stored.number).items()):
            yield ["measured", stored.number, name, dict(data)]
        verdicts, records = judgement
        for verdict in sorted(verdicts, key=lambda v: tuple(int(part) for part in v.candidate.split("."))):
            yield [
                "verdict", verdict.candidate, verdict.klass, verdict.champion, verdict.reason, dict(verdict.facts),
            ]  # fmt: skip
        for record in records:
            yield ["record", record.kind, record.subject, dict(record.data)]


def _trial(trial: Trial) -> list[Any]:
    where = [trial.program, trial.split, trial.dataset, trial.instance, trial.repeat, str(trial.purpose)]
    return ["trial", *where, str(trial.outcome), trial.score, dict(trial.costs), trial.output_digest]


def _candidate(candidate: Candidate) -> list[Any]:
    what = [
        candidate.id,
        candidate.program,
        candidate.name,
        candidate.operator,
        candidate.status,
        str(candidate.outcome),
    ]
    edges = sorted(codec.dumps(edge) for edge in codec.edges_to_json(candidate.edges))
    return [
        "candidate", *what, edges, codec.claim_to_json(candidate.claim),
        [codec.evaluation_to_json(e) for e in _by_split(candidate)],
    ]  # fmt: skip


def _by_split(candidate: Candidate) -> list[Evaluation]:
    return [candidate.evaluations[split] for split in sorted(candidate.evaluations)]
