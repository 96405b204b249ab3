"""The store, and the observers of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from leadscrew.core.budget import Spend
from leadscrew.core.call import Call, CallReply
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate, Judgement, Plan, Proposal, Record, Verdict
from leadscrew.core.task import Split
from leadscrew.core.trial import Purpose, Trace, Trial


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, for observers. `kind` is one of `KINDS`."""

    KINDS: ClassVar[tuple[str, ...]] = (
        "run",
        "plan",
        "proposal",
        "candidate",
        "trial",
        "verdict",
        "infra",
        "note",
        "final",
        "done",
    )
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


Observer = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A decided plan. `after` is the number of plans that had been judged when it was decided."""

    number: int
    plan: Plan
    after: int
    origin: Literal["method", "inbox"] = "method"


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the inbox: a note, stop, approval, submission or cap, written by another process."""

    id: str
    kind: str
    data: Mapping[str, Any]


class Store(Protocol):
    """The single truth of a run. One writer; writes become durable at `commit` and only then may be acted on.

    Rows are append-only, and each is one link of a hash chain (`chain_head`).
    """

    path: Path

    def commit(self) -> None:
        """Make everything written so far durable, atomically."""

    def put_program(self, program: Program) -> str:
        """Store a tree once; return its digest."""

    def program(self, digest: str) -> Program:
        """Read a tree back, its digest checked."""

    def put_trace(self, trace: Trace) -> str:
        """Store a trace once; return its digest (empty for an empty trace)."""

    def trace(self, digest: str) -> Trace:
        """Read a trace back; a pruned one says so in `stderr`."""

    def add_plan(self, plan: StoredPlan) -> None: ...
    def add_proposal(self, plan: int, index: int, proposal: Proposal) -> None: ...
    def add_trial(self, trial: Trial) -> bool: ...
    def add_candidate(self, candidate: Candidate) -> None: ...
    def add_measured(self, plan: int, candidate: str, data: Mapping[str, Any]) -> None: ...
    def add_judgement(self, plan: int, judgement: Judgement) -> None: ...
    def add_call(self, call: Call) -> int:
        """Record a model call that is about to be made; return its number. It must be durable before it is sent."""

    def add_reply(self, number: int, reply: CallReply) -> None:
        """Record what became of a call, once."""

    def find_reply(self, scope: str, request: str, occurrence: int) -> CallReply | None:
        """Return the ok reply recorded for this very call, that of the first call if there are several."""

    def find_shared(self, share: str, request: str, occurrence: int) -> CallReply | None:
        """Return an ok reply that an equal call with the same `share` got, that of the first call if there are several.
        An empty `share` finds nothing."""

    def calls(self, scope: str | None = None) -> Iterable[tuple[int, Call, CallReply | None]]:
        """Yield calls in order with their replies; None for one that was in flight when the process died."""

    def call_spend(self) -> Mapping[tuple[str, int], Spend]:
        """Return what calls have cost by role and plan, as `Call.cost` says: one without a reply counts as one call of its
        whole bound, and its money is unknown where its price is."""

    def add_event(self, kind: str, data: Mapping[str, Any]) -> None: ...
    def plans(self) -> Iterable[StoredPlan]: ...
    def proposals(self, plan: int) -> Sequence[Proposal]: ...
    def find_trial(self, key: str) -> Trial | None: ...
    def trials(self, program: str, split: Split | None = None, purpose: Purpose | None = None) -> Sequence[Trial]: ...
    def candidates(self) -> Iterable[Candidate]: ...
    def measured(self, plan: int) -> Mapping[str, Mapping[str, Any]]: ...
    def judgements(self) -> Iterable[tuple[int, Sequence[Verdict], Sequence[Record]]]: ...
    def judgement(self, plan: int) -> tuple[Sequence[Verdict], Sequence[Record]] | None: ...
    def events(self, kind: str | None = None, *, after: int = 0) -> Iterable[tuple[int, str, Mapping[str, Any]]]: ...
    def spend(self) -> Spend:
        """Return what was used: trials and time of all trials, and what the recorded model calls cost."""

    def chain_head(self) -> str:
        """Return the hash of the last link, 64 hex digits."""

    def archive_digest(self) -> str:
        """Return the digest of the canonical projection: plans, candidates, scores, verdicts and records in plan order,
        without clocks, durations, spend in time, and host."""

    def verify(self) -> int:
        """Re-check chain, rows and blobs; return the number of links, or raise `TamperedError` naming the first alteration."""

    def inbox(self) -> Sequence[Message]:
        """Return new messages in order; each is returned once `taken` has not been recorded for it."""

    def taken(self, message: Message) -> None:
        """Record that a message was acted on (durable at the next commit)."""

    def close(self) -> None: ...
