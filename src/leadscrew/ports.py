"""The seams of the engine: what a method, proposer, domain, sandbox, executor, store and observer must offer.

The engine knows these and the core only. Each port has a conformance suite in `leadscrew.testing`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from leadscrew.core.archive import Archive
from leadscrew.core.budget import Spend
from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate, Edit, Judgement, Plan, Proposal, Record, Results, Verdict
from leadscrew.core.task import (
    Aggregate,
    Answer,
    Instance,
    Interface,
    Limits,
    Objective,
    ProgramEnvironment,
    Provenance,
    Score,
    Split,
)
from leadscrew.core.trial import Outcome, Purpose, Trace, Trial, mean_aggregate
from leadscrew.errors import DomainError

# -- domains -------------------------------------------------------------------------------------


class BadAnswer(Exception):
    """Raised by a scorer for an answer it cannot judge (wrong type, shape or content): the trial is `bad_output`."""


class Environment(Protocol):
    """The host's side of an `act` instance. Lives in the scorer process; the program sees observations only."""

    def reset(self) -> Any:
        """Start the episode and return the first observation (JSON)."""

    def step(self, action: Any) -> tuple[Any, bool]:
        """Take an action (JSON); return the next observation and whether the episode is over. May raise `BadAnswer`."""

    def result(self) -> Any:
        """Return what the scorer gets as the answer (JSON)."""


@dataclass(frozen=True, slots=True)
class Grading:
    """Code to run in a fresh grading box before an answer can be scored: `program` is called on each of `inputs`.

    Expected outputs stay on the host: the scorer compares them with what the box returns.
    """

    program: Program
    inputs: tuple[Any, ...]
    interface: Interface
    limits: Limits


class Domain(ABC):
    """A problem: instances in splits, the operation programs offer, a scorer, an aggregate and baselines.

    A subclass sets `name`, `interface` and `objectives` and implements `instances` and `score`; the rest has defaults.
    `instances("test")` is called only after the opening of the test split was recorded, and in the scorer's process:
    load lazily, per split. `score` runs in the scorer's own process, never beside candidate code.
    """

    name: ClassVar[str] = "domain"
    interface: Interface = Interface("solve")
    objectives: tuple[Objective, ...] = (Objective("score"),)
    limits: Limits = Limits()
    environment: ProgramEnvironment = ProgramEnvironment()
    provenance: Provenance = Provenance("the user's own data", "unstated", "unpublished")
    public_since: str = "unpublished"
    tamper_exposed: bool = False
    """True where a scorer must trust numbers that candidate code produced beside its own tests."""

    @abstractmethod
    def instances(self, split: Split) -> Sequence[Instance]:
        """Return the instances of a split, in a fixed order, ids unique over all splits."""

    @abstractmethod
    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        """Judge one answer; raise `BadAnswer` if it cannot be judged. `graded` is what the grading box returned."""

    def seed(self) -> Program | None:
        """Return the program to start from where the user names none."""
        return next(iter(self.baselines().values()), None)

    def baselines(self) -> Mapping[str, Program]:
        """Return named programs to measure against; among them a hand-made static solution where there is one."""
        return {}

    def aggregate(self, trials: Sequence[Trial], planned: int) -> Aggregate:
        """Summarise trials; by default the nested mean over repeats, instances and data sets."""
        return mean_aggregate(trials, self.objectives[0], planned)

    def grade(self, instance: Instance, answer: Answer) -> Grading | None:
        """Return what must be executed before `score` can judge the answer; None for most domains."""
        return None

    def host(self, instance: Instance) -> Environment:
        """Return the environment of an `act` instance."""
        raise DomainError(
            f"the domain {self.name!r} declares the operation 'act' but has no environment: implement `host(instance)`."
        )

    def masks(self) -> Sequence[str]:
        """Return host paths from which gold could be derived; every box hides them."""
        return ()

    def probes(self, split: Split) -> Iterator[str]:
        """Yield texts that must not be found in any file mounted into a box: by default the inputs that are long texts."""
        for instance in self.instances(split):
            yield from _long_texts(instance.input)

    def split_digest(self, split: Split) -> str:
        """Return the digest of a split's inputs and gold, for the ledger of openings."""
        return digest_of([[i.id, i.dataset, i.input, i.expected] for i in self.instances(split)])

    def scorer_digest(self) -> str:
        """Return a digest that changes whenever scores could: by default of the class's source text."""
        import inspect

        try:
            source = inspect.getsource(type(self))
        except (OSError, TypeError):
            source = repr(type(self))
        return digest_of([self.name, source])

    def features(self, input: Any) -> Mapping[str, float]:
        """Return numbers that describe an input, for routing between components; never derived from the id."""
        return {}


