"""What a method asks for (plans), what comes back (proposals), and what is decided (verdicts)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from leadscrew.core.program import EVERYTHING, Program, Region
from leadscrew.core.task import Split
from leadscrew.core.trial import Evaluation, Outcome, Purpose

EdgeKind = Literal["parent", "donor", "base", "inspiration", "evidence", "triggered_by", "meta"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A link from an older candidate (`source`, an id) to the one that carries the edge."""

    kind: EdgeKind
    source: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """What the proposer says about its change. Never trusted, always kept: the published fields and any further ones."""

    hypothesis: str = ""
    tags: tuple[str, ...] = ()
    expected: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new tree with its links and its claim; or, where `failure` is set, the reason why there is no tree.

    `name` is a label for people; identity is always the candidate's id. `log` is the proposer's transcript or stderr.
    """

    program: Program | None
    edges: tuple[Edge, ...] = ()
    claim: Claim = field(default_factory=Claim)
    name: str = ""
    failure: str = ""
    outcome: Outcome = Outcome.OK
    log: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """Ask the proposer `operator` for up to `count` proposals. It may change only `region`.

    `parents` are candidate ids that the method chose; empty leaves the choice to the proposer.
    `evidence` narrows what the bench shows; `options` go to the proposer as they are.
    """

    operator: str
    count: int = 1
    parents: tuple[str, ...] = ()
    region: Region = EVERYTHING
    evidence: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measure:
    """Ask for further trials of recorded candidates: `instances` empty means the whole split."""

    candidates: tuple[str, ...]
    purpose: Purpose
    split: Split = "val"
    instances: tuple[str, ...] = ()
    repeats: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Ask:
    """Run `entry` of a candidate in a box on `question`; the reply must fit `schema` (JSON Schema, checked by the engine)."""

    candidate: str
    question: Mapping[str, Any]
    entry: str
    schema: Mapping[str, Any]


Plan = Edit | Measure | Ask
Status = Literal["evaluated", "failed", "held"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal as recorded: `id` is `<plan>.<index>`, ordered by plan number and then index.

    `evaluations` holds the search evaluation per split; a failed or held candidate has none.
    `outcome` says how checking and evaluation ended, `reason` is the text of a failure.
    """

    id: str
    plan: int
    index: int
    program: str
    name: str
    operator: str
    status: Status
    outcome: Outcome
    reason: str = ""
    edges: tuple[Edge, ...] = ()
    claim: Claim = field(default_factory=Claim)
    evaluations: Mapping[Split, Evaluation] = field(default_factory=dict)
    log: str = ""

    def sources(self, *kinds: EdgeKind) -> tuple[str, ...]:
        """Return the ids at the other end of the edges of these kinds (of all kinds if none is named)."""
        return tuple(e.source for e in self.edges if not kinds or e.kind in kinds)

    @property
    def value(self) -> float | None:
        """The primary objective on val, or None."""
        val = self.evaluations.get("val")
        return val.value if val is not None else None


@dataclass(frozen=True, slots=True)
class Record:
    """What a method needs to remember beyond candidates and trials. `kind` is declared by the method with a schema;
    the state of a `subject` is its latest record."""

    kind: str
    subject: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the method decides about one candidate of a plan: its class, whether it becomes champion, and why.

    `klass` is one of the method's own words (`promoted`, `near_miss`, `kept`, `rejected`, ...); `facts` are the numbers
    behind it. Every word is shown by `leadscrew why`.
    """

    candidate: str
    klass: str
    reason: str
    champion: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts of one plan and the records that go with them."""

    verdicts: tuple[Verdict, ...] = ()
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Results:
    """What came back for one plan: new candidates of an `Edit`, evaluations of a `Measure` by candidate, the reply of an `Ask`."""

    candidates: tuple[Candidate, ...] = ()
    measured: Mapping[str, Evaluation] = field(default_factory=dict)
    reply: Mapping[str, Any] | None = None
    note: str = ""
