"""Lines: delete, duplicate, swap or take over lines of prompt files and of multi-line texts in Python files."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import libcst as cst

from leadscrew.core.program import Program
from leadscrew.operators.genetic.scene import TEXT_ENDINGS, Scene, Step
from leadscrew.operators.genetic.source import Piece, parse, walk

_TRIPLE = re.compile(r"(?s)([rRbBuU]*)(\"{3}|'{3})(.*)\2")


def lines(scene: Scene) -> Step | None:
    """Edit the lines of one text: a file ending in .md, .txt or .prompt, or a triple-quoted string (no docstring)."""
    texts = [path for path in scene.files(*TEXT_ENDINGS) if _decoded(scene.base, path) is not None]
    inner = [
        (path, piece, node)
        for path in scene.files(".py")
        if (source := scene.source(path)) is not None
        for piece in source.pieces
        for node in strings(piece)
    ]
    if not texts and not inner:
        return None
    if texts and (not inner or scene.rng.random() < 0.7):
        return _file(scene, scene.rng.choice(texts))
    path, piece, node = scene.rng.choice(inner)
    number, theirs = _donor_strings(scene, path, piece)
    match = _TRIPLE.fullmatch(node.value)
    assert match is not None
    edited = changed(match[3], theirs, scene.rng)
    source = scene.source(path)
    if edited is None or source is None:
        return None
    new = node.with_changes(value=f"{match[1]}{match[2]}{edited[0]}{match[2]}")
    fresh = source.piece(piece.node.deep_replace(node, new))  # type: ignore[arg-type]
    files = {path: source.render(source.replaced(piece, fresh))}
    where = piece.name or "a text"
    return _step(scene, files, f"{where} in {path}", edited, number)


def strings(piece: Piece) -> list[cst.SimpleString]:
    """Return the triple-quoted strings of a piece with two lines or more, docstrings left out."""
    if piece.kind in ("import", "doc") or ('"""' not in piece.text and "'''" not in piece.text):
        return []
    return [
        node
        for node, parent in walk(piece.node)
        if isinstance(node, cst.SimpleString)
        and "\n" in node.value
        and _TRIPLE.fullmatch(node.value)
        and not isinstance(parent, cst.Expr)
    ]


def changed(text: str, theirs: Sequence[str], rng: random.Random) -> tuple[str, str] | None:
    """Return the text with one line deleted, doubled, swapped or taken from `theirs`, and what was done.

    >>> changed("a\\nb\\n", [], random.Random(1))
    ('b\\n', 'delete')
    """
    rows = [row for row in re.split(r"(?<=\n)", text) if row]
    full = [i for i, row in enumerate(rows) if row.strip()]
    foreign = [row for row in theirs if row.strip() and row.strip() not in {r.strip() for r in rows}]
    kinds = (["delete", "swap"] if len(full) > 1 else []) + (["duplicate"] if full else [])
    kinds += ["insert", "exchange"] * 2 if foreign and full else []
    if not kinds:
        return None
    kind = rng.choice(kinds)
    at = rng.choice(full)
    if kind == "delete":
        del rows[at]
    elif kind == "duplicate":
        rows.insert(at, _ended(rows[at], text))
    elif kind == "swap":
        other = rng.choice([i for i in full if i != at])
        a, b = rows[at].rstrip("\r\n"), rows[other].rstrip("\r\n")
        rows[at], rows[other] = b + rows[at][len(a) :], a + rows[other][len(b) :]
    elif kind == "insert":
        rows.insert(at, _ended(rng.choice(foreign), text))
    else:
        end = rows[at][len(rows[at].rstrip("\r\n")) :]
        rows[at] = rng.choice(foreign).rstrip("\r\n") + end
    return "".join(rows), kind


def _ended(row: str, text: str) -> str:
    return row.rstrip("\r\n") + ("\r\n" if "\r\n" in text else "\n")


def _file(scene: Scene, path: str) -> Step | None:
    number, theirs = None, []
    holders = [i for i, donor in enumerate(scene.donors) if _decoded(donor, path) is not None]
    if holders:
        number = scene.rng.choice(holders)
        theirs = (_decoded(scene.donors[number], path) or "").splitlines()
    edited = changed(_decoded(scene.base, path) or "", theirs, scene.rng)
    if edited is None:
        return None
    return _step(scene, {path: edited[0].encode()}, path, edited, number)


def _step(scene: Scene, files: dict[str, bytes], where: str, edited: tuple[str, str], number: int | None) -> Step:
    kind = edited[1]
    if kind in ("insert", "exchange") and number is not None:
        text = f"{kind} a line of {where} of {scene.labels[0]} from {scene.labels[number + 1]}"
        return Step(files, text, frozenset([number]), (where,))
    return Step(files, f"{kind} a line of {where} of {scene.labels[0]}", components=(where,))


def _donor_strings(scene: Scene, path: str, piece: Piece) -> tuple[int | None, list[str]]:
    if not scene.donors:
        return None, []
    number = scene.rng.randrange(len(scene.donors))
    file = scene.donors[number].get(path)
    donor = parse(file.data) if file is not None else None
    theirs = donor.named.get(piece.name) if donor is not None and piece.name else None
    found = [row for node in (strings(theirs) if theirs else []) for row in _TRIPLE.sub(r"\3", node.value).splitlines()]
    return number, [row for row in found if '"""' not in row and "'''" not in row]


def _decoded(program: Program, path: str) -> str | None:
    file = program.get(path)
    if file is None:
        return None
    try:
        return file.data.decode("utf-8")
    except UnicodeDecodeError:
        return None
