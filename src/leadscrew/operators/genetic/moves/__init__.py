"""The moves: each takes a scene and returns a step, or None where it does not apply to what was drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leadscrew.operators.genetic.moves.constant import constant
from leadscrew.operators.genetic.moves.drop import drop
from leadscrew.operators.genetic.moves.exchange import exchange
from leadscrew.operators.genetic.moves.graft import graft
from leadscrew.operators.genetic.moves.lines import lines
from leadscrew.operators.genetic.moves.operator import operator
from leadscrew.operators.genetic.moves.statement import statement
from leadscrew.operators.genetic.scene import Scene, Step

SIMPLE: Mapping[str, Callable[[Scene], Step | None]] = {
    "graft": graft,
    "exchange": exchange,
    "drop": drop,
    "constant": constant,
    "operator": operator,
    "statement": statement,
    "lines": lines,
}
