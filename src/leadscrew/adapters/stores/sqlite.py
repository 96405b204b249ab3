"""The SQLite store: a run's single truth in one file, `RUN/run.db`."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from leadscrew.adapters.stores import codec, database, inbox, projection
from leadscrew.adapters.stores.calls import Calls
from leadscrew.adapters.stores.content import Content, sync
from leadscrew.adapters.stores.database import Database
from leadscrew.adapters.stores.lock import WriterLock
from leadscrew.adapters.stores.records import RecordKinds, check_record
from leadscrew.adapters.stores.verify import verify
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate, Judgement, Proposal
from leadscrew.core.trial import Evaluation, Outcome, Trace, Trial
from leadscrew.errors import RefusedError, TamperedError
from leadscrew.ports import Message, StoredPlan


class SQLiteStore(Calls):
    """The `Store` port on one SQLite database (WAL, synchronous=FULL).

    Rows are append-only, and each is one link of a hash chain. One process writes; any number read. Writes become
    durable at `commit`; what was not committed when the process dies never happened. A commit costs one flush of the
    disk however much it holds, so several plans should share one. Use one store from one thread at a time.
    """

    def __init__(
        self,
        folder: Path,
        *,
        readonly: bool,
        record_kinds: RecordKinds | None = None,
        lock: WriterLock | None = None,
    ) -> None:
        self.path = Path(folder)
        self.readonly = readonly
        database.require(self.path / "run.db")
        self._lock = lock if readonly or lock is not None else WriterLock(self.path / "lock")
        try:
            db = Database(self.path / "run.db", readonly=readonly)
        except BaseException:
            self._unlock()
            raise
        self._db = db
        try:
            super().__init__(db, Content(db, self.path / "traces"))
            self._read_run(record_kinds)
        except (ValueError, TypeError, AttributeError) as error:
            self.close()
            raise TamperedError(
                f"the run in {str(folder)!r} cannot be read ({error}): `leadscrew verify` names what was altered.",
                record="database",
            ) from error
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls,
        folder: Path | str,
        *,
        config: Mapping[str, Any],
        seed: int,
        record_kinds: RecordKinds | None = None,
    ) -> SQLiteStore:
        """Begin a run in `folder`, which is made if it is missing, and open it for writing.

        `record_kinds` are the method's: record kind -> field -> type name (`str`, `int`, `float`, `bool`, `list`,
        `dict`, `any`; a `?` behind it allows null or a missing field). Raises `RefusedError` if a run is there already
        and `BusyError` if another process is beginning one.
        """
        folder = Path(folder)
        for part in ("inbox", "traces"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder / "lock")
        try:
            if (folder / "run.db").exists():
                raise RefusedError(f"there is a run in {str(folder)!r} already. Resume it, or name another folder.")
            # Built under another name and renamed: a run that can be seen is a run that was begun.
            for leftover in folder.glob(".run.db.new*"):
                leftover.unlink()
            draft = folder / ".run.db.new"
            _begin(draft, config, seed, record_kinds or {})
            os.rename(draft, folder / "run.db")
            sync(folder)
        except BaseException:
            lock.release()
            raise
        return cls(folder, readonly=False, record_kinds=record_kinds, lock=lock)

    @classmethod
    def open(
        cls, folder: Path | str, readonly: bool = False, *, record_kinds: RecordKinds | None = None
    ) -> SQLiteStore:
        """Open a run, as its only writer or as one of many readers. `record_kinds` replaces those given at `create`.

        Raises `NotFoundError`, `BusyError` (another process writes it) or `SchemaVersionError` (a newer leadscrew did).
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
        """Read a tree back, its digest checked; raises `NotFoundError` or `TamperedError`."""
        return self._content.program(digest)

    def put_trace(self, trace: Trace) -> str:
        """Store a trace once; return its digest (empty for an empty trace)."""
        return self._content.put_trace(trace)

    def trace(self, digest: str) -> Trace:
        """Read a trace back, its digest checked; a pruned one says so in `stderr`."""
        return self._content.trace(digest)

    def prune_traces(self, keep: Container[str]) -> int:
        """Drop the content of every trace that is not in `keep` (digests), leaving tombstones; return its bytes."""
        return self._content.prune(keep)

    def add_plan(self, plan: StoredPlan) -> None:
        """Record a decided plan; raises `ValueError` if its number is taken."""
        body = self._content.json_in(codec.plan_to_json(plan.plan))
        self._db.append("plan", plan.number, plan.after, plan.origin, codec.plan_kind(plan.plan), body)

    def add_proposal(self, plan: int, index: int, proposal: Proposal) -> None:
        """Record what a proposer returned, its tree included, before anything is done with it."""
        content = self._content
        self._db.append(
            "proposal",
            plan,
            index,
            None if proposal.program is None else content.put_program(proposal.program),
            content.text_in(proposal.name),
            str(proposal.outcome),
            content.text_in(proposal.failure),
            content.text_in(proposal.log),
            content.json_in(codec.claim_to_json(proposal.claim)),
            content.json_in(codec.edges_to_json(proposal.edges)),
        )

    def add_trial(self, trial: Trial) -> bool:
        """Record a finished trial. Returns False, and records nothing, if one of this key and purpose is stored.

        An infra trial is always recorded: it says nothing about its key.
        """
        key, content, spend = codec.digest_in(trial.key), self._content, trial.spend
        known = "SELECT 1 FROM trial WHERE key = ? AND purpose = ? AND outcome <> 'infra'"
        if trial.outcome is not Outcome.INFRA and self._db.one(known, (key, str(trial.purpose))):
            return False
        self._db.append(
            "trial",
            key,
            codec.digest_in(trial.program),
            self._instance(trial.split, trial.dataset, trial.instance),
            trial.repeat,
            str(trial.purpose),
            str(trial.outcome),
            codec.number_in(trial.score),
            None if trial.correct is None else int(trial.correct),
            content.json_in(trial.costs),
            content.text_in(trial.message),
            codec.digest_in(trial.output_digest),
            codec.digest_in(trial.trace),
            content.json_in(trial.detail),
            spend.trials,
            spend.cpu_ms,
            spend.wall_ms,
            spend.calls,
            spend.tokens_in,
            spend.tokens_out,
            spend.micro_usd,
        )
        self._count_trial(spend)
        return True

    def add_candidate(self, candidate: Candidate) -> None:
        """Record a candidate with its edges and evaluations; raises `ValueError` for an edge to one not stored yet."""
        content = self._content
        if candidate.id != f"{candidate.plan}.{candidate.index}":
            raise ValueError(
                f"a candidate's id is plan.index: {candidate.id!r} must be '{candidate.plan}.{candidate.index}'"
            )
        for split, evaluation in candidate.evaluations.items():
            if split != evaluation.split:
                raise ValueError(f"the evaluation under {split!r} is of the split {evaluation.split!r}")
        # All is turned into rows before the first is written, so that a value that cannot be stored leaves nothing.
        edges = [(e.kind, self._candidate_id(e.source), content.json_in(e.detail)) for e in candidate.edges]
        evaluations = [self._evaluation_row(candidate.program, e) for e in candidate.evaluations.values()]
        number = self._db.append(
            "candidate",
            candidate.plan,
            candidate.index,
            codec.digest_in(candidate.program),
            content.text_in(candidate.name),
            content.text_in(candidate.operator),
            candidate.status,
            str(candidate.outcome),
            content.text_in(candidate.reason),
            content.text_in(candidate.log),
            content.json_in(codec.claim_to_json(candidate.claim)),
        )
        for row in edges:
            self._db.append("edge", number, *row)
        for cells in evaluations:
            self._db.append("evaluation", number, *cells)

    def add_measured(self, plan: int, candidate: str, data: Mapping[str, Any]) -> None:
        """Record the result of a `Measure` or `Ask` plan for one candidate."""
        self._db.append("measured", plan, self._candidate_id(candidate), self._content.json_in(dict(data)))

    def add_judgement(self, plan: int, judgement: Judgement) -> None:
        """Record that a plan was judged, with verdicts and method records.

        Raises `UsageError` for a record that the method did not declare, `ValueError` for a second judgement of a plan.
        """
        for record in judgement.records:
            check_record(record, self.record_kinds)
        text, data = self._content.text_in, self._content.json_in
        verdicts = [
            (self._candidate_id(v.candidate), text(v.klass), text(v.reason), int(v.champion), data(v.facts))
            for v in judgement.verdicts
        ]
        records = [(record.kind, text(record.subject), data(record.data)) for record in judgement.records]
        number = self._db.append("judgement", plan)
        for verdict in verdicts:
            self._db.append("verdict", number, *verdict)
        for row in records:
            self._db.append("record", number, *row)

    def add_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Record that something happened."""
        self._db.append("event", kind, self._content.json_in(dict(data)))

    # -- the whole -----------------------------------------------------------------------------

    def chain_head(self) -> str:
        """Return the hash of the last link, 64 hex digits."""
        return self._db.head.hex()

    def archive_digest(self) -> str:
        """Return the digest of the canonical projection: judged plans with their candidates, trials, verdicts and
        records, without clocks, durations, spend in time, and host."""
        return projection.archive_digest(self)

    def verify(self, head: str | None = None) -> int:
        """Re-check chain, rows and contents of what is durable; return the number of links.

        Raises `TamperedError` naming the first alteration. `head` (64 hex digits, from a certificate) must be in the
        chain: it shows that the end was not cut off.
        """
        return verify(self.path, head=head)

    # -- inbox and end -------------------------------------------------------------------------

    def inbox(self) -> Sequence[Message]:
        """Return the messages not taken yet, oldest first. A malformed one is recorded as taken, with its fault."""
        folder = self.path / "inbox"
        out: list[Message] = []
        for name in inbox.pending(folder):
            if self._is_taken(name):
                if not self.readonly and name not in self._to_archive:
                    # The process died between the commit and the tidying up.
                    inbox.archive(folder, name)
                continue
            message = inbox.read(folder, name)
            if isinstance(message, Message):
                out.append(message)
            elif not self.readonly:
                self._take(name, "", {}, message)
        return out

    def taken(self, message: Message) -> None:
        """Record that a message was acted on (durable at the next commit); raises `ValueError` if it was before."""
        if self._is_taken(message.id):
            raise ValueError(f"the message {message.id!r} was taken already")
        self._take(message.id, message.kind, message.data, "")

    def message_files(self, message: Message) -> Program | None:
        """Return the tree that travels with a message, or None; raises `ProgramError` for one that is no program."""
        return inbox.files_of(self.path / "inbox", message.id)

    def close(self) -> None:
        """Close the store; what was not committed is dropped. Calling it again does nothing."""
        self._db.close()
        self._unlock()

    def __enter__(self) -> SQLiteStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _read_run(self, record_kinds: RecordKinds | None) -> None:
        row = self._db.one("SELECT seed, config, record_kinds FROM run")
        if row is None:
            raise TamperedError(f"the run in {str(self.path)!r} has lost its first row.", record="run 1")
        text, data = self._content.text_out, self._content.json_out
        self.seed = int(row[0])
        self.config: Mapping[str, Any] = data(row[1], {})
        self.record_kinds: RecordKinds = data(row[2], {}) if record_kinds is None else record_kinds
        self._to_archive: list[str] = []
        self._last_names: tuple[tuple[str, ...], str | int] = ((), "")
        self._instances: dict[tuple[str, str, str], int] = {}
        if not self.readonly:
            self._start_counting()
            for number, split, dataset, name in self._db.stream("SELECT id, split, dataset, name FROM instance"):
                self._instances[split, text(dataset), text(name)] = number

    def _evaluation_row(self, program: str, evaluation: Evaluation) -> tuple[Any, ...]:
        data = self._content.json_in
        return (
            evaluation.split,
            evaluation.rung,
            evaluation.planned,
            int(evaluation.passed),
            None if evaluation.program == program else codec.digest_in(evaluation.program),
            codec.number_in(evaluation.value),
            self._names_in(evaluation.instances),
            codec.values_in(evaluation.values),
            data(evaluation.aggregate.costs),
            data(evaluation.aggregate.per_dataset),
            data(evaluation.failures),
        )

    def _candidate_id(self, name: str) -> int:
        plan, _, index = name.partition(".")
        if plan.isdecimal() and index.isdecimal():
            row = self._db.one("SELECT id FROM candidate WHERE plan = ? AND idx = ?", (int(plan), int(index)))
            if row:
                return int(row[0])
        raise ValueError(f"the store holds no candidate {name!r} yet: edges and verdicts may only name stored ones")

    def _instance(self, split: str, dataset: str, name: str) -> int:
        key = (split, dataset, name)
        number = self._instances.get(key)
        if number is None:
            text = self._content.text_in
            number = self._instances[key] = self._db.append("instance", split, text(dataset), text(name))
        return number

    def _names_in(self, names: tuple[str, ...]) -> str | int:
        # Nearly every candidate is measured on the same instances: their names are written down once.
        if names != self._last_names[0]:
            self._last_names = (names, self._content.json_in(list(names)))
        return self._last_names[1]

    def _is_taken(self, name: str) -> bool:
        return self._db.one("SELECT 1 FROM message WHERE name = ?", (inbox.stored_name(name),)) is not None

    def _take(self, name: str, kind: str, data: Mapping[str, Any], fault: str) -> None:
        text = self._content.text_in
        values = (text(kind), self._content.json_in(dict(data)), text(fault))
        self._db.append("message", inbox.stored_name(name), *values)
        self._to_archive.append(name)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _begin(path: Path, config: Mapping[str, Any], seed: int, record_kinds: RecordKinds) -> None:
    from importlib.metadata import version

    database.create(path)
    db = Database(path, readonly=False)
    try:
        content = Content(db, path.parent / "traces")
        kinds = {kind: dict(fields) for kind, fields in record_kinds.items()}
        db.append("run", version("leadscrew"), str(seed), content.json_in(dict(config)), content.json_in(kinds))
        db.commit()
    finally:
        db.close()
