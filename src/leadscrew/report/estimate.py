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
    }


def plans_of(method: Method) -> int | None:
    """Return how many plans a method asks for in all, the founding one included; None if it does not say."""
    settings = getattr(method, "settings", None)
    iterations = getattr(settings, "iterations", None)
    if iterations is None:
        return None
    return 1 + int(iterations) * (2 if getattr(settings, "confirm_repeats", 0) else 1)


def estimate_text(found: Mapping[str, Any]) -> str:
    """Say an estimate in three plain lines."""
    lines = [f"start: {found['founders']} programs on {found['val']} val instances, {found['trials_at_start']} trials"]
    if found["plans"]:
        low, high = found["trials_low"], found["trials_high"]
        total = f"between {low} and {high}" if low < high else f"at most {high}"
        lines.append(
            f"then:  {found['plans']} plans of {found['per_plan']}, {total} trials in all; fewer where answers are known "
            "or proposals fail their checks"
        )
    caps = ", ".join(f"{cap:g} {name}" for name, cap in found["caps"].items())
    lines.append(f"caps:  {caps or 'none'}; how long a trial takes is known only once the first have run")
    return "\n".join(lines)
