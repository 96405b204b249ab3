"""One program on one instance once: a score or a typed failure; and how trials become an evaluation."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from leadscrew.core.budget import Spend
from leadscrew.core.canonical import digest_of
from leadscrew.core.task import Aggregate, Objective, Split


class Outcome(StrEnum):
    """How a trial ended. Only `OK` has a score; every kind but `INFRA` is the candidate's own doing."""

    OK = "ok"
    INVALID = "invalid"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OOM = "oom"
    BAD_OUTPUT = "bad_output"
    CHEATED = "cheated"
    INFRA = "infra"


class Purpose(StrEnum):
    """Why a trial was run. Only `SEARCH` and `CONFIRM` trials rank candidates."""

    SEARCH = "search"
    PROBE = "probe"
    NOISE = "noise"
    CONFIRM = "confirm"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Trace:
    """What a reader or a proposer may want to see of a trial. Texts are cut by the executor to the domain's limits.

    `calls` are model calls or whatever the program logged: each a mapping, with `prompt` and `response` where it has them.
    """

    answer: Any = None
    stdout: str = ""
    stderr: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """A finished trial. `key` is the evaluation-cache key; `score` and `costs` are set only when the outcome is ok."""

    key: str
    program: str
    instance: str
    split: Split
    dataset: str
    repeat: int
    purpose: Purpose
    outcome: Outcome
    score: float | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    correct: bool | None = None
    message: str = ""
    output_digest: str = ""
    spend: Spend = field(default_factory=Spend)
    trace: str = ""
    """Digest of the stored trace, empty if there is none."""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.OK) != (self.score is not None):
            raise ValueError(f"a trial has a score exactly when it is ok, got {self.outcome} and {self.score!r}")


def trial_key(
    *,
    program: str,
    instance: str,
    input_digest: str,
    scorer: str,
    train: str,
    environment: str,
    limits: str,
    models: str,
    seed: int,
    repeat: int,
) -> str:
    """Return the digest that names a trial: equal keys mean that running it again could only repeat the result.

    Digests go in for the exposed tree, the instance's input, the scorer, the train sequence, the program environment, the
    limits and the pinned models, so that learners, other models and repeats are never confused (design section 6).
    """
    return digest_of([program, instance, input_digest, scorer, train, environment, limits, models, seed, repeat])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The trials of one program on one split at one rung of the ladder, as numbers.

    `instances` names the instances in order and `values` what each counts for (mean over repeats, failures at the floor,
    NaN where nothing can be counted). `planned` is the number of trials that were due. `failures` counts the trials that
    are not ok by kind. The trials themselves stay in the store.
    """

    program: str
    split: Split
    rung: int
    planned: int
    instances: tuple[str, ...]
    values: Sequence[float]
    aggregate: Aggregate
    failures: Mapping[str, int] = field(default_factory=dict)
    passed: bool = True
    """Whether the gate of the rung was passed and the evaluation is the full one."""

    @property
    def complete(self) -> bool:
        """Whether every planned trial ended without an infrastructure failure."""
        return self.aggregate.value is not None

    @property
    def value(self) -> float | None:
        """The primary objective over the planned trials, or None when incomplete."""
        return self.aggregate.value

    def by_instance(self) -> dict[str, float]:
        """Return the value of each instance, in order."""
        return dict(zip(self.instances, self.values, strict=True))


def evaluation_of(
    program: str,
    split: Split,
    trials: Sequence[Trial],
    objective: Objective,
    aggregate: Aggregate,
    *,
    planned: int,
    rung: int = 0,
    passed: bool = True,
) -> Evaluation:
    """Fold trials into an evaluation; `aggregate` is the domain's own summary of the same trials."""
    grouped: dict[str, list[float]] = {}
    failures: dict[str, int] = {}
    for trial in trials:
        infra = trial.outcome is Outcome.INFRA
        grouped.setdefault(trial.instance, []).append(math.nan if infra else value_of(trial, objective))
        if trial.outcome is not Outcome.OK:
            failures[trial.outcome.value] = failures.get(trial.outcome.value, 0) + 1
    values = array("d", (_mean(v) for v in grouped.values()))
    if len(trials) != planned or "infra" in failures:
        aggregate = Aggregate(None)
    return Evaluation(program, split, rung, planned, tuple(grouped), values, aggregate, failures, passed)


def value_of(trial: Trial, objective: Objective) -> float:
    """Return what a trial counts for: its score, or the objective's floor if the candidate caused a failure.

    A score worse than the floor counts as the floor too, so that no failure ever beats an honest answer.

    Raises `ValueError` for an `infra` trial, which counts for nothing.
    """
    if trial.outcome is Outcome.INFRA:
        raise ValueError(f"the infra trial of {trial.instance!r} cannot be counted")
    if trial.score is None or objective.better(objective.floor, trial.score):
        return objective.floor
    return trial.score


def mean_aggregate(trials: Iterable[Trial], objective: Objective, planned: int) -> Aggregate:
    """Average the repeats of each instance, then the instances of each data set, then the data sets.

    The divisor is the number of planned trials; a failure of the candidate counts as the floor; an `infra` trial or a
    missing one makes the value None. Costs are averaged over ok trials in the same nested way.
    """
    trials = tuple(trials)
    if not trials or len(trials) != planned or any(t.outcome is Outcome.INFRA for t in trials):
        return Aggregate(None)
    values: _Nested = {}
    costs: dict[str, _Nested] = {}
    for trial in trials:
        values.setdefault(trial.dataset, {}).setdefault(trial.instance, []).append(value_of(trial, objective))
        for name, cost in trial.costs.items():
            costs.setdefault(name, {}).setdefault(trial.dataset, {}).setdefault(trial.instance, []).append(cost)
    per_dataset = _by_dataset(values)
    return Aggregate(
        _mean(list(per_dataset.values())),
        {name: _mean(list(_by_dataset(nested).values())) for name, nested in costs.items()},
        per_dataset,
    )


_Nested = dict[str, dict[str, list[float]]]


def _by_dataset(nested: _Nested) -> dict[str, float]:
    return {name: _mean([_mean(repeats) for repeats in instances.values()]) for name, instances in nested.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
