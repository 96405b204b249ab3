"""Exchange: put a donor's version of a function, method, class or constant in place of the base's."""

from __future__ import annotations

import ast

import libcst as cst

from leadscrew.operators.genetic.bring import (
    Brought,
    Clash,
    Pair,
    compatible,
    methods,
    parameters,
    place,
    renamed,
    settled,
    sweep,
)
from leadscrew.operators.genetic.moves.graft import offered, outside
from leadscrew.operators.genetic.names import facts
from leadscrew.operators.genetic.scene import Scene, Step
from leadscrew.operators.genetic.source import Piece


def exchange(scene: Scene) -> Step | None:
    """Replace a definition by a donor's: mostly the one of the same name, sometimes another that can be called alike.

    Of two classes of the same name either the whole or one method is taken, of others one method mostly. What the new
    code needs comes along. Collections that name definitions are left to `graft` and `drop`.
    """
    drawn = scene.choose_pair()
    if drawn is None:
        return None
    path, base, number, donor_path, donor = drawn
    share = scene.rng.random() < 0.5
    pair = Pair(base, path, donor, donor_path, scene.donors[number], scene, share)
    same = [
        (ours, theirs)
        for name, ours in base.named.items()
        if (theirs := donor.named.get(name))
        and theirs.kind == ours.kind
        and not ours.same(theirs)
        and not offered(base, donor, name)
        and not offered(donor, base, name)
    ]
    if not same or scene.rng.random() < 0.15:
        same = [
            (ours, theirs)
            for ours in base.named.values()
            for theirs in donor.named.values()
            if ours.name != theirs.name and ours.kind in ("def", "class") and compatible(ours.node, theirs.node)
        ]
    if not same:
        return None
    ours, theirs = scene.rng.choice(same)
    try:
        if ours.kind == "class" and scene.rng.random() < (0.5 if ours.name == theirs.name else 0.8):
            return _method(scene, pair, number, ours, theirs)
        return _whole(scene, pair, number, ours, theirs)
    except Clash:
        return None


def _whole(scene: Scene, pair: Pair, number: int, ours: Piece, theirs: Piece) -> Step | None:
    brought = pair.bring(theirs.facts.uses - {theirs.name}, keep=[ours.name, theirs.name])
    if ours.name in theirs.facts.inner and ours.name != theirs.name:
        raise Clash(ours.name)
    node = renamed(theirs.node, {**brought.renames, theirs.name: ours.name})
    called = theirs.name if ours.name == theirs.name else f"{theirs.name} as {ours.name}"
    return _finish(scene, pair, number, ours, pair.base.piece(node), brought, called)


def _method(scene: Scene, pair: Pair, number: int, ours: Piece, theirs: Piece) -> Step | None:
    assert isinstance(ours.node, cst.ClassDef)
    assert isinstance(theirs.node, cst.ClassDef)
    left, right = methods(ours.node), methods(theirs.node)
    code = {name: (pair.base.code(left[name]), pair.base.code(right[name])) for name in left if name in right}
    differ = [name for name, (a, b) in code.items() if ast.dump(ast.parse(a)) != ast.dump(ast.parse(b))]
    if not differ or not isinstance(ours.node.body, cst.IndentedBlock):
        return None
    name = scene.rng.choice(differ)
    extra = _helpers(name, left, right, pair)
    texts = [pair.base.code(right[n]) for n in (name, *extra)]
    needs = frozenset().union(*(facts(text).uses for text in texts))
    brought = pair.bring(needs, keep=[ours.name, theirs.name])
    if ours.name != theirs.name and theirs.name in needs:
        raise Clash(theirs.name)
    if any(facts(text).inner & brought.renames.keys() for text in texts):
        raise Clash(name)
    body = [renamed(right[name], brought.renames) if part is left[name] else part for part in ours.node.body.body]
    body += [renamed(right[n], brought.renames) for n in extra]
    node = ours.node.with_changes(body=ours.node.body.with_changes(body=body))
    return _finish(scene, pair, number, ours, pair.base.piece(node), brought, f"{theirs.name}.{name}", f".{name}")


def _helpers(name: str, left: dict[str, cst.FunctionDef], right: dict[str, cst.FunctionDef], pair: Pair) -> list[str]:
    """The donor's methods that the new method calls on its first parameter and that the base's class lacks."""
    queue, found = [name], [name]
    while queue:
        method = right[queue.pop()]
        first = next(iter(parameters(method)), "self")
        for node in ast.walk(ast.parse(pair.base.code(method))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == first:
                if node.attr in right and node.attr not in left and node.attr not in found:
                    found.append(node.attr)
                    queue.append(node.attr)
    return found[1:]


def _of_the_base(pieces: list[Piece], pair: Pair) -> bool:
    """Whether a definition is left that only the base has: else the result would be the donor under new names."""
    theirs = {piece.key for piece in pair.donor.pieces}
    old = [piece for piece in pieces if any(piece is own for own in pair.base.pieces)]
    return any(piece.name and piece.key not in theirs for piece in old)


def _finish(
    scene: Scene, pair: Pair, number: int, ours: Piece, new: Piece, brought: Brought, called: str, part: str = ""
) -> Step | None:
    pieces = place(pair.base, pair.base.pieces, ours, brought)
    pieces = settled(pair.base, pieces, ours, new)
    pieces = sweep(pair.base.pieces, pieces, outside(scene, pair.base_path))
    if not part and not _of_the_base(pieces, pair):
        return None
    what = "method" if part else ours.kind
    text = f"replace {what} {ours.name}{part} of {scene.labels[0]} by {called} of {scene.labels[number + 1]}"
    files = {pair.base_path: pair.base.render(pieces), **brought.files}
    return Step(files, text, frozenset([number]), (called,))
