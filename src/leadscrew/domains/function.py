"""A domain from a scoring function and rows: the library form of the user's own task."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, SupportsFloat, TypeGuard, cast

from leadscrew.core.canonical import canonical_json, digest_of
from leadscrew.core.program import Program
from leadscrew.core.task import (
    Answer,
    Direction,
    Instance,
    Interface,
    Limits,
    Objective,
    Operation,
    ProgramEnvironment,
    Provenance,
    Score,
    Split,
)
from leadscrew.domains.options import choice
from leadscrew.domains.tables import Hygiene, inspect_splits, refuse_overlap
from leadscrew.errors import DomainError, InfrastructureError
from leadscrew.ports import BadAnswer, BoxReply, Domain, JudgeMissing

OPERATIONS = ("solve", "predict", "workspace", "artifact")
Rows = Iterable[Any]
"""Mappings with `input`, `expected` and, if wanted, `id` and `dataset`; pairs (input, expected); or instances."""
# What a scorer raises when it meets an answer of a form it did not expect: the answer's fault, not the scorer's.
_BAD_ANSWER = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    AssertionError,
    SyntaxError,
    re.error,
)
_PARAMETERS = ("input", "answer", "expected", "judge")


@dataclass(frozen=True, slots=True)
class Scoring:
    """A scoring function as one of (input, answer, expected), and of `judge` where it asks one. `waits`: it is `async`."""

    call: Callable[..., Any]
    judged: bool = False
    waits: bool = False

    def __call__(self, input: Any, answer: Any, expected: Any, judge: Any = None) -> Any:
        """Score one answer."""
        return self.call(input, answer, expected, judge) if self.judged else self.call(input, answer, expected)


class FunctionDomain(Domain):
    """The user's own task: rows in three splits and a function that scores one answer.

    `score` takes any of the parameters `input`, `answer`, `expected` by name; two parameters of other
    names are (answer, expected). A fourth parameter `judge` gets a function that asks the model of the role `judge`:
    `judge(prompt, **options)` returns the text of its reply (see `Domain.judge`); such a function runs in a thread of its own,
    or is an `async def` that awaits `judge`. `score` returns a finite number, a truth value, a mapping
    (`score` and further named costs), or a `Score`. A `ValueError`, or another error that the form of an answer causes,
    means that this answer cannot be judged.

    `train`, `val` and `test` are rows or functions that return them; `test` is read only when it is needed.
    `objective` and `direction` name the score; for `direction="min"` a `floor` (what a failed trial counts as) must
    be given. `costs` maps further names that `score` returns to their directions.

    >>> domain = FunctionDomain(lambda answer, expected: answer == expected, val=[("2+2", 4)])
    >>> domain.score(domain.instances("val")[0], Answer(4)).value
    1.0
    """

    name = "function"

    def __init__(
        self,
        score: Callable[..., Any],
        train: Rows | Callable[[], Rows] = (),
        val: Rows | Callable[[], Rows] = (),
        test: Rows | Callable[[], Rows] = (),
        *,
        operation: str = "solve",
        entry: str = "main.py",
        mode: str = "offline",
        objective: str = "score",
        direction: str = "max",
        floor: float | None = None,
        ceiling: float | None = None,
        costs: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        packages: Sequence[str] = (),
        baselines: Mapping[str, Program] | None = None,
        name: str | None = None,
        masks: Sequence[str] = (),
        provenance: Provenance | None = None,
        allow_overlap: bool = False,
    ) -> None:
        self.name = name or type(self).name  # type: ignore[misc]
        self._function = score
        self._call = caller(score, self.name)
        self.judged = self._call.judged
        self._sources: dict[Split, Rows | Callable[[], Rows]] = {"train": train, "val": val, "test": test}
        self._instances: dict[Split, tuple[Instance, ...]] = {}
        self.interface = Interface(
            cast(Operation, choice(self.name, "operation", operation, OPERATIONS)),
            entry=entry,
            mode=cast(Any, choice(self.name, "mode", mode, ("offline", "online"))),
        )
        self.objectives = objectives(self.name, objective, direction, floor, ceiling, costs or {})
        self.limits = limits or Limits()
        self.environment = ProgramEnvironment(tuple(packages))
        self.provenance = provenance or Domain.provenance
        self._baselines = dict(baselines or {})
        self._masks = tuple(masks)
        self._allow_overlap = allow_overlap

    def instances(self, split: Split) -> Sequence[Instance]:
        """Return a split's instances; raises `DomainError` for a row that has no input or is no JSON."""
        if split not in self._instances:
            source = self._sources[split]
            rows = source() if callable(source) else source
            loaded = instances_of(self.name, split, rows)
            if split == "test":
                splits: dict[Split, Sequence[Instance]] = {
                    "train": self.instances("train"),
                    "val": self.instances("val"),
                    "test": loaded,
                }
                refuse_overlap(self.name, inspect_splits(splits), allow=self._allow_overlap)
            self._instances[split] = loaded
        return self._instances[split]

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        """Ask the function; raise `BadAnswer` for an answer it cannot judge and `DomainError` when it is broken itself."""
        value = answer.value if answer.files is None else texts_of(answer.files)
        scoring = self._scoring()
        if scoring.judged or scoring.waits:
            # Whoever asks for scores in the scorer's process awaits what must be awaited.
            return cast(Score, self._later(scoring, instance, value))
        with self._faults(instance):
            given = scoring(instance.input, value, instance.expected)
        return score_of(given, self.objectives, self.name)

    def _scoring(self) -> Scoring:
        return self._call

    async def _later(self, scoring: Scoring, instance: Instance, value: Any) -> Score:
        loop = asyncio.get_running_loop()

        def judge(prompt: str, **options: Any) -> str:
            return asyncio.run_coroutine_threadsafe(self.judge(prompt, **options), loop).result()

        with self._faults(instance):
            if scoring.waits:
                given = await scoring(instance.input, value, instance.expected, self.judge)
            else:
                given = await in_thread(lambda: scoring(instance.input, value, instance.expected, judge))
        return score_of(given, self.objectives, self.name)

    @contextmanager
    def _faults(self, instance: Instance) -> Iterator[None]:
        """Tell the answer's faults from the scorer's own, and from those of the judge."""
        try:
            yield
        except (BadAnswer, InfrastructureError, JudgeMissing):
            raise
        except _BAD_ANSWER as error:
            raise BadAnswer(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            raise DomainError(
                f"the scorer of {self.name!r} failed on instance {instance.id!r}: {type(error).__name__}: {error}. "
                "Mend it; for an answer that cannot be judged it should raise ValueError."
            ) from error

    def baselines(self) -> Mapping[str, Program]:
        """Return the programs that were given."""
        return self._baselines

    def masks(self) -> Sequence[str]:
        """Return the paths that were given."""
        return self._masks

    def scorer_digest(self) -> str:
        """Return a digest of the function's source text, or of its name where there is none."""
        try:
            source = inspect.getsource(self._function)
        except (OSError, TypeError):
            source = f"{getattr(self._function, '__module__', '')}.{getattr(self._function, '__qualname__', '?')}"
        return digest_of([self.name, source, [o.name for o in self.objectives]])

    def hygiene(self, *, test: bool = False) -> Hygiene:
        """Return which inputs stand twice in train and val, and in test if that may be opened."""
        splits: dict[Split, Sequence[Instance]] = {split: self.instances(split) for split in ("train", "val")}
        if test:
            splits["test"] = self.instances("test")
        return inspect_splits(splits)


def objectives(
    domain: str, objective: str, direction: str, floor: float | None, ceiling: float | None, costs: Mapping[str, str]
) -> tuple[Objective, ...]:
    """Return the primary objective and the costs; raises `DomainError` for a direction or floor that cannot be."""
    ways = ("max", "min")
    way = cast(Direction, choice(domain, "direction", direction, ways))
    if floor is None:
        if way == "min":
            raise DomainError(
                f"the domain {domain!r} has direction = 'min' and no floor. A failed trial counts as the floor, and 0 "
                "would be the best value there is: set 'floor' to a value that is clearly bad, such as 1e6."
            )
        floor = 0.0
    for option, value in (("floor", floor), ("ceiling", ceiling)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value != value):
            raise DomainError(f"the option {option!r} of the domain {domain!r} is {value!r}; write a number.")
    first = Objective(objective, way, float(floor), None if ceiling is None else float(ceiling))
    others = (Objective(n, cast(Direction, choice(domain, f"costs.{n}", d, ways))) for n, d in costs.items())
    return (first, *others)


async def in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a thread of its own, in the present context, and return what it returns."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(set_it: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_it(value)

    def work() -> None:
        try:
            value = context.run(function)
        except StopIteration as error:
            loop.call_soon_threadsafe(tell, done.set_exception, RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:
            loop.call_soon_threadsafe(tell, done.set_exception, error)
        else:
            loop.call_soon_threadsafe(tell, done.set_result, value)

    # A pool could be used up by functions that never return; a thread that nobody waits for harms no other.
    threading.Thread(target=work, daemon=True).start()
    return await done


def caller(function: Callable[..., Any], domain: str) -> Scoring:
    """Return `function` as one of (input, answer, expected); raises `DomainError` if its parameters make no sense."""
    if not callable(function):
        raise DomainError(f"the scorer of {domain!r} is {function!r}; give a function score(input, answer, expected).")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return Scoring(lambda input, answer, expected: function(answer, expected))
    waits = inspect.iscoroutinefunction(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [p.name for p in parameters if p.kind in kinds]
    needed = [p.name for p in parameters if p.kind in kinds and p.default is p.empty]
    if all(name in _PARAMETERS for name in needed) and any(name in _PARAMETERS for name in named):
        if all(p.kind is not inspect.Parameter.POSITIONAL_ONLY for p in parameters):
            wanted = [name for name in named if name in _PARAMETERS]

            def by_name(input: Any, answer: Any, expected: Any, judge: Any = None) -> Any:
                given = {"input": input, "answer": answer, "expected": expected, "judge": judge}
                return function(**{name: given[name] for name in wanted})

            return Scoring(by_name, "judge" in wanted, waits)
    positional = [p for p in parameters if p.kind in kinds[:2] and p.default is p.empty]
    if len(positional) == len(needed) == 2:
        return Scoring(lambda input, answer, expected: function(answer, expected), False, waits)
    raise DomainError(
        f"the scorer of {domain!r} takes ({', '.join(named) or 'nothing'}); name its parameters input, answer "
        "and expected, and judge to ask a model (in any order, and only those it needs), so that they cannot be mixed up."
    )


def instances_of(domain: str, split: Split, rows: Iterable[Any]) -> tuple[Instance, ...]:
    """Return rows as instances; ids are `split-0000`, ... where a row has none."""
    out: list[Instance] = []
    seen: set[str] = set()
    for number, row in enumerate(rows):
        where = f"row {number + 1} of {split} in the domain {domain!r}"
        instance = _instance(split, number, row, where)
        try:
            canonical_json([instance.input, instance.expected])
        except (TypeError, ValueError, RecursionError) as error:
            raise DomainError(f"{where} is no JSON ({error}). Use texts, numbers, lists and mappings only.") from None
        if instance.id in seen:
            raise DomainError(f"{where} has the id {instance.id!r}, which an earlier row has too; ids must be unique.")
        seen.add(instance.id)
        out.append(instance)
    return tuple(out)


def _instance(split: Split, number: int, row: Any, where: str) -> Instance:
    if isinstance(row, Instance):
        return Instance(row.id, split, row.input, row.expected, row.dataset)
    default = f"{split}-{number:04d}"
    if isinstance(row, Mapping):
        if "input" not in row:
            has = ", ".join(sorted(map(str, row))) or "nothing"
            raise DomainError(f"{where} has no 'input'; it has {has}. Write 'input' and 'expected'.")
        id_ = row.get("id", default)
        dataset = row.get("dataset", "main")
        if not isinstance(id_, (str, int)) or isinstance(id_, bool) or not isinstance(dataset, str):
            raise DomainError(f"{where} has id {id_!r} and dataset {dataset!r}; both must be texts.")
        return Instance(str(id_), split, row["input"], row.get("expected"), dataset)
    if isinstance(row, (tuple, list)) and len(row) == 2:
        return Instance(default, split, row[0], row[1])
    raise DomainError(f"{where} is a {type(row).__name__}; give a pair (input, expected) or a mapping with both.")


def score_of(given: Any, objectives: Sequence[Objective], domain: str) -> Score:
    """Return what a scoring function returned as a `Score`; raises `BadAnswer` for NaN and infinities."""
    if isinstance(given, Score):
        return _finite(given)
    if isinstance(given, bool):
        return Score(1.0 if given else 0.0, correct=given)
    if isinstance(given, Mapping):
        rest = dict(given)
        primary = next((k for k in (objectives[0].name, "score", "value") if k in rest), None)
        value = rest.pop(primary) if primary is not None else None
        correct = rest.pop("correct", None)
        detail = rest.pop("detail", {})
        costs = {k: v for k, v in rest.items() if _is_number(v)}
        if _is_number(value) and len(costs) == len(rest) and isinstance(detail, Mapping):
            correct = correct if isinstance(correct, bool) else None
            return _finite(Score(float(value), {k: float(v) for k, v in costs.items()}, correct, dict(detail)))
    elif _is_number(given):
        return _finite(Score(float(given)))
    raise DomainError(
        f"the scorer of {domain!r} returned {given!r}. Return a number, True or False, or a mapping with "
        f"'{objectives[0].name}' and further numbers by name (and 'correct', 'detail')."
    )


def _is_number(value: Any) -> TypeGuard[SupportsFloat]:
    # NumPy's scalars are numbers to the user, without being of Python's classes.
    return not isinstance(value, (bool, str, bytes)) and hasattr(value, "__float__")


def _finite(score: Score) -> Score:
    for value in (score.value, *score.costs.values()):
        if not math.isfinite(value):
            raise BadAnswer(f"the scorer found no finite number for this answer, but {value}")
    return score


def texts_of(files: Program) -> dict[str, str | bytes]:
    """Return the files of an answer by path, as text where they are UTF-8."""
    out: dict[str, str | bytes] = {}
    for path, file in files.items():
        try:
            out[path] = file.data.decode("utf-8")
        except UnicodeDecodeError:
            out[path] = file.data
    return out
