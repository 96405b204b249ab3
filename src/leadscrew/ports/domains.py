"""What a domain must offer, and the process that holds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program
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
from leadscrew.core.trial import Trial, mean_aggregate
from leadscrew.errors import DomainError
from leadscrew.ports.boxes import BoxReply


class BadAnswer(Exception):
    """Raised by a scorer for an answer it cannot judge (wrong type, shape or content): the trial is `bad_output`."""


class JudgeMissing(DomainError):
    """A scorer asks the judge, and there is none to ask."""


JUDGE: ContextVar[Callable[[str, Mapping[str, Any]], Awaitable[str]] | None] = ContextVar("judge", default=None)
"""How the request at hand asks the judge. Set in the scorer's process, for one answer at a time."""


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

    judged: bool = False
    """True where `score` asks the judge: a run without `[models.judge]` is then refused before it begins."""

    @abstractmethod
    def instances(self, split: Split) -> Sequence[Instance]:
        """Return the instances of a split, in a fixed order, ids unique over all splits."""

    @abstractmethod
    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        """Judge one answer; raise `BadAnswer` if it cannot be judged. `graded` is what the grading box returned.

        It may be an `async def`, which it must be to ask the judge.
        """

    async def judge(self, prompt: str, **options: Any) -> str:
        """Ask the model of the role `judge` from within `score`, and return the text of its reply.

        `options` are `system`, `max_tokens`, `temperature`, `stop`, `labels` and what else belongs into a request in the OpenAI
        form; what the run pins stays pinned. Calls are metered, recorded and replayed; equal answers to one instance are judged
        once; waiting does not count against the scorer's time. If the model does not answer, the trial counts for nothing,
        whatever `score` makes of it. Raises `BadAnswer` if the judge cannot be asked about this answer (too long, allowance
        used up), and `DomainError` outside `score` or where `[models.judge]` is not configured.
        """
        ask = JUDGE.get()
        if ask is None:
            raise JudgeMissing(
                f"the scorer of {self.name!r} asks the judge, but no model has that role here. Write [models.judge] with "
                'model = "provider/name" in the configuration, and ask from within score() only.'
            )
        return await ask(prompt, options)

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


@runtime_checkable
class Scorer(Protocol):
    """The domain in a process of its own."""

    async def score(
        self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = (), *, plan: int = 0, candidate: str = ""
    ) -> Score | str:
        """Return the score, or the text of a `BadAnswer`. What the judge is asked goes on the account of `plan`, in the name of
        the program `candidate`.

        Raises `InfrastructureError` if the scorer itself fails, `ModelOutage` if its judge does not answer, `BudgetReached` at a
        cap on the judge's calls, and `DomainError` if it asks a judge that is not configured.
        """

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
