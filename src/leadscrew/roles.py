"""Which model answers which role: from the configuration to the gateway, checked before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadscrew.config import Config
from leadscrew.config.sections import ModelCaps, ModelSection
from leadscrew.core.budget import Caps
from leadscrew.core.call import Call, CallReply, Pin
from leadscrew.core.canonical import digest_of
from leadscrew.errors import ConfigError
from leadscrew.ports import Access

if TYPE_CHECKING:
    from leadscrew.adapters.models.prices import Price

SOLVER = "solver"
JUDGE = "judge"
SCORING = (SOLVER, JUDGE)
"""Roles whose model can change a score: their pins are part of the key of every trial."""
TIMEOUT_S, LOCAL_TIMEOUT_S = 120.0, 600.0
"""Seconds of one attempt where the configuration does not say. One processor reads a long prompt for minutes."""
CALLS_PER_TRIAL = 64
"""What a program may call in one trial where the configuration does not say."""


def pins(config: Config) -> dict[str, Pin]:
    """Return the pinned model and parameters of each role.

    >>> from leadscrew.config import config_from
    >>> pins(config_from({"domain": {"name": "docstrings"}, "models": {"solver": "local/smollm2"}}))["solver"].model
    'local/smollm2'
    """
    return {
        role: Pin(role, section.model, section.temperature, section.max_tokens, section.extra)
        for role, section in config.models.items()
    }


def scoring_digest(config: Config) -> str:
    """Return the digest of the pins that can change a score; empty without a model."""
    known = pins(config)
    chosen = {role: known[role].digest for role in SCORING if role in known}
    return digest_of(chosen) if chosen else ""


def solver_access(config: Config) -> Access | None:
    """Return the right of evaluated programs to call the solver model; None if the run gives them none."""
    return access(config, SOLVER) if SOLVER in config.models else None


def access(config: Config, role: str) -> Access:
    """Return the right to call the model of a role, with the allowance of one trial or errand."""
    section = config.models[role]
    calls = section.calls_per_trial
    if calls is None and role == SOLVER:
        calls = CALLS_PER_TRIAL
    return Access(role, allowance=Caps(calls=calls, tokens=section.tokens_per_trial))


@dataclass(frozen=True, slots=True)
class CapsInForce:
    """The caps of a run: of the whole search, of each role's model in it, and of the final test's model calls."""

    run: Caps
    roles: Mapping[str, Caps]
    final: Caps


FINAL = "final"
"""The scope of the caps on the final test's model calls."""


def caps_in_force(config: Config, given: Iterable[Mapping[str, Any]] = ()) -> CapsInForce:
    """Return the caps as the configuration has them, overlaid by those `given` since, the newest last: names and values, and
    the `scope` they hold for: a role, `FINAL`, or none for the whole search."""
    changes: dict[str, dict[str, Any]] = {}
    for data in given:
        scope = changes.setdefault(str(data.get("scope", "")), {})
        scope.update({name: cap for name, cap in data.items() if name != "scope"})
    return CapsInForce(
        replace(config.caps, **changes.get("", {})),
        {r: replace(_caps(section.budget), **changes.get(r, {})) for r, section in config.models.items()},
        replace(_caps(config.budget.final), **changes.get(FINAL, {})),
    )


def _caps(section: ModelCaps) -> Caps:
    return Caps(calls=section.calls, tokens=section.tokens, usd=section.usd)


def price(config: Config, role: str) -> Price | None:
    """Return what a role's model costs, None where nobody knows."""
    from leadscrew.adapters.models.prices import price_of
    from leadscrew.adapters.models.providers import Provider, find

    section = config.models[role]
    own = in_process(section.model)
    provider, name = (Provider("", "", local=True), "") if own else find(section.model, providers(config))
    return price_of(provider, name, input_price=section.input_price, output_price=section.output_price)


