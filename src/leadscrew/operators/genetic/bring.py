"""Bring definitions from one file into another, with everything they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

from leadscrew.core.program import Program
from leadscrew.operators.genetic.names import tree_digest
from leadscrew.operators.genetic.scene import Scene
from leadscrew.operators.genetic.source import Piece, Source, parse

Node = TypeVar("Node", bound=cst.CSTNode)


class Clash(Exception):
    """What should be brought cannot live in the other file beside what is there."""


@dataclass(frozen=True)
class Brought:
    """Pieces (rendered for the base, in the donor's order), import lines, renamed names, and whole files."""

    pieces: tuple[Piece, ...] = ()
    imports: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A file of the base and a file of a donor. With `share`, a same-named definition of the base serves both."""

    base: Source
    base_path: str
    donor: Source
    donor_path: str
    donor_program: Program
    scene: Scene
    share: bool

    def bring(self, names: Iterable[str], keep: Iterable[str] = ()) -> Brought:
        """Collect what `names` of the donor need, transitively. `keep` are names for which the base's meaning holds.

        Raises `Clash` where an import or a local variable stands in the way.
        """
        kept = frozenset(keep)
        queue, seen = sorted(set(names)), set(kept)
        chosen: dict[int, Piece] = {}
        imports: list[str] = []
        renames: dict[str, str] = {}
        while queue:
            name = queue.pop(0)
            if name in seen:
                continue
            seen.add(name)
            definers = self.donor.definers.get(name)
            if not definers:
                continue
            if all(piece.kind == "import" for piece in definers):
                self._bring_import(name, imports)
                continue
            if name in self.base.definers:
                if self._serves(name, definers):
                    continue
                if any(piece.kind == "import" for piece in self.base.definers[name]):
                    raise Clash(name)
                renames[name] = self._fresh(name)
            for piece in definers:
                chosen[id(piece)] = piece
                queue.extend(sorted((piece.facts.uses | piece.facts.bound) - seen))
        ordered = [piece for piece in self.donor.pieces if id(piece) in chosen]
        for piece in ordered:
            if piece.facts.inner & renames.keys():
                raise Clash(", ".join(sorted(piece.facts.inner & renames.keys())))
        pieces = tuple(self.base.piece(renamed(piece.node, renames)) for piece in ordered)
        return Brought(pieces, tuple(imports), renames, self._files(imports))

    def _serves(self, name: str, theirs: Sequence[Piece]) -> bool:
        """Whether the base's own definition can stand for the donor's."""
        ours = self.base.definers[name]
        if len(ours) == len(theirs) and all(a.same(b) for a, b in zip(ours, theirs, strict=True)):
            return True
        if len(ours) != 1 or len(theirs) != 1 or ours[0].kind != theirs[0].kind:
            return False
        if ours[0].literal is not None and theirs[0].literal is not None:
            return True
        return self.share and compatible(ours[0].node, theirs[0].node)

    def _bring_import(self, name: str, imports: list[str]) -> None:
        line = self.donor.imports[name]
        if self.base.imports.get(name) == line:
            return
        if name in self.base.definers:
            raise Clash(name)
        if line not in imports:
            imports.append(line)

    def _fresh(self, name: str) -> str:
        stem = name
        head, _, tail = name.rpartition("_")
        if head and tail.isdigit():
            stem = head
        number = 2
        while f"{stem}_{number}" in self.base.words or f"{stem}_{number}" in self.donor.words:
            number += 1
        return f"{stem}_{number}"

    def _files(self, imports: Sequence[str]) -> dict[str, bytes]:
        """The donor's own modules behind import lines, and behind theirs; a differing file of the base is a clash."""
        files: dict[str, bytes] = {}
        queue = [(self.donor_path, line) for line in imports]
        while queue:
            importer, line = queue.pop()
            for path in module_files(importer, line, self.donor_program):
                data = self.donor_program[path].data
                if path in self.scene.base:
                    held = Program({path: self.scene.base[path]})
                    if tree_digest(held) != tree_digest(Program({path: self.donor_program[path]})):
                        raise Clash(path)
                elif path not in files:
                    if not self.scene.region.covers(path):
                        raise Clash(path)
                    files[path] = data
                    module = parse(data)
                    queue.extend((path, inner) for inner in (module.imports.values() if module else ()))
        return files


def module_files(importer: str, line: str, program: Program) -> list[str]:
    """Return the files of `program` that an import line in the file `importer` refers to.

    >>> module_files("main.py", "from tools.text import fold", Program.of({"tools/text.py": "", "b.py": ""}))
    ['tools/text.py']
    """
    words = line.split()
    if words[0] == "import":
        modules = [words[1]]
    else:
        level = len(words[1]) - len(words[1].lstrip("."))
        folder = importer.split("/")[:-1]
        prefix = folder[: len(folder) - (level - 1)] if level else []
        stem = ".".join([*prefix, *([words[1][level:]] if words[1][level:] else [])])
        modules = [stem, f"{stem}.{words[3]}" if stem else words[3]]
    found: list[str] = []
    for module in modules:
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            head = "/".join(parts[:end])
            found += [path for path in (f"{head}.py", f"{head}/__init__.py") if path in program and path not in found]
    return found


def compatible(ours: cst.CSTNode, theirs: cst.CSTNode) -> bool:
    """Whether two definitions are of one kind and can be called alike: same parameters, or same method names.

    Two assignments are always alike.
    """
    if isinstance(ours, cst.FunctionDef) and isinstance(theirs, cst.FunctionDef):
        alike = (ours.asynchronous is None) == (theirs.asynchronous is None)
        return alike and parameters(ours) == parameters(theirs)
    if isinstance(ours, cst.ClassDef) and isinstance(theirs, cst.ClassDef):
        left, right = methods(ours), methods(theirs)
        return {n for n in left if n[0] != "_"} == {n for n in right if n[0] != "_"}
    return isinstance(ours, cst.SimpleStatementLine) and isinstance(theirs, cst.SimpleStatementLine)


def parameters(node: cst.FunctionDef) -> tuple[str, ...]:
    """Return the names of all parameters, in order, stars included."""
    params = node.params
    out = [p.name.value for p in (*params.posonly_params, *params.params)]
    out += ["*" + params.star_arg.name.value] if isinstance(params.star_arg, cst.Param) else []
    out += [p.name.value + "=" for p in params.kwonly_params]
    return (*out, *(["**" + params.star_kwarg.name.value] if params.star_kwarg else []))


def methods(node: cst.ClassDef) -> dict[str, cst.FunctionDef]:
    """Return the methods of a class by name; a name defined twice (a property and its setter) is left out."""
    found: dict[str, cst.FunctionDef] = {}
    twice: set[str] = set()
    for part in node.body.body:
        if isinstance(part, cst.FunctionDef):
            if part.name.value in found:
                twice.add(part.name.value)
            found[part.name.value] = part
    return {name: method for name, method in found.items() if name not in twice}


def place(base: Source, pieces: Sequence[Piece], anchor: Piece, brought: Brought) -> list[Piece]:
    """Return `pieces` with what was brought: definitions before `anchor`, imports after the imports at the top."""
    out = list(pieces)
    at = next(i for i, piece in enumerate(out) if piece is anchor)
    for piece in brought.pieces:
        out.insert(at, _spaced(base, out[:at], piece))
        at += 1
    top = 0
    for i, piece in enumerate(out[:at]):
        if piece.kind == "import" or (i == top and piece.kind == "doc"):
            top = i + 1
        elif piece.kind != "doc":
            break
    for line in sorted(brought.imports, key=lambda line: line.startswith("from __future__")):
        where = 1 if out and out[0].kind == "doc" else 0
        where = where if line.startswith("from __future__") else top
        node = cst.parse_statement(line + "\n")
        assert isinstance(node, cst.SimpleStatementLine)
        out.insert(where, base.piece(node))
        top += 1
    return out


def settled(base: Source, pieces: Sequence[Piece], old: Piece, new: Piece) -> list[Piece]:
    """Return `pieces` with `old` replaced by `new`, set apart from what was brought before it."""
    at = next(i for i, piece in enumerate(pieces) if piece is old)
    return [*pieces[:at], _spaced(base, pieces[:at], new), *pieces[at + 1 :]]


def _spaced(base: Source, before: Sequence[Piece], piece: Piece) -> Piece:
    """Put blank lines above a piece that would stick to a function or class, or is one that would stick to anything."""
    blocks = ("def", "class")
    close = before and (before[-1].kind in blocks or piece.kind in blocks)
    return Piece.of(base.newline * 2 + piece.text) if close and piece.text.split("\n", 1)[0].strip() else piece


def sweep(before: Sequence[Piece], after: list[Piece], elsewhere: frozenset[str]) -> list[Piece]:
    """Drop definitions that the edit left without a user: named in `before`, by nothing in `after` or `elsewhere`."""

    def used(pieces: Sequence[Piece]) -> set[str]:
        return {name for piece in pieces for name in piece.facts.uses - ({piece.name} if piece.name else set())}

    had = used(before)
    while True:
        has = used(after) | elsewhere
        dead = [p for p in after if p.name and p.name in had and p.name not in has and p in before]
        if not dead:
            return after
        after = [piece for piece in after if piece not in dead]


def renamed(node: Node, renames: Mapping[str, str]) -> Node:
    """Return a node with names exchanged, attributes, keywords and imports left alone."""
    return node.visit(_Renamer(renames)) if renames else node  # type: ignore[return-value]


class _Renamer(cst.CSTTransformer):
    """Exchanges plain names."""

    def __init__(self, renames: Mapping[str, str]) -> None:
        super().__init__()
        self.renames = renames

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        new = self.renames.get(updated_node.value)
        return updated_node if new is None else updated_node.with_changes(value=new)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_MatchKeywordElement(
        self, original_node: cst.MatchKeywordElement, updated_node: cst.MatchKeywordElement
    ) -> cst.MatchKeywordElement:
        return updated_node.with_changes(key=original_node.key)

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False