def _long_texts(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str) and len(item) >= 40:
            yield item
        elif isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)


# -- boxes ---------------------------------------------------------------------------------------

BoxPurpose = Literal["evaluate", "grade", "smoke", "propose", "ask"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path shown inside a box, read-only unless `writable`."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """One box: what it may see, run and use. Nothing that is not named here is inside.

    `argv` empty runs the guest worker on the prepared Python runtime. `shell` adds the host's command-line tools
    (read-only, masked) for proposers. `masks` are host paths hidden even where a mount would show them.
    """

    purpose: BoxPurpose
    limits: Limits
    argv: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    masks: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    environment: ProgramEnvironment = ProgramEnvironment()
    cwd: str = "/work"
    shell: bool = False


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """What is in force: the backend, its version, how each limit is kept, and what is not kept. Goes into the certificate."""

    name: str
    version: str
    limits: Mapping[str, str]
    isolated: bool
    warnings: tuple[str, ...] = ()


class Box(Protocol):
    """A running box: a process tree with pipes. Closing or killing it ends the whole tree."""

    pid: int
    stdin: Any
    stdout: Any
    stderr: Any

    async def wait(self) -> int:
        """Wait for the end and return the exit code (negative: signal)."""

    def usage(self) -> Spend:
        """CPU and wall time of the whole tree so far."""

    def allow(self, cpu_s: float | None, wall_s: float | None) -> None:
        """Let the tree use so many more CPU and wall seconds from now on; None takes that clock off."""

    def path(self, target: str) -> str:
        """Return where a path of the box is seen by what runs inside (a sandbox without mounts shows host paths)."""

    def breach(self) -> Outcome | None:
        """Say which limit ended the tree (`oom`, `timeout`), if one did."""

    async def kill(self) -> None:
        """Kill the whole tree and free what the box used. Calling it again does nothing."""


@runtime_checkable
class Sandbox(Protocol):
    """A way to make boxes."""

    name: str

    def probe(self) -> SandboxReport:
        """Try a box for real; raises `SandboxUnavailable` with reason and remedy if none can run."""

    def exposes(self, spec: BoxSpec) -> Sequence[str]:
        """Return the host paths whose content a box of this kind shows, for the scan for gold."""

    async def open(self, spec: BoxSpec) -> Box:
        """Start a box."""

    async def close(self) -> None:
        """Kill every box that is still open and remove temporary folders."""


# -- executors -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """A labelled train item as a learner sees it."""

    id: str
    input: Any
    expected: Any
    dataset: str = "main"


@dataclass(frozen=True, slots=True)
class BoxTrial:
    """One trial to run: the input and a seed. `key` identifies it among the replies of its job."""

    key: str
    input: Any
    seed: int = 0
    dataset: str = "main"


@dataclass(frozen=True, slots=True)
class Job:
    """Trials of one program, serialisable, to be run in boxes of one purpose. Learners see `train` first, in order.

    `fresh` gives every trial a box of its own. `endpoint` is the gateway socket shown inside, if any.
    """

    program: Program
    interface: Interface
    limits: Limits
    trials: tuple[BoxTrial, ...]
    train: tuple[Item, ...] = ()
    environment: ProgramEnvironment = ProgramEnvironment()
    masks: tuple[str, ...] = ()
    purpose: BoxPurpose = "evaluate"
    fresh: bool = False
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class BoxReply:
    """What a box returned for one trial (or one train item, where `train` is set). Not yet scored."""

    key: str
    outcome: Outcome
    answer: Answer = field(default_factory=Answer)
    message: str = ""
    trace: Trace = field(default_factory=Trace)
    spend: Spend = field(default_factory=Spend)
    train: bool = False


Steps = Callable[[str, Any], Awaitable[tuple[Any, bool]]]
"""`act` only: (trial key, action or None for the first observation) -> (observation, over)."""


@runtime_checkable
class Executor(Protocol):
    """Runs jobs in boxes, up to `workers` at once, and keeps boxes warm between jobs."""

    workers: int

    def run(self, job: Job, steps: Steps | None = None) -> AsyncIterator[BoxReply]:
        """Yield one reply per train item (online learners) and per trial, as they finish. Never raises for what the
        program does; an `infra` reply tells of our own failures."""

    async def close(self) -> None:
        """Kill all boxes."""


@runtime_checkable
class Scorer(Protocol):
    """The domain in a process of its own."""

    async def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score | str:
        """Return the score, or the text of a `BadAnswer`. Raises `InfrastructureError` if the scorer itself fails."""

    async def grading(self, instance: Instance, answer: Answer) -> Grading | None:
        """Ask the domain what must be executed first."""

    async def step(self, instance: Instance, session: str, action: Any, first: bool) -> tuple[Any, bool]:
        """Drive an `act` environment; a `BadAnswer` ends the episode as over."""

    async def result(self, session: str) -> Any:
        """End an `act` session and return its result."""

    async def call(self, function: str, *args: Any) -> Any:
        """Call a method of the domain by name in the scorer's process (sealed splits are loaded only there)."""

    async def close(self) -> None:
        """End the process."""


# -- proposers and methods -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """What proposers may see. `level` is what of a candidate is shown, `extent` of which candidates.

    `val_traces` tells whether val instances with their answers are shown (it stands in the certificate).
    """

    level: Literal["scores", "summary", "full"] = "full"
    extent: Literal["last", "window", "summary", "full"] = "full"
    window: int = 5
    val_traces: bool = False


class Bench(Protocol):
    """What a proposer sees and may use for one plan. All its input and output goes through here."""

    @property
    def archive(self) -> Archive:
        """The archive as it was when the plan was decided."""

    @property
    def number(self) -> int:
        """The plan's number in the run."""

    @property
    def rng(self) -> random.Random:
        """Randomness of this plan alone."""

    @property
    def domain(self) -> Domain:
        """The domain; its test split is sealed."""

    @property
    def evidence(self) -> Evidence:
        """What the method lets proposers see."""

    @property
    def notes(self) -> Sequence[str]:
        """What people wrote to the proposers, oldest first: data, not orders."""

    def program(self, candidate: str) -> Program:
        """Return the tree of a recorded candidate."""

    def trials(self, candidate: str, split: Split = "train") -> Sequence[Trial]:
        """Return a candidate's trials on a permitted split; raises `SealedError` for any other."""

    def trace(self, digest: str) -> Trace:
        """Return a stored trace."""

    def folder(self) -> Path:
        """Lay the bench out as files (history, base programs, instructions) and return the folder."""

    async def submission(self) -> Sequence[Proposal]:
        """Wait until somebody submits a folder for this plan and return what it holds."""


@runtime_checkable
class Proposer(Protocol):
    """A way to make proposals. `propose` may raise only `InfrastructureError`; a bad reply is a failed proposal."""

    name: str

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Return up to `plan.count` proposals."""


@runtime_checkable
class Method(Protocol):
    """An algorithm: what to ask for next and what to make of the result. Pure and synchronous; all state is in the archive."""

    name: str
    evidence: Evidence
    record_kinds: Mapping[str, Mapping[str, str]]
    """Kinds of `Record` this method writes: field name -> type name (`str`, `int`, `float`, `bool`, `list`, `dict`)."""

    def plan(self, archive: Archive, number: int, rng: random.Random) -> Plan | None:
        """Return plan `number` (0 is the founding plan), or None when the method is done."""

    def judge(self, archive: Archive, number: int, plan: Plan, results: Results) -> Judgement:
        """Judge everything that came back for a plan; the archive does not hold its candidates yet."""

    def finalists(self, archive: Archive) -> Sequence[str]:
        """Return the candidates to open the test split for, the champion first."""


# -- store and observers -------------------------------------------------------------------------


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
    def spend(self) -> Spend: ...

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
