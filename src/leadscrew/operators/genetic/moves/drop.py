"""Drop: take an element out of a collection, with the definitions that only it used."""

from __future__ import annotations

import re

from leadscrew.operators.genetic.bring import sweep
from leadscrew.operators.genetic.moves.graft import outside
from leadscrew.operators.genetic.scene import Scene, Step
from leadscrew.operators.genetic.source import entries, entry_text, entry_uses, with_literal, without

_PRIVATE = re.compile(r"_[^_]\w*|\w+_\d+")


def drop(scene: Scene) -> Step | None:
    """Remove one element that names a definition from a collection of two or more; rarely an unused definition.

    Unused definitions go only if their name starts with an underscore or ends as a renamed copy's does (`_2`): others
    may be used from outside.
    """
    chosen = scene.choose()
    if chosen is None:
        return None
    path, source = chosen
    lists = [
        piece
        for piece in source.named.values()
        if piece.literal is not None
        and len(entries(piece.literal)) > 1
        and any(entry_uses(entry) & source.definers.keys() for entry in entries(piece.literal))
    ]
    if not lists or scene.rng.random() < 0.1:
        used = frozenset().union(*(p.facts.uses - {p.name} for p in source.pieces)) | outside(scene, path)
        unused = [p for p in source.named.values() if p.name not in used and _PRIVATE.fullmatch(p.name)]
        if not unused:
            return None
        gone = scene.rng.choice(unused)
        kept = sweep(source.pieces, [p for p in source.pieces if p is not gone], outside(scene, path))
        return Step(
            {path: source.render(kept)}, f"drop the unused {gone.name} from {scene.labels[0]}", components=(gone.name,)
        )
    piece = scene.rng.choice(lists)
    assert piece.literal is not None
    old = entries(piece.literal)
    index = scene.rng.choice([i for i, entry in enumerate(old) if entry_uses(entry) & source.definers.keys()])
    what = entry_text(old[index])
    new = with_literal(piece, source, without(piece.literal, index))
    pieces = sweep(source.pieces, source.replaced(piece, new), outside(scene, path))
    return Step(
        {path: source.render(pieces)}, f"drop {what} from {piece.name} of {scene.labels[0]}", components=(what,)
    )
