"""Statement: delete, duplicate or move one simple statement within its block."""

from __future__ import annotations

import libcst as cst

from leadscrew.operators.genetic.scene import Scene, Step
from leadscrew.operators.genetic.source import walk

_ENDS = (cst.Return, cst.Raise, cst.Break, cst.Continue, cst.Pass)


def statement(scene: Scene) -> Step | None:
    """Change the order or number of simple statements in one indented block; docstrings and module level stay."""
    chosen = scene.choose()
    if chosen is None:
        return None
    path, source = chosen
    pieces = [piece for piece in source.pieces if piece.kind in ("def", "class", "other")]
    if not pieces:
        return None
    piece = scene.rng.choices(pieces, [len(p.text) for p in pieces])[0]
    sites: list[tuple[cst.IndentedBlock, int]] = []
    for node, _ in walk(piece.node):
        if isinstance(node, cst.IndentedBlock) and len(node.body) > 1:
            sites += [(node, i) for i, part in enumerate(node.body) if _simple(part) and not _ends(part)]
    if not sites:
        return None
    block, index = scene.rng.choice(sites)
    body = list(block.body)
    old = body[index]
    assert isinstance(old, cst.SimpleStatementLine)
    kind = scene.rng.choice(("delete", "duplicate", "move"))
    if kind == "delete":
        del body[index]
    elif kind == "duplicate":
        body.insert(index + 1, old.deep_clone())
    else:
        places = [i for i, part in enumerate(body) if i != index and (i > 0 or _simple(part))]
        if not places:
            return None
        body.insert(scene.rng.choice(places), body.pop(index))
    changed = source.piece(piece.node.deep_replace(block, block.with_changes(body=body)))  # type: ignore[arg-type]
    where = piece.name or "a top-level statement"
    text = f"{kind} the statement `{_short(source.code(old))}` in {where} of {scene.labels[0]}"
    return Step({path: source.render(source.replaced(piece, changed))}, text, components=(where,))


def _simple(part: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
    if not isinstance(part, cst.SimpleStatementLine) or not part.body:
        return False
    first = part.body[0]
    return not (isinstance(first, cst.Expr) and isinstance(first.value, (cst.SimpleString, cst.ConcatenatedString)))


def _ends(part: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
    # Without its last return or break a block hardly ever does anything of use.
    return isinstance(part, cst.SimpleStatementLine) and isinstance(part.body[-1], _ENDS)


def _short(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= 60 else line[:57] + "..."
