"""Graft: bring what the base lacks from a donor, and enter it into the collection of the same name."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from leadscrew.operators.genetic.bring import Clash, Pair, place, renamed, settled, sweep
from leadscrew.operators.genetic.scene import Scene, Step
from leadscrew.operators.genetic.source import (
    Entry,
    Piece,
    Source,
    appended,
    entries,
    entry_key,
    entry_text,
    entry_uses,
    with_literal,
    without,
)


def graft(scene: Scene) -> Step | None:
    """Add elements of a donor's module-level collection that name definitions, with all that these need.

    Mostly one element, sometimes the union of both collections, sometimes in place of an element of the base. Where no
    collection has anything to give, rarely one definition that the base lacks is brought as material for later
    moves.
    """
    offers: dict[str, list[Entry]] = {}
    # A second and third look, as the donor drawn first may have nothing that the base lacks.
    for _ in range(3):
        drawn = scene.choose_pair()
        if drawn is None:
            return None
        path, base, number, donor_path, donor = drawn
        offers = {name: lacking for name in base.named if (lacking := offered(base, donor, name))}
        if offers:
            break
    pair = Pair(base, path, donor, donor_path, scene.donors[number], scene, share=scene.rng.random() < 0.5)
    try:
        if not offers:
            return _loose(scene, pair, number)
        name = scene.rng.choice(sorted(offers))
        lacking = offers[name]
        whole = len(lacking) > 1 and scene.rng.random() < 0.25
        chosen = lacking if whole else [scene.rng.choice(lacking)]
        swap = not whole and len(entries_of(base, name)) > 1 and scene.rng.random() < 0.2
        return enter(scene, pair, number, name, chosen, swap)
    except Clash:
        return None


def entries_of(source: Source, name: str) -> list[Entry]:
    """Return the elements of the collection called `name`; empty if there is none."""
    piece = source.named.get(name)
    literal = piece.literal if piece is not None else None
    return list(entries(literal)) if literal is not None else []


def offered(base: Source, donor: Source, name: str) -> list[Entry]:
    """Return the donor's elements of a collection that the base's lacks and that name a definition of the donor."""
    ours, theirs = base.named.get(name), donor.named.get(name)
    if ours is None or theirs is None or ours.literal is None or type(ours.literal) is not type(theirs.literal):
        return []
    held = {entry_key(e) for e in entries_of(base, name) if isinstance(e, (cst.Element, cst.DictElement))}
    return [
        entry
        for entry in entries_of(donor, name)
        if isinstance(entry, (cst.Element, cst.DictElement))
        and entry_key(entry) not in held
        and entry_uses(entry) & donor.definers.keys()
    ]


def enter(scene: Scene, pair: Pair, number: int, name: str, chosen: list[Entry], swap: bool) -> Step:
    """Bring what the elements need, add them to the collection (in place of one of its elements if `swap`)."""
    base = pair.base
    names = frozenset().union(*(entry_uses(entry) for entry in chosen))
    brought = pair.bring(names, keep=[name])
    piece = base.named[name]
    gone = ""
    current: Piece = piece
    if swap:
        assert piece.literal is not None
        index = scene.rng.randrange(len(entries(piece.literal)))
        gone = entry_text(entries(piece.literal)[index])
        current = with_literal(piece, base, without(piece.literal, index))
    for entry in chosen:
        assert current.literal is not None
        fresh = entry.deep_clone() if not brought.renames else _renamed_entry(entry, brought.renames)
        current = with_literal(current, base, appended(current.literal, fresh))
    pieces = place(base, base.pieces, piece, brought)
    pieces = settled(base, pieces, piece, current)
    if swap:
        pieces = sweep(base.pieces, pieces, outside(scene, pair.base_path))
    what = ", ".join(entry_text(entry) for entry in chosen)
    label, donor = scene.labels[0], scene.labels[number + 1]
    text = f"bring {what} of {donor} into {label} and add it to {name}" + (f" in place of {gone}" if gone else "")
    if brought.renames:
        text += " (" + ", ".join(f"{old} becomes {new}" for old, new in sorted(brought.renames.items())) + ")"
    files = {pair.base_path: base.render(pieces), **brought.files}
    return Step(files, text, frozenset([number]), tuple(sorted(entry_text(entry) for entry in chosen)))


def outside(scene: Scene, path: str) -> frozenset[str]:
    """Return every name that the other Python files of the base mention."""
    sources = [scene.source(other) for other in scene.base if other != path and other.endswith(".py")]
    words = [
        source.words | {n for line in source.imports.values() for n in line.split()} for source in sources if source
    ]
    return frozenset().union(*words)


def _renamed_entry(entry: Entry, renames: Mapping[str, str]) -> Entry:
    parts = (
        {"value": renamed(entry.value, renames)}
        if not isinstance(entry, cst.DictElement)
        else {"key": renamed(entry.key, renames), "value": renamed(entry.value, renames)}
    )
    return entry.with_changes(**parts)


def _loose(scene: Scene, pair: Pair, number: int) -> Step | None:
    lacking = [n for n, p in pair.donor.named.items() if n not in pair.base.definers and p.literal is None]
    anchor = next((piece for piece in reversed(pair.base.pieces) if piece.kind != "import"), None)
    if not lacking or anchor is None or scene.rng.random() < 0.95:
        return None
    name = scene.rng.choice(sorted(lacking))
    brought = pair.bring([name])
    files = {pair.base_path: pair.base.render(place(pair.base, pair.base.pieces, anchor, brought)), **brought.files}
    text = f"bring {name} of {scene.labels[number + 1]} into {scene.labels[0]}, as material for later changes"
    return Step(files, text, frozenset([number]), (name,))
