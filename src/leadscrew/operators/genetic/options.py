"""The settings of the genetic proposer, as they stand in a plan's options."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from leadscrew.errors import ConfigError

MOVES: tuple[str, ...] = (
    "graft",
    "exchange",
    "drop",
    "constant",
    "operator",
    "statement",
    "lines",
    "compose",
)
WEIGHTS: Mapping[str, float] = {
    "graft": 8.0,
    "exchange": 2.0,
    "drop": 1.0,
    "constant": 3.0,
    "operator": 0.4,
    "statement": 0.4,
    "lines": 1.0,
    "compose": 2.0,
}


@dataclass(frozen=True, slots=True)
class Options:
    """How the genetic proposer works.

    `weights` are the relative chances of the moves; a move that does not apply to a base is drawn again. `credit` bends
    them by what the archive tells: moves whose children beat their base come more often. `tries` bounds the attempts at
    one proposal, `donors` the candidates it may take from. `max_bytes` is the size beyond which a program may not grow.
    Bases: a share `frontier` of them are members of the frontier, a share `any` any valid candidate, the rest wins a
    tournament of `tournament` valid candidates on val. A share `founders` of the donors comes from the founding plan.
    `line` names founding programs: then only these and what came of them are bases, whatever else competes.

    >>> Options.of({"tries": 5}).tries
    5
    """

    weights: Mapping[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    tries: int = 30
    donors: int = 3
    tournament: int = 3
    frontier: float = 0.25
    any: float = 0.15
    founders: float = 0.4
    line: tuple[str, ...] = ()
    max_bytes: int = 200_000
    credit: bool = True

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Options:
        """Read a mapping; raises `ConfigError` naming the key, what was given and what would do."""
        known = {f.name for f in fields(cls)}
        given = dict(data)
        for key in given:
            if key not in known:
                raise ConfigError(_unknown("option", key, known), key=key, value=given[key])
        for key in ("tries", "donors", "tournament", "max_bytes"):
            if key in given and (isinstance(given[key], bool) or not isinstance(given[key], int) or given[key] < 1):
                raise _bad(key, given[key], "a whole number from 1")
        for key in ("frontier", "any", "founders"):
            if key in given and not (_number(given[key]) and 0 <= given[key] <= 1):
                raise _bad(key, given[key], "a share between 0 and 1")
        if "credit" in given and not isinstance(given["credit"], bool):
            raise _bad("credit", given["credit"], "true or false")
        if "line" in given:
            line = given["line"]
            if isinstance(line, str) or not all(isinstance(name, str) for name in line):
                raise _bad("line", line, "a list of names of founding programs")
            given["line"] = tuple(line)
        if "weights" in given:
            given["weights"] = _weights(given["weights"])
        options = cls(**given)
        if options.frontier + options.any > 1:
            raise _bad("frontier", options.frontier, f"at most {1 - options.any:g}, as {options.any:g} goes to `any`")
        return options


def _weights(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise _bad("weights", value, "a table of move = weight")
    for move, weight in value.items():
        if move not in MOVES:
            raise ConfigError(_unknown("move", str(move), MOVES), key=f"weights.{move}", value=weight)
        if not _number(weight) or weight < 0:
            raise _bad(f"weights.{move}", weight, "a number from 0")
    merged = {**WEIGHTS, **{move: float(weight) for move, weight in value.items()}}
    if not any(merged[move] for move in MOVES if move != "compose"):
        raise _bad("weights", dict(value), "at least one move with a weight above 0")
    return merged


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unknown(what: str, key: str, known: Any) -> str:
    near = difflib.get_close_matches(key, sorted(known), 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(known))}."
    return f"the genetic proposer has no {what} {key!r}. {hint}"


def _bad(key: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"the genetic proposer's option {key} is {value!r}; write {wanted}.", key=key, value=value)
