"""The archive digest: what a run found, without when, where and at what cost in time it found it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from leadscrew.adapters.stores import codec
from leadscrew.core.proposal import Candidate
from leadscrew.core.trial import Outcome, Purpose

if TYPE_CHECKING:
    from leadscrew.adapters.stores.sqlite import SQLiteStore


def archive_digest(store: SQLiteStore) -> str:
    """Return the SHA-256 over `lines`: equal for runs that agree, whatever their workers, clocks, hosts and interruptions."""
    total = hashlib.sha256()
    for line in lines(store):
        total.update(codec.dumps(line, sort=True).encode("ascii") + b"\n")
    return total.hexdigest()


def lines(store: SQLiteStore) -> Iterator[list[Any]]:
    """Yield the canonical projection, plan by plan in order of number. Only judged plans count: what is still in flight may
    differ between two runs that agree."""
    for stored in store.plans():
        judgement = store.judgement(stored.number)
        if judgement is None:
            continue
        yield ["plan", stored.number, codec.plan_kind(stored.plan), codec.plan_to_json(stored.plan)]
        for candidate in store.candidates_of(stored.number):
            yield _candidate(candidate)
            for evaluation in candidate.evaluations.values():
                named = set(evaluation.instances)
                for trial in store.trials(evaluation.program, evaluation.split, Purpose.SEARCH):
                    if trial.instance in named and trial.outcome is not Outcome.INFRA:
                        yield [
                            "trial", trial.program, trial.split, trial.dataset, trial.instance, trial.repeat, str(trial.outcome),
                            trial.score, dict(trial.costs), trial.output_digest,
                        ]
        for name, data in sorted(store.measured(stored.number).items()):
            yield ["measured", stored.number, name, dict(data)]
        verdicts, records = judgement
        for verdict in sorted(verdicts, key=lambda v: tuple(int(part) for part in v.candidate.split("."))):
            yield ["verdict", verdict.candidate, verdict.klass, verdict.champion, verdict.reason, dict(verdict.facts)]
        for record in records:
            yield ["record", record.kind, record.subject, dict(record.data)]


def _candidate(candidate: Candidate) -> list[Any]:
    return [
        "candidate", candidate.id, candidate.program, candidate.name, candidate.operator, candidate.status,
        str(candidate.outcome), codec.edges_to_json(candidate.edges), codec.claim_to_json(candidate.claim),
        [
            [e.split, e.rung, e.planned, e.passed, e.value, list(e.instances), list(e.values), dict(e.aggregate.costs),
             dict(e.aggregate.per_dataset), dict(e.failures)]
            for e in sorted(candidate.evaluations.values(), key=lambda e: e.split)
        ],
    ]
