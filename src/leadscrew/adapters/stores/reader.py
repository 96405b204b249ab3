"""Rows back to nouns: every read of the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leadscrew.adapters.stores import codec
from leadscrew.adapters.stores.content import Content
from leadscrew.adapters.stores.database import Database
from leadscrew.core.budget import Spend
from leadscrew.core.proposal import Candidate, Proposal, Record, Verdict
from leadscrew.core.task import SPLITS, Aggregate, Split
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trial
from leadscrew.ports import StoredPlan

_TRIAL = """SELECT key, program, name, split, dataset, repeat, purpose, outcome, score, costs, correct, message, output,
  trials, cpu_ms, wall_ms, calls, tokens_in, tokens_out, micro_usd, trace, detail
  FROM trial JOIN instance ON instance.id = trial.instance """
_PROPOSALS = "SELECT program, edges, claim, name, failure, outcome, log FROM proposal WHERE plan = ? ORDER BY idx"
_EDGES = """SELECT edge.kind, plan, idx, detail FROM edge JOIN candidate ON candidate.id = edge.source
  WHERE edge.candidate = ? ORDER BY edge.id"""
_EVALUATIONS = """SELECT program, split, rung, planned, instances, vals, value, costs, per_dataset, failures, passed
  FROM evaluation WHERE candidate = ? ORDER BY id"""
_MEASURED = """SELECT candidate.plan, idx, data FROM measured JOIN candidate ON candidate.id = measured.candidate
  WHERE measured.plan = ? ORDER BY measured.id"""
_VERDICTS = """SELECT plan, idx, klass, verdict.reason, champion, facts FROM verdict
  JOIN candidate ON candidate.id = verdict.candidate WHERE judgement = ? ORDER BY verdict.id"""


class Reader:
    """The reading half of the store. Iterators stream: they hold one row at a time."""

    def __init__(self, db: Database, content: Content) -> None:
        self._db = db
        self._content = content
        self._names: tuple[str | int, tuple[str, ...]] = ("", ())

    def plans(self) -> Iterator[StoredPlan]:
        """Yield every plan in order of its number."""
        rows = self._db.stream("SELECT number, kind, body, after, origin FROM plan ORDER BY number")
        for number, kind, body, after, origin in rows:
            yield StoredPlan(number, codec.plan_from_json(kind, self._content.json_out(body, {})), after, origin)

    def proposals(self, plan: int) -> Sequence[Proposal]:
        """Return the proposals of a plan by index."""
        content = self._content
        return [
            Proposal(
                None if program is None else content.program(content.program_digest(program)),
                codec.edges_from_json(content.json_out(edges, [])),
                codec.claim_from_json(content.json_out(claim, {})),
                content.text_out(name),
                content.text_out(failure),
                Outcome(outcome),
                content.text_out(log),
            )
            for program, edges, claim, name, failure, outcome, log in self._db.all(_PROPOSALS, (plan,))
        ]

    def find_trial(self, key: str) -> Trial | None:
        """Return the first trial of this key that was no infrastructure failure: the evaluation cache."""
        where = "WHERE key = ? AND outcome <> 'infra' ORDER BY trial.id LIMIT 1"
        row = self._db.one(_TRIAL + where, (codec.digest_in(key),))
        return self._trial(row) if row else None

    def trials(self, program: str, split: Split | None = None, purpose: Purpose | None = None) -> Sequence[Trial]:
        """Return the trials of a program (the digest that its trials carry), infra ones included.

        They are ordered by split, data set, instance, repeat and purpose: the order does not tell who finished first.
        """
        sql, values = _TRIAL + "WHERE program = ?", [codec.digest_in(program)]
        if split is not None:
            sql, values = sql + " AND split = ?", [*values, split]
        if purpose is not None:
            sql, values = sql + " AND purpose = ?", [*values, str(purpose)]
        found = [self._trial(row) for row in self._db.stream(sql + " ORDER BY trial.id", values)]
        return sorted(found, key=lambda t: (SPLITS.index(t.split), t.dataset, t.instance, t.repeat, t.purpose))

    def candidates(self) -> Iterator[Candidate]:
        """Yield every candidate by plan number and index."""
        for row in self._db.stream("SELECT * FROM candidate ORDER BY plan, idx"):
            yield self._candidate(row)

    def candidates_of(self, plan: int) -> Sequence[Candidate]:
        """Return the candidates of one plan by index."""
        rows = self._db.all("SELECT * FROM candidate WHERE plan = ? ORDER BY idx", (plan,))
        return [self._candidate(row) for row in rows]

    def measured(self, plan: int) -> Mapping[str, Mapping[str, Any]]:
        """Return the results of a plan by candidate, in the order in which they were added."""
        return {
            f"{number}.{index}": self._content.json_out(data, {})
            for number, index, data in self._db.all(_MEASURED, (plan,))
        }

    def judgements(self) -> Iterator[tuple[int, Sequence[Verdict], Sequence[Record]]]:
        """Yield `(plan, verdicts, records)` in the order in which they were applied."""
        for number, plan in self._db.stream("SELECT id, plan FROM judgement ORDER BY id"):
            yield plan, self._verdicts(number), self._records(number)

    def judgement(self, plan: int) -> tuple[Sequence[Verdict], Sequence[Record]] | None:
        """Return the verdicts and records of a plan, or None if it was not judged yet."""
        row = self._db.one("SELECT id FROM judgement WHERE plan = ?", (plan,))
        return (self._verdicts(row[0]), self._records(row[0])) if row else None

    def events(self, kind: str | None = None, *, after: int = 0) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """Yield `(number, kind, data)` in order, of those with a number above `after`."""
        where, values = ("WHERE id > ?", (after,)) if kind is None else ("WHERE id > ? AND kind = ?", (after, kind))
        for number, name, data in self._db.stream(f"SELECT id, kind, data FROM event {where} ORDER BY id", values):
            yield number, name, self._content.json_out(data, {})

    # -- inside --------------------------------------------------------------------------------

    def _trial(self, row: Any) -> Trial:
        content = self._content
        return Trial(
            key=codec.digest_out(row[0]),
            program=codec.digest_out(row[1]),
            instance=content.text_out(row[2]),
            split=row[3],
            dataset=content.text_out(row[4]),
            repeat=row[5],
            purpose=Purpose(row[6]),
            outcome=Outcome(row[7]),
            score=codec.number_out(row[8]),
            costs=content.json_out(row[9], {}),
            correct=None if row[10] is None else bool(row[10]),
            message=content.text_out(row[11]),
            output_digest=codec.digest_out(row[12]),
            spend=Spend(*row[13:20]),
            trace=codec.digest_out(row[20]),
            detail=content.json_out(row[21], {}),
        )

    def _candidate(self, row: Any) -> Candidate:
        number, plan, index, program, name, operator, status, outcome, reason, log, claim = row
        content, program = self._content, codec.digest_out(program)
        edges = [(k, f"{p}.{i}", content.json_out(d, {})) for k, p, i, d in self._db.all(_EDGES, (number,))]
        return Candidate(
            id=f"{plan}.{index}",
            plan=plan,
            index=index,
            program=program,
            name=content.text_out(name),
            operator=content.text_out(operator),
            status=status,
            outcome=Outcome(outcome),
            reason=content.text_out(reason),
            edges=codec.edges_from_json(edges),
            claim=codec.claim_from_json(content.json_out(claim, {})),
            evaluations={row[1]: self._evaluation(row, program) for row in self._db.all(_EVALUATIONS, (number,))},
            log=content.text_out(log),
        )

    def _evaluation(self, row: Any, program: str) -> Evaluation:
        content = self._content
        return Evaluation(
            program=program if row[0] is None else codec.digest_out(row[0]),
            split=row[1],
            rung=row[2],
            planned=row[3],
            instances=self._instance_names(row[4]),
            values=codec.values_out(row[5]),
            aggregate=Aggregate(codec.number_out(row[6]), content.json_out(row[7], {}), content.json_out(row[8], {})),
            failures=content.json_out(row[9], {}),
            passed=bool(row[10]),
        )

    def _instance_names(self, stored: str | int) -> tuple[str, ...]:
        # Nearly every candidate is measured on the same instances: one tuple serves them all.
        if stored != self._names[0]:
            self._names = (stored, tuple(self._content.json_out(stored, [])))
        return self._names[1]

    def _verdicts(self, judgement: int) -> list[Verdict]:
        text, data = self._content.text_out, self._content.json_out
        return [
            Verdict(f"{plan}.{index}", text(klass), text(reason), bool(champion), data(facts, {}))
            for plan, index, klass, reason, champion, facts in self._db.all(_VERDICTS, (judgement,))
        ]

    def _records(self, judgement: int) -> list[Record]:
        rows = self._db.all("SELECT kind, subject, data FROM record WHERE judgement = ? ORDER BY id", (judgement,))
        return [Record(k, self._content.text_out(s), self._content.json_out(d, {})) for k, s, d in rows]
