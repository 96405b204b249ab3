"""Operator: swap one comparison, arithmetic or logical operator, or `min` and `max`."""

from __future__ import annotations

import libcst as cst

from leadscrew.operators.genetic.scene import Scene, Step
from leadscrew.operators.genetic.source import Source, walk

SWAPS: dict[type[cst.CSTNode], tuple[type[cst.CSTNode], ...]] = {
    cst.LessThan: (cst.LessThanEqual, cst.GreaterThan),
    cst.LessThanEqual: (cst.LessThan, cst.GreaterThanEqual),
    cst.GreaterThan: (cst.GreaterThanEqual, cst.LessThan),
    cst.GreaterThanEqual: (cst.GreaterThan, cst.LessThanEqual),
    cst.Equal: (cst.NotEqual,),
    cst.NotEqual: (cst.Equal,),
    cst.Add: (cst.Subtract,),
    cst.Subtract: (cst.Add,),
    cst.Multiply: (cst.Divide, cst.Add),
    cst.Divide: (cst.Multiply,),
    cst.FloorDivide: (cst.Divide,),
    cst.AddAssign: (cst.SubtractAssign,),
    cst.SubtractAssign: (cst.AddAssign,),
    cst.MultiplyAssign: (cst.DivideAssign,),
    cst.DivideAssign: (cst.MultiplyAssign,),
    cst.And: (cst.Or,),
    cst.Or: (cst.And,),
}
NAMES = {"min": "max", "max": "min"}


def operator(scene: Scene) -> Step | None:
    """Swap one operator inside a function or class for a related one, spacing kept."""
    chosen = scene.choose()
    if chosen is None:
        return None
    path, source = chosen
    pieces = [piece for piece in source.pieces if piece.kind in ("def", "class", "other", "const")]
    if not pieces:
        return None
    piece = scene.rng.choices(pieces, [len(p.text) for p in pieces])[0]
    sites: list[cst.CSTNode] = []
    for node, parent in walk(piece.node):
        called = isinstance(parent, cst.Call) and parent.func is node
        if type(node) in SWAPS or (called and isinstance(node, cst.Name) and node.value in NAMES):
            sites.append(node)
    if not sites:
        return None
    old = scene.rng.choice(sites)
    new = _swapped(scene, old)
    changed = source.piece(piece.node.deep_replace(old, new))  # type: ignore[arg-type]
    where = piece.name or "a top-level statement"
    text = f"in {where} of {scene.labels[0]}, {_sign(source, old)} becomes {_sign(source, new)}"
    return Step({path: source.render(source.replaced(piece, changed))}, text, components=(where,))


def _swapped(scene: Scene, node: cst.CSTNode) -> cst.CSTNode:
    if isinstance(node, cst.Name):
        return node.with_changes(value=NAMES[node.value])
    kind = scene.rng.choice(SWAPS[type(node)])
    return kind(whitespace_before=node.whitespace_before, whitespace_after=node.whitespace_after)  # type: ignore


def _sign(source: Source, node: cst.CSTNode) -> str:
    return source.code(node).strip()
