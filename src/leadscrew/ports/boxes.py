"""Boxes and the executors that run programs in them: sandboxes, jobs, replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from leadscrew.core.budget import Spend
from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Interface, Limits, ProgramEnvironment
from leadscrew.core.trial import Outcome, Trace
from leadscrew.ports.models import Access

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
    (read-only, masked) for proposers. `masks` are host paths hidden even where a mount would show them. `init` makes the
    command of `argv` the first process of the box, which nothing inside can kill, as the guest worker always is.
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
    init: bool = False


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


@dataclass(frozen=True, slots=True)
class Item:
    """A labelled train item as a learner sees it."""

    id: str
    input: Any
    expected: Any
    dataset: str = "main"


@dataclass(frozen=True, slots=True)
class BoxTrial:
    """One trial to run: the input and a seed. `key` identifies it among the replies of its job.

    `instance` and `repeat` are for the gateway, never for the box: they say whose replies a model call may share.
    """

    key: str
    input: Any
    seed: int = 0
    dataset: str = "main"
    instance: str = ""
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """Trials of one program, serialisable, to be run in boxes of one purpose. Learners see `train` first, in order.

    `fresh` gives every trial a box of its own. With `access` each box has a door to the gateway.
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
    access: Access | None = None


@dataclass(frozen=True, slots=True)
class BoxReply:
    """What a box returned for one trial (or one train item, where `train` is set). Not yet scored.

    `costs` are what the gateway measured (`core.trial.Trial.costs` gets them beside the scorer's). `cap` names the resource
    whose cap made an `infra` reply void.
    """

    key: str
    outcome: Outcome
    answer: Answer = field(default_factory=Answer)
    message: str = ""
    trace: Trace = field(default_factory=Trace)
    spend: Spend = field(default_factory=Spend)
    train: bool = False
    costs: Mapping[str, float] = field(default_factory=dict)
    cap: str = ""


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
