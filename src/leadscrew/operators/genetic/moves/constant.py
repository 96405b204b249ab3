"""Constant: perturb a few numbers and switches, or take a short text constant from a donor."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import libcst as cst

from leadscrew.operators.genetic.scene import Scene, Step
from leadscrew.operators.genetic.source import Piece, Source, Statement, parse

LARGEST = 1_000_000


def constant(scene: Scene) -> Step | None:
    """Change one to three constants of a file: numbers a little, switches to their opposite.

    Numbers in module-level assignments are eight times as likely as others. Short strings of module-level assignments
    are exchanged with a donor's of the same name.
    """
    chosen = scene.choose()
    if chosen is None:
        return None
    path, source = chosen
    if scene.donors and scene.rng.random() < 0.15:
        step = _text(scene, path, source)
        if step is not None:
            return step
    sites = [(piece, node) for piece in source.pieces for node in piece.numbers]
    new: dict[Piece, dict[int, cst.CSTNode]] = {}
    said: list[str] = []
    for _ in range(min(len(sites), scene.rng.choice((1, 1, 2, 3)))):
        at = scene.rng.choices(range(len(sites)), [8.0 if piece.kind == "const" else 1.0 for piece, _ in sites])[0]
        piece, node = sites.pop(at)
        value = perturbed(node, scene.rng)
        if value is not None:
            new.setdefault(piece, {})[id(node)] = value
            said.append(f"{piece.name or 'a top-level statement'}: {source.code(node)} to {source.code(value)}")
    if not new:
        return None
    pieces = [source.piece(_replaced(piece.node, new[piece])) if piece in new else piece for piece in source.pieces]
    names = tuple(sorted({text.split(":")[0] for text in said}))
    text = f"change constants of {scene.labels[0]} ({'; '.join(said)})"
    return Step({path: source.render(pieces)}, text, components=names)


def _replaced(node: Statement, new: Mapping[int, cst.CSTNode]) -> Statement:
    class Replace(cst.CSTTransformer):
        def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore
            return new.get(id(original_node), updated_node)

    return node.visit(Replace())  # type: ignore[return-value]


def perturbed(node: cst.CSTNode, rng: random.Random) -> cst.CSTNode | None:
    """Return a changed number (within a factor of 4) or switch; None if there is none in a sane range.

    Signs stay, as a literal carries none; 0 and whole numbers from 1 stay apart but for a rare step between 0 and 1.
    """
    if isinstance(node, cst.Name):
        return node.with_changes(value="False" if node.value == "True" else "True")
    if isinstance(node, cst.Integer):
        old = int(node.evaluated_value)
        if old > LARGEST:
            return None
        kind = rng.random()
        if old == 0:
            new = 1
        elif kind < 0.5:
            new = old + rng.choice((-1, 1))
        elif kind < 0.8:
            new = rng.choice((old * 2, max(1, old // 2)))
        else:
            new = max(1, round(old * math.exp(rng.gauss(0, 0.3))))
        if old > 1:
            new = max(1, new)
        return None if new == old else node.with_changes(value=str(new))
    assert isinstance(node, cst.Float)
    value = float(node.evaluated_value)
    if value == 0:
        changed = rng.choice((0.01, 0.1))
    elif not math.isfinite(value):
        return None
    else:
        factor = min(4.0, max(0.25, math.exp(rng.gauss(0, 0.5))))
        changed = value * factor
        if 0 < value < 1 and changed > 1:
            changed = (1 + value) / 2
    text = repr(float(f"{changed:.3g}"))
    return None if float(text) == value or not math.isfinite(float(text)) else node.with_changes(value=text)


def _text(scene: Scene, path: str, source: Source) -> Step | None:
    number = scene.rng.randrange(len(scene.donors))
    file = scene.donors[number].get(path)
    donor = parse(file.data) if file is not None else None
    if donor is None:
        return None
    pairs = [
        (ours, theirs)
        for name, ours in source.named.items()
        if (theirs := donor.named.get(name)) and _short(ours) and _short(theirs) and not ours.same(theirs)
    ]
    if not pairs:
        return None
    ours, theirs = scene.rng.choice(pairs)
    pieces = source.replaced(ours, source.piece(theirs.node))
    text = f"take the text of {ours.name} from {scene.labels[number + 1]} into {scene.labels[0]}"
    return Step({path: source.render(pieces)}, text, frozenset([number]), (ours.name,))


def _short(piece: Piece) -> bool:
    small = piece.node.body[0] if isinstance(piece.node, cst.SimpleStatementLine) else None
    value = small.value if isinstance(small, (cst.Assign, cst.AnnAssign)) else None
    return isinstance(value, cst.SimpleString) and len(value.value) <= 120 and "\n" not in value.value
