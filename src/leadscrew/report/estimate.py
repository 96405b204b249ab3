"""What a run may take, before it starts: trials as a range, time only as far as anything is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from leadscrew.config import Config
from leadscrew.policies.ladder import rung_sizes
from leadscrew.ports import Domain, Method


def estimate(config: Config, domain: Domain, method: Method) -> dict[str, Any]:
    """Return the trials that a run would take, from `trials_low` to `trials_high`, and what they are made of.

    The low end is every proposal leaving the ladder on its first rung. `plans` and `per_plan` are 0 where the method
    does not say how often it asks, or for how many. The test split stays unread: what `finalize` takes is not in it.
    """
    e = config.evaluation
    val = len(domain.instances("val"))
    logs = domain.interface.operation == "predict" and domain.interface.mode == "online" and e.train_log
    train = len(domain.instances("train")) if logs else 0
    baselines = domain.baselines()
    own = bool(config.program.path) or domain.seed() not in set(baselines.values())
    founders = own + len(set(baselines.values()))
    settings = getattr(method, "settings", None)
    plans, per_plan = getattr(settings, "iterations", 0), getattr(settings, "candidates", 0)
    rungs = rung_sizes(val, e.ladder)
    start = founders * (val * e.repeats + train)
    low = plans * per_plan * (rungs[0] * e.repeats + train) if rungs else 0
    return {
        "run": config.run.out,
        "founders": founders,
        "val": val,
        "train_log": train,
        "plans": plans,
        "per_plan": per_plan,
        "trials_at_start": start,
        "trials_low": start + low,
        "trials_high": start + plans * per_plan * (val * e.repeats + train),
        "caps": {name: cap for name, cap in asdict(config.caps).items() if cap is not None},
        "seconds": None,
        "models": _models(config, domain, start + plans * per_plan * (val * e.repeats + train)),
    }


def _models(config: Config, domain: Domain, trials: int) -> dict[str, Any]:
    """What the models of a run cost, role by role, as far as it can be known. `calls` is one per trial for the solver: how
    often a program asks is its own choice, up to `allowance` per trial. `usd_least` counts the inputs alone at four
    characters a token, `usd_full` adds replies of full length; demonstrations in a prompt cost more."""
    from leadscrew.roles import access, price

    val = domain.instances("val")
    chars = sum(len(str(i.input)) for i in val) / len(val) if val else 0.0
    tokens = int(chars / 4) + 1
    found: dict[str, Any] = {}
    for role, section in config.models.items():
        cost = price(config, role)
        row: dict[str, Any] = {
            "model": section.model,
            "input_price": None if cost is None else cost.input,
            "output_price": None if cost is None else cost.output,
            "allowance": access(config, role).allowance.calls,
            "caps": {name: cap for name, cap in asdict(section.budget).items() if cap is not None},
        }
        if role == "solver":
            row["calls"] = trials
            row["tokens_least"] = trials * tokens
            row["usd_least"] = cost.micro_usd(trials * tokens, 0) / 1e6 if cost is not None else None
            row["usd_full"] = (
                cost.micro_usd(trials * tokens, trials * section.max_tokens) / 1e6 if cost is not None else None
            )
        found[role] = row
    return found


def plans_of(method: Method) -> int | None:
    """Return how many plans a method asks for in all, the founding one included; None if it does not say."""
    settings = getattr(method, "settings", None)
    iterations = getattr(settings, "iterations", None)
    if iterations is None:
        return None
    return 1 + int(iterations) * (2 if getattr(settings, "confirm_repeats", 0) else 1)


def estimate_text(found: Mapping[str, Any]) -> str:
    """Say an estimate in a few plain lines."""
    lines = [f"start: {found['founders']} programs on {found['val']} val instances, {found['trials_at_start']} trials"]
    if found["plans"]:
        low, high = found["trials_low"], found["trials_high"]
        total = f"between {low} and {high}" if low < high else f"at most {high}"
        lines.append(
            f"then:  {found['plans']} plans of {found['per_plan']}, {total} trials in all; fewer where answers are known "
            "or proposals fail their checks"
        )
    caps = ", ".join(f"{cap:g} {name}" for name, cap in found["caps"].items())
    lines += [f"model: {_model_line(role, row)}" for role, row in found.get("models", {}).items()]
    lines.append(f"caps:  {caps or 'none'}; how long a trial takes is known only once the first have run")
    return "\n".join(lines)


def _model_line(role: str, row: Mapping[str, Any]) -> str:
    text = f"{role} is {row['model']}"
    if row["input_price"] is None:
        text += ", at an unknown price"
    elif not row["input_price"] and not row["output_price"]:
        text += ", free of charge"
    else:
        text += f", {row['input_price']:g} USD per million tokens in and {row['output_price']:g} out"
    if "calls" in row:
        text += f"; with one call per trial up to {row['calls']} calls"
        if row["usd_full"]:
            text += (
                f", {row['usd_least']:.2f} USD for the inputs alone, {row['usd_full']:.2f} with replies of full length"
            )
    caps = ", ".join(f"{cap:g} {name}" for name, cap in row["caps"].items())
    return text + (f"; capped at {caps}" if caps else "; without a cap of its own")
