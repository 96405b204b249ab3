"""Attacks by what a program answers: no numbers, huge numbers, deep JSON, wrong types, packings that cheat."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from leadscrew.core.task import Answer, Instance
from leadscrew.core.trial import Outcome
from leadscrew.ports import BadAnswer, Domain
from leadscrew.testing.redteam.arena import Arena, Play
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.lookups import docstrings

RETURN = '''
import json, os, sys

def solve(input):
    """Return the value, and where a harness reads lines, write it as a line first."""
    value = eval(input["value"])
    if input["line"]:
        os.write(1, ('{"key": "t0", "answer": ' + eval(input["line"]) + "}\\n").encode())
    return value
'''


async def _returned(arena: Arena, value: str, line: str = "") -> Play:
    return await arena.play(RETURN, [{"value": value, "line": "" if arena.defended else line}], off="naive")


async def _nan(arena: Arena) -> Sighting:
    play = await _returned(arena, "float('nan')")
    value = play.answers[0]
    return Sighting(isinstance(value, float) and math.isnan(value), f"{play.outcomes[0]}: {value!r} was taken")


async def _infinity(arena: Arena) -> Sighting:
    play = await _returned(arena, "[1, {'best': float('inf')}]")
    return Sighting("inf" in repr(play.answers[0]), f"{play.outcomes[0]}: {play.answers[0]!r} was taken")


async def _overflow(arena: Arena) -> Sighting:
    """A number that is written as digits but read as infinity."""
    play = await _returned(arena, "float('1e400')", "'1e400'")
    return Sighting(play.answers[0] == math.inf, f"{play.outcomes[0]}: {play.answers[0]!r} was taken")


async def _integer(arena: Arena) -> Sighting:
    """So many digits that a host which reads them raises, or takes very long."""
    play = await _returned(arena, "1 << 60000", "'9' * 20000")
    return Sighting(play.replies[0].outcome is Outcome.OK, f"{play.outcomes[0]} {play.replies[0].message[:80]}")


async def _deep(arena: Arena) -> Sighting:
    """So deep that a host which reads it runs out of stack."""
    build = "__import__('functools').reduce(lambda x, _: [x], range(900), 1)"
    play = await _returned(arena, build, "'[' * 90000 + ']' * 90000")
    return Sighting(play.replies[0].outcome is Outcome.OK, f"{play.outcomes[0]} {play.replies[0].message[:80]}")


async def _surrogate(arena: Arena) -> Sighting:
    """Half a character: a text that no file and no database takes."""
    play = await _returned(arena, "'\\ud800'")
    try:
        json.dumps(play.answers, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return Sighting(True, f"{play.outcomes[0]}: the host cannot store it ({error.reason})")
    return Sighting(False, f"{play.outcomes[0]} {play.replies[0].message[:80]}")


async def _keys(arena: Arena) -> Sighting:
    """A mapping whose keys turn into the same text: the host would see another answer than the program gave."""
    play = await _returned(arena, "{1: 'a', '1': 'b', None: 'c'}")
    return Sighting(play.replies[0].outcome is Outcome.OK, f"{play.outcomes[0]}: {play.answers[0]!r}")


WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 10**300, 1.5, "", "x" * 100_000, [], [[]], [None] * 26, {}, {"label": "x"}, [["a", "b", "c"]] * 26,
    [[0.5, 0.5]] * 26, [[0.5, 0.5, True]] * 26, [[10**400, 0, 0]] * 26, "\0", "\ud800", [{"x": 1}] * 26, {"files": {"..": "x"}},
)  # fmt: skip
"""Answers of other types than any domain asked for."""


def judge(domain: Domain, instance: Instance, value: Any) -> float | None:
    """Score a value as the engine would: None where the domain calls it a bad answer."""
    try:
        score = domain.score(instance, Answer(value))
    except BadAnswer:
        return None
    return score.value


def _naive_label(instance: Instance, value: Any) -> float:
    return float(value.strip().lower() == instance.expected.lower())


async def _types(arena: Arena) -> Sighting:
    """No answer may make a scorer raise, nor win: only `BadAnswer`, or a score of nothing."""
    from leadscrew.domains.circle_packing import CirclePacking

    for domain in (docstrings(), CirclePacking()):
        instance = domain.instances("val")[0]
        for value in WRONG:
            try:
                got = judge(domain, instance, value) if arena.defended else _naive_label(instance, value)
            except Exception as error:  # any other error is what the attack wants
                return Sighting(True, f"{domain.name}: {str(value)[:40]!r} raised {type(error).__name__}")
            if got is not None and not got <= 0:
                return Sighting(True, f"{domain.name}: {str(value)[:40]!r} scored {got}")
    return Sighting(False, f"{len(WRONG)} values are bad answers or score nothing")


def _naive_packing(circles: Sequence[Sequence[float]]) -> float:
    """Check as many do: by floats, with a tolerance, looking for what is wrong instead of what is right."""
    for i, (x, y, r) in enumerate(circles):
        if x - r < -1e-6 or y - r < -1e-6 or x + r > 1 + 1e-6 or y + r > 1 + 1e-6:
            return 0.0
        for u, v, s in circles[:i]:
            if math.hypot(x - u, y - v) < r + s - 1e-6:
                return 0.0
    return sum(r for _, _, r in circles)


def cheats(n: int = 26) -> list[list[list[float]]]:
    """Return packings that cheat: no numbers, a negative radius that makes room, an overlap too small to see, too many."""
    nan = math.nan
    side = 1 / 6
    grid = [[side * (i % 6 + 0.5), side * (i // 6 + 0.5), side / 2] for i in range(n)]
    overlap = [[x, y, r + 4e-7] for x, y, r in grid]
    return [
        [[nan, nan, 5.0]] * n,
        [[0.5, 0.5, nan]] * n,
        overlap,
        [[0.5, 0.5, 0.5], *[[0.5, 0.5, -0.5]] * (n - 1)],
        [*grid, *grid],
        [[0.5, 0.5, 0.0]] * (n - 1) + [[0.5, 0.5, 1e308]],
    ]


async def _packing(arena: Arena) -> Sighting:
    from leadscrew.domains.circle_packing import CirclePacking

    domain = CirclePacking()
    instance = domain.instances("val")[0]
    for cheat in cheats():
        value = judge(domain, instance, cheat) if arena.defended else _naive_packing(cheat)
        if value is not None and not value <= 0:
            return Sighting(True, f"{cheat[-1]!s} among others scored {value}")
    return Sighting(False, f"{len(cheats())} packings that cheat are bad answers")


def _attack(name: str, about: str, defence: str, strike: Any) -> Attack:
    return Attack(f"answer/{name}", "answer", about, defence, strike)


ATTACKS = (
    _attack("nan", "answer with no number", "finite numbers only", _nan),
    _attack("infinity", "answer with infinity, deep inside", "finite numbers only", _infinity),
    _attack("overflow", "answer with a number that overflows", "finite numbers only", _overflow),
    _attack("integer", "answer with an integer of many digits", "bounded integers", _integer),
    _attack("deep", "answer with deep JSON", "bounded depth", _deep),
    _attack("surrogate", "answer with half a character", "checked text", _surrogate),
    _attack("keys", "answer with keys that become one", "text keys only", _keys),
    _attack("types", "answer with every wrong type", "scorers that check", _types),
    _attack("packing", "answer with packings that cheat", "exact checks", _packing),
)
