"""The SQLite store: a run's single truth in one file, `RUN/run.db`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leadscrew.adapters.stores import codec, database, inbox, projection
from leadscrew.adapters.stores.content import Content, sync_folder
from leadscrew.adapters.stores.database import Database
from leadscrew.adapters.stores.lock import WriterLock
from leadscrew.adapters.stores.verify import verify
from leadscrew.core.budget import Spend
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate, Judgement, Proposal, Record, Verdict
from leadscrew.core.task import SPLITS, Aggregate, Split
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trace, Trial
from leadscrew.errors import NotFoundError, RefusedError, UsageError
from leadscrew.ports import Message, StoredPlan

RecordKinds = Mapping[str, Mapping[str, str]]
_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str, "int": int, "float": (int, float), "bool": bool, "list": (list, tuple), "dict": Mapping, "any": object,
}
_TRIAL = (
    "SELECT key, program, split, dataset, name, repeat, purpose, outcome, score, correct, costs, message, output, trace, "
    "detail, trials, cpu_ms, wall_ms, calls, tokens_in, tokens_out, micro_usd "
    "FROM trial JOIN instance ON instance.id = trial.instance "
)


class SQLiteStore:
    """The `Store` port on one SQLite database (WAL, synchronous=FULL).

    Rows are append-only, and each is one link of a hash chain. One process writes; any number read. Writes become durable at
    `commit`; what was not committed when the process dies never happened. Use one store from one thread at a time.
    """

    def __init__(self, folder: Path, *, readonly: bool, record_kinds: RecordKinds | None) -> None:
        self.path = Path(folder)
        self.readonly = readonly
        self._lock: WriterLock | None = None
        if not (self.path / "run.db").is_file():
            raise NotFoundError(
                f"there is no run in {str(folder)!r}: it has no file 'run.db'. Give the folder that `leadscrew run` made.",
                name=str(folder),
            )
        if not readonly:
            self._lock = WriterLock(self.path / "lock")
        try:
            self._db = Database(self.path / "run.db", readonly=readonly)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._content = Content(self._db, self.path / "traces")
        row = self._db.one("SELECT seed, config, record_kinds FROM run")
        if row is None:
            self.close()
            raise NotFoundError(f"the run in {str(folder)!r} was never begun: remove the folder and start again.", name=str(folder))
        self.seed = int(row[0])
        self.config: Mapping[str, Any] = self._content.json_out(row[1], {})
        self.record_kinds: RecordKinds = record_kinds or self._content.json_out(row[2], {})
        self._instances: dict[tuple[str, str, str], int] = {
            (split, self._content.text_out(dataset), self._content.text_out(name)): number
            for number, split, dataset, name in self._db.stream("SELECT id, split, dataset, name FROM instance")
        }
        self._spend = self._summed_spend()
        self._last_instances: tuple[tuple[str, ...], str | int] = ((), "")
        self._taken: set[str] = {name for (name,) in self._db.stream("SELECT name FROM message")}
        self._to_archive: list[str] = []

    @classmethod
    def create(
        cls, folder: Path | str, *, config: Mapping[str, Any], seed: int, record_kinds: RecordKinds | None = None
    ) -> SQLiteStore:
        """Begin a run in `folder`, which is made if it is missing; raises `RefusedError` if a run is there already.

        `record_kinds` are the method's: record kind -> field -> type name (`str`, `int`, `float`, `bool`, `list`, `dict`, `any`;
        a `?` behind it allows null or a missing field).
        """
        import os

        from importlib.metadata import version

        folder = Path(folder)
        path = folder / "run.db"
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("inbox", "traces"):
            (folder / part).mkdir(exist_ok=True)
        lock = WriterLock(folder / "lock")
        try:
            if path.exists():
                raise RefusedError(f"there is a run in {str(folder)!r} already. Resume it, or name another folder.")
            # Built under another name: a run that can be seen is a run that was begun.
            draft = folder / ".run.db.new"
            for leftover in folder.glob(".run.db.new*"):
                leftover.unlink()
            database.create(draft)
            db = Database(draft, readonly=False)
            try:
                content = Content(db, folder / "traces")
                db.append(
                    "run", version("leadscrew"), str(seed), content.json_in(dict(config)),
                    content.json_in({kind: dict(fields) for kind, fields in (record_kinds or {}).items()}),
                )
                db.commit()
            finally:
                db.close()
            os.rename(draft, path)
            sync_folder(folder)
        finally:
            lock.release()
        return cls(folder, readonly=False, record_kinds=record_kinds)

    @classmethod
    def open(cls, folder: Path | str, readonly: bool = False, *, record_kinds: RecordKinds | None = None) -> SQLiteStore:
        """Open a run, as its only writer or as one of many readers.

        Raises `NotFoundError`, `BusyError` (another process writes) or `SchemaVersionError` (a newer leadscrew wrote it).
        """
        return cls(Path(folder), readonly=readonly, record_kinds=record_kinds)

    # -- writing -------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make everything written so far durable, atomically. Raises `InfrastructureError` if the disk refuses."""
        self._db.commit()
        while self._to_archive:
            inbox.archive(self.path / "inbox", self._to_archive.pop())

    def put_program(self, program: Program) -> str:
        """Store a tree once; return its digest."""
        self._content.put_program(program)
        return program.digest

    def program(self, digest: str) -> Program:
        """Read a tree back, its digest checked."""
        return self._content.program(digest)

    def put_trace(self, trace: Trace) -> str:
        """Store a trace once; return its digest (empty for an empty trace)."""
        return self._content.put_trace(trace)

    def trace(self, digest: str) -> Trace:
        """Read a trace back; a pruned one says so in `stderr`."""
        return self._content.trace(digest)

    def prune_traces(self, keep: Container[str]) -> int:
        """Drop the content of every trace whose digest is not in `keep`; tombstones stay. Returns the bytes of traces dropped."""
        return self._content.prune(keep)

    def add_plan(self, plan: StoredPlan) -> None:
        """Record a decided plan; raises `ValueError` if its number is taken."""
        body = self._content.json_in(codec.plan_to_json(plan.plan))
        self._db.append("plan", plan.number, plan.after, plan.origin, codec.plan_kind(plan.plan), body)

    def add_proposal(self, plan: int, index: int, proposal: Proposal) -> None:
        """Record what a proposer returned, its tree included, before anything is done with it."""
        content = self._content
        program = None if proposal.program is None else content.put_program(proposal.program)
        self._db.append(
            "proposal", plan, index, program, content.text_in(proposal.name), str(proposal.outcome),
            content.text_in(proposal.failure), content.text_in(proposal.log),
            content.json_in(codec.claim_to_json(proposal.claim)), content.json_in(codec.edges_to_json(proposal.edges)),
        )

    def add_trial(self, trial: Trial) -> bool:
        """Record a finished trial. Returns False, and records nothing, if a trial of this key and purpose is stored already
        (infra trials are always recorded: they say nothing about the key)."""
        key, content, spend = codec.digest_in(trial.key), self._content, trial.spend
        if trial.outcome is not Outcome.INFRA and self._db.one(
            "SELECT 1 FROM trial WHERE key = ? AND purpose = ? AND outcome <> 'infra'", (key, str(trial.purpose))
        ):
            return False
        self._db.append(
            "trial", key, codec.digest_in(trial.program), self._instance(trial.split, trial.dataset, trial.instance),
            trial.repeat, str(trial.purpose), str(trial.outcome), codec.number_in(trial.score),
            None if trial.correct is None else int(trial.correct), content.json_in(trial.costs),
            content.text_in(trial.message), codec.digest_in(trial.output_digest), codec.digest_in(trial.trace),
            content.json_in(trial.detail), spend.trials, spend.cpu_ms, spend.wall_ms, spend.calls, spend.tokens_in,
            spend.tokens_out, spend.micro_usd,
        )
        self._spend = self._spend + spend
        return True

    def add_candidate(self, candidate: Candidate) -> None:
        """Record a candidate with its edges and evaluations; raises `ValueError` for an edge to a candidate not stored yet."""
        content, append = self._content, self._db.append
        if candidate.id != f"{candidate.plan}.{candidate.index}":
            raise ValueError(f"the candidate id {candidate.id!r} must be '{candidate.plan}.{candidate.index}' (plan.index)")
        sources = [self._candidate(edge.source) for edge in candidate.edges]
        number = append(
            "candidate", candidate.plan, candidate.index, codec.digest_in(candidate.program), content.text_in(candidate.name),
            content.text_in(candidate.operator), candidate.status, str(candidate.outcome), content.text_in(candidate.reason),
            content.text_in(candidate.log), content.json_in(codec.claim_to_json(candidate.claim)),
        )
        for edge, source in zip(candidate.edges, sources, strict=True):
            append("edge", number, edge.kind, source, content.json_in(edge.detail))
        for split, evaluation in candidate.evaluations.items():
            if split != evaluation.split:
                raise ValueError(f"the evaluation under {split!r} is of the split {evaluation.split!r}")
            same = evaluation.program == candidate.program
            append(
                "evaluation", number, split, evaluation.rung, evaluation.planned, int(evaluation.passed),
                "" if same else codec.digest_in(evaluation.program), codec.number_in(evaluation.value),
                self._instance_names(evaluation.instances), codec.values_in(evaluation.values),
                content.json_in(evaluation.aggregate.costs), content.json_in(evaluation.aggregate.per_dataset),
                content.json_in(evaluation.failures),
            )

    def add_measured(self, plan: int, candidate: str, data: Mapping[str, Any]) -> None:
        """Record the result of a `Measure` or `Ask` plan for one candidate."""
        self._db.append("measured", plan, self._candidate(candidate), self._content.json_in(dict(data)))

    def add_judgement(self, plan: int, judgement: Judgement) -> None:
        """Record that a plan was judged, with verdicts and method records; raises `UsageError` for an undeclared record."""
        for record in judgement.records:
            self._check_record(record)
        candidates = [self._candidate(verdict.candidate) for verdict in judgement.verdicts]
        content, append = self._content, self._db.append
        number = append("judgement", plan)
        for candidate, verdict in zip(candidates, judgement.verdicts, strict=True):
            append(
                "verdict", number, candidate, content.text_in(verdict.klass), content.text_in(verdict.reason),
                int(verdict.champion), content.json_in(verdict.facts),
            )
        for record in judgement.records:
            append("record", number, record.kind, content.text_in(record.subject), content.json_in(record.data))

    def add_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Record that something happened."""
        self._db.append("event", kind, self._content.json_in(dict(data)))

    # -- reading -------------------------------------------------------------------------------

    def plans(self) -> Iterator[StoredPlan]:
        """Yield every plan in order of its number."""
        for number, after, origin, kind, body in self._db.stream(
            "SELECT number, after, origin, kind, body FROM plan ORDER BY number"
        ):
            plan = codec.plan_from_json(kind, self._content.json_out(body, {}))
            yield StoredPlan(number, plan, after, origin)

    def proposals(self, plan: int) -> Sequence[Proposal]:
        """Return the proposals of a plan by index."""
        rows = self._db.all(
            "SELECT program, name, outcome, failure, log, claim, edges FROM proposal WHERE plan = ? ORDER BY idx", (plan,)
        )
        content = self._content
        return [
            Proposal(
                None if program is None else content.program(content.program_digest(program)),
                codec.edges_from_json(content.json_out(edges, [])),
                codec.claim_from_json(content.json_out(claim, {})),
                content.text_out(name), content.text_out(failure), Outcome(outcome), content.text_out(log),
            )
            for program, name, outcome, failure, log, claim, edges in rows
        ]

    def find_trial(self, key: str) -> Trial | None:
        """Return the first trial of this key that was no infrastructure failure: the evaluation cache."""
        row = self._db.one(_TRIAL + "WHERE key = ? AND outcome <> 'infra' ORDER BY trial.id LIMIT 1", (codec.digest_in(key),))
        return self._trial(row) if row else None

    def trials(self, program: str, split: Split | None = None, purpose: Purpose | None = None) -> Sequence[Trial]:
        """Return the trials of a program (the digest that its trials carry), infra ones included, ordered by split, data set,
        instance, repeat and purpose, so that the order does not tell who finished first."""
        found = [self._trial(row) for row in self._db.stream(_TRIAL + "WHERE program = ? ORDER BY trial.id", (codec.digest_in(program),))]
        kept = [t for t in found if split in (None, t.split) and purpose in (None, t.purpose)]
        return sorted(kept, key=lambda t: (SPLITS.index(t.split), t.dataset, t.instance, t.repeat, t.purpose))

    def candidates(self) -> Iterator[Candidate]:
        """Yield every candidate by plan number and index."""
        for row in self._db.stream("SELECT * FROM candidate ORDER BY plan, idx"):
            yield self._read_candidate(row)

    def measured(self, plan: int) -> Mapping[str, Mapping[str, Any]]:
        """Return the results of a plan by candidate."""
        rows = self._db.all(
            "SELECT candidate.plan, idx, data FROM measured JOIN candidate ON candidate.id = measured.candidate "
            "WHERE measured.plan = ? ORDER BY measured.id", (plan,)
        )
        return {f"{number}.{index}": self._content.json_out(data, {}) for number, index, data in rows}

    def judgements(self) -> Iterator[tuple[int, Sequence[Verdict], Sequence[Record]]]:
        """Yield `(plan, verdicts, records)` in the order in which they were applied."""
        for number, plan in self._db.stream("SELECT id, plan FROM judgement ORDER BY id"):
            yield plan, self._verdicts(number), self._records(number)

    def candidates_of(self, plan: int) -> Sequence[Candidate]:
        """Return the candidates of one plan by index."""
        return [self._read_candidate(row) for row in self._db.all("SELECT * FROM candidate WHERE plan = ? ORDER BY idx", (plan,))]

    def judgement(self, plan: int) -> tuple[Sequence[Verdict], Sequence[Record]] | None:
        """Return the verdicts and records of a plan, or None if it was not judged yet."""
        row = self._db.one("SELECT id FROM judgement WHERE plan = ?", (plan,))
        return (self._verdicts(row[0]), self._records(row[0])) if row else None

    def events(self, kind: str | None = None) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """Yield `(number, kind, data)` in order."""
        where, values = ("", ()) if kind is None else ("WHERE kind = ?", (kind,))
        for number, name, data in self._db.stream(f"SELECT id, kind, data FROM event {where} ORDER BY id", values):
            yield number, name, self._content.json_out(data, {})

    def spend(self) -> Spend:
        """Return the sum over all trials."""
        return self._spend

    def chain_head(self) -> str:
        """Return the hash of the last link, 64 hex digits."""
        return self._db.head.hex()

    def archive_digest(self) -> str:
        """Return the digest of the canonical projection: judged plans with their candidates, trials, verdicts and records,
        without clocks, durations, spend in time, and host."""
        return projection.archive_digest(self)

    def verify(self, head: str | None = None) -> int:
        """Re-check chain, rows and contents of what is durable; return the number of links.

        Raises `TamperedError` naming the first alteration. `head` (64 hex digits, from a certificate) must be in the chain.
        """
        return verify(self.path, head=head)

    # -- inbox and end -------------------------------------------------------------------------

    def inbox(self) -> Sequence[Message]:
        """Return the messages not taken yet, oldest first. The writer records a malformed one as taken, with its fault."""
        folder = self.path / "inbox"
        out: list[Message] = []
        for name in inbox.pending(folder):
            if name in self._taken:
                continue
            message = inbox.read(folder, name)
            if isinstance(message, Message):
                out.append(message)
            elif not self.readonly:
                self._take(name, "", {}, message)
        return out

    def taken(self, message: Message) -> None:
        """Record that a message was acted on (durable at the next commit)."""
        if message.id in self._taken:
            raise ValueError(f"the message {message.id!r} was taken already")
        self._take(message.id, message.kind, message.data, "")

    def message_files(self, message: Message) -> Program | None:
        """Return the tree that travels with a message, or None; raises `ProgramError` for one that is no program."""
        return inbox.files_of(self.path / "inbox", message.id)

    def close(self) -> None:
        """Close the store; what was not committed is dropped. Calling it again does nothing."""
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> SQLiteStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _take(self, name: str, kind: str, data: Mapping[str, Any], fault: str) -> None:
        content = self._content
        stored = name if name.isascii() and len(name) <= 200 else repr(name)[:200]
        self._db.append("message", stored, content.text_in(kind), content.json_in(dict(data)), content.text_in(fault))
        self._taken.add(name)
        self._to_archive.append(name)

    def _candidate(self, name: str) -> int:
        plan, _, index = name.partition(".")
        if plan.isdecimal() and index.isdecimal():
            row = self._db.one("SELECT id FROM candidate WHERE plan = ? AND idx = ?", (int(plan), int(index)))
            if row:
                return int(row[0])
        raise ValueError(f"the store holds no candidate {name!r} yet; links and verdicts may only name stored ones")

    def _instance(self, split: str, dataset: str, name: str) -> int:
        key = (split, dataset, name)
        number = self._instances.get(key)
        if number is None:
            number = self._db.append("instance", split, self._content.text_in(dataset), self._content.text_in(name))
            self._instances[key] = number
        return number

    def _instance_names(self, names: tuple[str, ...]) -> str | int:
        # Nearly every candidate is measured on the same instances: the names are written down once.
        if names != self._last_instances[0]:
            self._last_instances = (names, self._content.json_in(list(names)))
        return self._last_instances[1]

    def _trial(self, row: Any) -> Trial:
        content = self._content
        return Trial(
            codec.digest_out(row[0]), codec.digest_out(row[1]), content.text_out(row[4]), row[2], content.text_out(row[3]),
            row[5], Purpose(row[6]), Outcome(row[7]), codec.number_out(row[8]), content.json_out(row[10], {}),
            None if row[9] is None else bool(row[9]), content.text_out(row[11]), codec.digest_out(row[12]), Spend(*row[15:22]),
            codec.digest_out(row[13]), content.json_out(row[14], {}),
        )

    def _read_candidate(self, row: Any) -> Candidate:
        number, plan, index, program, name, operator, status, outcome, reason, log, claim = row
        content, program = self._content, codec.digest_out(program)
        edges = self._db.all(
            "SELECT edge.kind, plan, idx, detail FROM edge JOIN candidate ON candidate.id = edge.source "
            "WHERE edge.candidate = ? ORDER BY edge.id", (number,)
        )
        return Candidate(
            f"{plan}.{index}", plan, index, program, content.text_out(name), content.text_out(operator), status, Outcome(outcome),
            content.text_out(reason),
            codec.edges_from_json([(kind, f"{p}.{i}", content.json_out(detail, {})) for kind, p, i, detail in edges]),
            codec.claim_from_json(content.json_out(claim, {})),
            {evaluation.split: evaluation for evaluation in self._evaluations(number, program)},
            content.text_out(log),
        )

    def _evaluations(self, candidate: int, program: str) -> Iterator[Evaluation]:
        content = self._content
        for row in self._db.all(
            "SELECT split, rung, planned, passed, program, value, instances, vals, costs, per_dataset, failures "
            "FROM evaluation WHERE candidate = ? ORDER BY id", (candidate,)
        ):
            if self._last_instances[1] != row[6] or not self._last_instances[0]:
                self._last_instances = (tuple(content.json_out(row[6], [])), row[6])
            yield Evaluation(
                codec.digest_out(row[4]) or program, row[0], row[1], row[2], self._last_instances[0], codec.values_out(row[7]),
                Aggregate(codec.number_out(row[5]), content.json_out(row[8], {}), content.json_out(row[9], {})),
                content.json_out(row[10], {}), bool(row[3]),
            )

    def _verdicts(self, judgement: int) -> list[Verdict]:
        content = self._content
        return [
            Verdict(f"{plan}.{index}", content.text_out(klass), content.text_out(reason), bool(champion), content.json_out(facts, {}))
            for plan, index, klass, reason, champion, facts in self._db.all(
                "SELECT plan, idx, klass, verdict.reason, champion, facts FROM verdict "
                "JOIN candidate ON candidate.id = verdict.candidate WHERE judgement = ? ORDER BY verdict.id", (judgement,)
            )
        ]

    def _records(self, judgement: int) -> list[Record]:
        content = self._content
        return [
            Record(kind, content.text_out(subject), content.json_out(data, {}))
            for kind, subject, data in self._db.all(
                "SELECT kind, subject, data FROM record WHERE judgement = ? ORDER BY id", (judgement,)
            )
        ]

    def _check_record(self, record: Record) -> None:
        fields = self.record_kinds.get(record.kind)
        if fields is None:
            raise UsageError(
                f"the method wrote a record of kind {record.kind!r}, which it does not declare; it declares "
                f"{', '.join(self.record_kinds) or 'none'}. Add the kind and its fields to the method's `record_kinds`."
            )
        for name, kind in fields.items():
            value = record.data.get(name)
            if value is None and kind.endswith("?"):
                continue
            wanted = _TYPES.get(kind.rstrip("?"))
            wrong = wanted is None or not isinstance(value, wanted) or (isinstance(value, bool) and kind in ("int", "float"))
            if wrong:
                raise UsageError(
                    f"the field {name!r} of a {record.kind!r} record must be of type {kind}, got {value!r:.80}. "
                    "Write the declared type, or change `record_kinds`."
                )
        for name in record.data:
            if name not in fields:
                raise UsageError(
                    f"the field {name!r} of a {record.kind!r} record is not declared; declared are {', '.join(fields)}. "
                    "Add it to the method's `record_kinds`."
                )

    def _summed_spend(self) -> Spend:
        *sums, unknown = self._db.one(
            "SELECT coalesce(sum(trials), 0), coalesce(sum(cpu_ms), 0), coalesce(sum(wall_ms), 0), coalesce(sum(calls), 0), "
            "coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), coalesce(sum(micro_usd), 0), "
            "count(*) - count(micro_usd) FROM trial"
        )
        if unknown:
            sums[6] = None
        return Spend(*sums)