def providers(config: Config) -> dict[str, dict[str, str]]:
    """Return the user's own providers as plain tables."""
    return {name: asdict(section) for name, section in config.providers.items()}


def workers(config: Config) -> int:
    """Return how many boxes work at once where the configuration does not say: one per processor, and at least 8 where
    they mostly wait for a model elsewhere."""
    processors = os.cpu_count() or 1
    elsewhere = SOLVER in config.models and not in_process(config.models[SOLVER].model)
    return max(processors, 8) if elsewhere else processors


def in_process(model: str) -> bool:
    """Whether a model belongs to the engine's process rather than to a provider.

    >>> in_process("local/smollm2"), in_process("openai/gpt-5-mini")
    (True, False)
    """
    return model.partition("/")[0] in ("local", "scripted")


def check_models(config: Config, caps: CapsInForce, environ: Mapping[str, str] | None = None) -> None:
    """Raise `ConfigError` for a model that cannot be asked now, a run to replay that is not there, and a cap on what nothing
    could count."""
    environ = os.environ if environ is None else environ
    if config.run.replay and not (Path(config.run.replay) / "run.db").is_file():
        raise ConfigError(
            f"run.replay = {config.run.replay!r} is no run folder: there is no file run.db in it. Name the folder of the run "
            "whose model replies are to be used, or remove the key.",
            key="run.replay",
            value=config.run.replay,
        )
    for name in ("usd", "calls", "tokens"):
        set_here = getattr(caps.run, name) is not None or getattr(caps.final, name) is not None
        if set_here and not config.models:
            raise ConfigError(
                f"a cap on {name} is set (budget.{name}), but no model is configured whose spending could be counted. Remove "
                'it, or write [models.solver] with model = "provider/name".',
                key=f"budget.{name}",
            )
    for role, section in config.models.items():
        _check_role(config, role, section, caps, environ)


def _check_role(
    config: Config, role: str, section: ModelSection, caps: CapsInForce, environ: Mapping[str, str]
) -> None:
    capped = any(scope.usd is not None for scope in (caps.run, caps.roles[role], caps.final))
    if in_process(section.model):
        return
    from leadscrew.adapters.models.providers import find

    provider, _ = find(section.model, providers(config))
    if provider.key_env and not environ.get(provider.key_env) and not config.run.replay:
        raise ConfigError(
            f"models.{role}.model = {section.model!r} needs the key of {provider.name} in the environment variable "
            f"{provider.key_env}, which is not set. Set it, or choose another model: 'leadscrew models' lists them.",
            key=f"models.{role}.model",
            value=section.model,
        )
    if capped and price(config, role) is None:
        raise ConfigError(
            f"a cap in US dollars is set, but the price of {section.model!r} (models.{role}) is not known, so the cap could "
            f"not be kept. Write models.{role}.input_price and models.{role}.output_price in dollars per million tokens, "
            "or cap tokens instead.",
            key=f"models.{role}.input_price",
        )


def facts(config: Config) -> dict[str, Any]:
    """Return what the certificate says of each role: its model and its pinned parameters."""
    return {
        role: {
            "model": pin.model,
            "temperature": pin.temperature,
            "max_tokens": pin.max_tokens,
            **({"extra": dict(pin.extra)} if pin.extra else {}),
        }
        for role, pin in pins(config).items()
    }


def prompt_and_response(config: Config, call: Call, reply: CallReply | None) -> tuple[str, str]:
    """Return a recorded request and its reply as text: what the model read, and what it said."""
    from leadscrew.adapters.models.dialects import DIALECTS, OPENAI, Dialect
    from leadscrew.adapters.models.providers import find

    dialect: Dialect = OPENAI
    if not in_process(call.model):
        try:
            dialect = DIALECTS[find(call.model, providers(config))[0].dialect]
        except ConfigError:
            # A provider that the configuration no longer names: most speak this form.
            dialect = OPENAI
    return dialect.prompt(call.body), dialect.text(reply.body) if reply and reply.body else ""
