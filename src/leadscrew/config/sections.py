"""The sections of a configuration and their defaults, one frozen dataclass each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from leadscrew.core.budget import Caps
from leadscrew.core.task import Limits


def _range(low: float, high: float | None = None) -> dict[str, Any]:
    return {"min": low} if high is None else {"min": low, "max": high}


@dataclass(frozen=True, slots=True)
class RunSection:
    """`[run]`: where the run lives and how the loop goes on. `workers` 0 means one per processor.

    `replay` names a run whose recorded model replies are used instead of any upstream."""

    out: str = ""
    seed: int = field(default=0, metadata=_range(0))
    method: str = "harness"
    preset: Literal["default", "published"] = "default"
    order: Literal["plan", "completion"] = "plan"
    plans_in_flight: int = field(default=2, metadata=_range(1, 1024))
    workers: int = field(default=0, metadata=_range(0, 4096))
    replay: str = ""
    approve: bool = False


@dataclass(frozen=True, slots=True)
class DomainSection:
    """`[domain]`: a built-in name or `file.py:ClassOrFactory`, the folder of its data, and options that it checks."""

    name: str = ""
    path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegionSection:
    """`[program.region]`: the files a proposer may change, as globs; `**` crosses folders."""

    include: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramSection:
    """`[program]`: the folder or file to start from (empty: the domain's own) and what of it may change."""

    path: str = ""
    region: RegionSection = RegionSection()


@dataclass(frozen=True, slots=True)
class ProposerSection:
    """`[proposer]`: who makes proposals, and options that it checks."""

    name: str = "genetic"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluationSection:
    """`[evaluation]`: the ladder of val rungs before the full split, its gate, repeats and rechecks.

    `costs` are measures of the solver model's use that become further objectives, less being better: `context_chars`,
    `prompt_chars`, `prompt_tokens`, `reply_tokens`, `model_calls`.
    """

    ladder: tuple[int, ...] = field(default=(), metadata=_range(1))
    gate_margin: float = field(default=0.05, metadata=_range(0))
    repeats: int = field(default=1, metadata=_range(1, 1000))
    fresh: bool = False
    recheck: int = field(default=4, metadata=_range(0))
    train_log: bool = True
    costs: tuple[str, ...] = ()
    infra_limit: int = field(default=3, metadata=_range(1))


@dataclass(frozen=True, slots=True)
class ModelCaps:
    """`[models.ROLE.budget]`: the most that one role may use in the whole search. `[budget.final]`: the most that the
    model calls of the final test may use."""

    calls: int | None = field(default=None, metadata=_range(0))
    tokens: int | None = field(default=None, metadata=_range(0))
    usd: float | None = field(default=None, metadata=_range(0))


@dataclass(frozen=True, slots=True)
class BudgetSection:
    """`[budget]`: the most the whole search may use; a missing key means no cap."""

    trials: int | None = field(default=None, metadata=_range(0))
    seconds: float | None = field(default=None, metadata=_range(0))
    calls: int | None = field(default=None, metadata=_range(0))
    tokens: int | None = field(default=None, metadata=_range(0))
    usd: float | None = field(default=None, metadata=_range(0))
    final: ModelCaps = ModelCaps()


@dataclass(frozen=True, slots=True)
class ModelSection:
    """`[models.ROLE]`: the model of a role such as `solver`, `proposer`, `judge` or `meta`, as `provider/name`.

    `temperature` and what stands in `extra` are pinned: no program can change them. `max_tokens` bounds every reply.
    `calls_per_trial` and `tokens_per_trial` are the allowance of a program in a trial, and of a proposer in an errand; more is
    its own failure. Without them a solver may make 64 calls per trial and others are bounded by budgets only. `input_price` and
    `output_price` are in US dollars per million tokens and replace the known ones.
    """

    model: str = ""
    temperature: float | None = field(default=None, metadata=_range(0, 2))
    max_tokens: int = field(default=1024, metadata=_range(1))
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = field(default=None, metadata=_range(0.001))
    retries: int = field(default=5, metadata=_range(0, 100))
    cache: bool = True
    calls_per_trial: int | None = field(default=None, metadata=_range(1))
    tokens_per_trial: int | None = field(default=None, metadata=_range(1))
    input_price: float | None = field(default=None, metadata=_range(0))
    output_price: float | None = field(default=None, metadata=_range(0))
    budget: ModelCaps = ModelCaps()


@dataclass(frozen=True, slots=True)
class ProviderSection:
    """`[providers.NAME]`: a place of models beside the known ones: its base address, the environment variable that holds
    the key (empty: none is needed) and the dialect it speaks."""

    base_url: str = ""
    key_env: str = ""
    dialect: Literal["openai", "anthropic"] = "openai"


@dataclass(frozen=True, slots=True)
class SandboxSection:
    """`[sandbox]`: the backend; `auto` takes the first that works and never `none`."""

    name: Literal["auto", "bubblewrap", "docker", "none"] = "auto"
    image: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """A checked configuration. `method_options` is the table named after the method, such as `[harness]`.

    `limits` holds only what the file overrides of `leadscrew.core.task.Limits`.
    """

    name: str
    run: RunSection = RunSection()
    domain: DomainSection = DomainSection()
    program: ProgramSection = ProgramSection()
    proposer: ProposerSection = ProposerSection()
    method_options: Mapping[str, Any] = field(default_factory=dict)
    evaluation: EvaluationSection = EvaluationSection()
    budget: BudgetSection = BudgetSection()
    sandbox: SandboxSection = SandboxSection()
    limits: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, ModelSection] = field(default_factory=dict)
    providers: Mapping[str, ProviderSection] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """The run folder."""
        return Path(self.run.out)

    @property
    def caps(self) -> Caps:
        """The budget as caps of the whole run."""
        b = self.budget
        return Caps(b.trials, b.seconds, b.calls, b.tokens, b.usd)

    def limits_over(self, base: Limits) -> Limits:
        """Return a domain's limits with this configuration's overrides."""
        return dataclasses.replace(base, **self.limits)
