"""What a program is measured on: instances in splits, objectives with directions, answers and scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from leadscrew.core.canonical import digest_of
from leadscrew.core.program import EVERYTHING, Program, Region

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
Direction = Literal["max", "min"]
Operation = Literal["solve", "predict", "act", "artifact", "workspace"]
"""`solve`: input -> answer. `predict`: learn from train, then predict. `act`: observation -> action, the host keeps
the environment. `artifact`: the tree itself is the answer. `workspace`: the answer is a tree of files."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One example of a domain. `expected` is gold and never enters a box for val and test.

    `dataset` groups instances whose results are reported apart; learners are reset between data sets.
    """

    id: str
    split: Split
    input: Any
    expected: Any = None
    dataset: str = "main"


@dataclass(frozen=True, slots=True)
class Objective:
    """A named number with a direction. `ceiling` is the best possible, if known.

    `floor` is what a failed trial counts as. It must be clearly bad: a score worse than it counts as the floor.
    """

    name: str
    direction: Direction = "max"
    floor: float = 0.0
    ceiling: float | None = None
    unit: str = ""

    def better(self, a: float, b: float) -> bool:
        """Say whether `a` is strictly better than `b`."""
        return a > b if self.direction == "max" else a < b

    def gain(self, new: float, old: float) -> float:
        """Return how much better `new` is than `old`; negative if it is worse."""
        return new - old if self.direction == "max" else old - new


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program returned: a JSON value, or files where the operation is `workspace` or `artifact`."""

    value: Any = None
    files: Program | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the answer."""
        return self.files.digest if self.files is not None else digest_of(self.value)


@dataclass(frozen=True, slots=True)
class Score:
    """The domain's judgement of one answer: the primary value, further named costs, and what to show a reader.

    `correct` fills the `ok` column of the logs where right and wrong make sense.
    """

    value: float
    costs: dict[str, float] = field(default_factory=dict)
    correct: bool | None = None
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one trial may use. CPU seconds are the first limit; wall seconds the backstop."""

    cpu_s: float = 20.0
    wall_s: float = 60.0
    load_s: float = 60.0
    """CPU seconds for loading the program and learning from train together; wall is three times that."""
    memory_mb: int = 1024
    processes: int = 64
    file_mb: int = 64
    workspace_mb: int = 128
    answer_kb: int = 1024
    output_kb: int = 64


@dataclass(frozen=True, slots=True)
class Interface:
    """How a domain calls a program: the operation, the entry file or command, and the exposed region.

    `entry` is a Python file loaded by the guest worker. `command` (an argument list) runs any other language instead: it
    speaks the same JSON lines on standard input and output. `mode` says how a learner sees train: `online` predicts each
    item before its label is revealed, `offline` hands over all labelled items at once.
    """

    operation: Operation
    entry: str = "main.py"
    command: tuple[str, ...] = ()
    region: Region = EVERYTHING
    mode: Literal["online", "offline"] = "online"
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class ProgramEnvironment:
    """What programs may import besides the standard library.

    `packages` are import names taken from `interpreter`'s site-packages and mounted read-only one by one.
    An empty `interpreter` means the one that runs the engine.
    """

    packages: tuple[str, ...] = ()
    interpreter: str = ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a domain's data come from, under which licence, and since when they are public (ISO date or 'unpublished')."""

    source: str
    licence: str
    public_since: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A set of trials as numbers. `value` is None when the evaluation is incomplete.

    `per_dataset` holds the primary objective per data set, `costs` the mean of every named cost.
    """

    value: float | None
    costs: dict[str, float] = field(default_factory=dict)
    per_dataset: dict[str, float] = field(default_factory=dict)
