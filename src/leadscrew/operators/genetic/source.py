"""One Python file as a list of top-level pieces that can be edited, moved and rendered byte for byte."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import libcst as cst

from leadscrew.operators.genetic.names import Facts, facts

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Literal = cst.List | cst.Tuple | cst.Set | cst.Dict
Entry = cst.BaseElement | cst.BaseDictElement


@dataclass(frozen=True)
class Piece:
    """One top-level statement: its node, its text with leading comments, its kind and its names."""

    node: Statement
    text: str
    kind: str
    """`def`, `class`, `const` (one plain name assigned), `import`, `doc` or `other`."""
    facts: Facts

    @cached_property
    def key(self) -> str:
        """The syntax tree as text: equal for pieces that differ in layout only."""
        return ast.dump(ast.parse(self.text))

    @property
    def name(self) -> str:
        """What a `def`, `class` or `const` binds; empty for any other piece."""
        if isinstance(self.node, (cst.FunctionDef, cst.ClassDef)):
            return self.node.name.value
        target = _target(self.node)
        return target.value if target is not None and self.kind == "const" else ""

    @property
    def literal(self) -> Literal | None:
        """The collection literal that a `const` assigns, if it does."""
        value = _value(self.node) if self.kind == "const" else None
        return value if isinstance(value, (cst.List, cst.Tuple, cst.Set, cst.Dict)) else None


@dataclass(frozen=True)
class Source:
    """A parsed file. `imports` maps a name to the one import line that binds it."""

    module: cst.Module
    pieces: tuple[Piece, ...]
    imports: dict[str, str] = field(default_factory=dict)

    @cached_property
    def definers(self) -> dict[str, list[Piece]]:
        """The pieces that bind each name."""
        table: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            for name in piece.facts.bound:
                table.setdefault(name, []).append(piece)
        return table

    @cached_property
    def named(self) -> dict[str, Piece]:
        """The `def`, `class` and `const` pieces by name; names bound more than once are left out."""
        return {p.name: p for p in self.pieces if p.name and len(self.definers[p.name]) == 1}

    @cached_property
    def words(self) -> frozenset[str]:
        """Every name bound or used anywhere in the file."""
        return frozenset().union(*(p.facts.bound | p.facts.uses | p.facts.inner for p in self.pieces))

    def piece(self, node: Statement) -> Piece:
        """Make a piece of `node`, rendered in this file's indentation and line ends; raises `SyntaxError`."""
        text = self.module.code_for_node(node)
        return Piece(node, text, _kind(node), facts(text))

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of a node."""
        return self.module.code_for_node(node)

    def render(self, pieces: Sequence[Piece]) -> bytes:
        """Return the file with these pieces in place of its own."""
        module = self.module
        text = "".join(
            [
                *(module.code_for_node(line) for line in module.header),
                *(piece.text for piece in pieces),
                *(module.code_for_node(line) for line in module.footer),
            ]
        )
        if not module.has_trailing_newline and text.endswith(module.default_newline):
            text = text[: -len(module.default_newline)]
        return text.encode(module.encoding)

    def replaced(self, old: Piece, new: Piece) -> list[Piece]:
        """Return the pieces with one of them exchanged."""
        return [new if piece is old else piece for piece in self.pieces]


@lru_cache(maxsize=48)
def parse(data: bytes) -> Source | None:
    """Parse a file; None if it is no valid Python, or would not come back byte for byte."""
    try:
        ast.parse(data)
        module = cst.parse_module(data)
        bare = Source(module, ())
        pieces = tuple(bare.piece(node) for node in module.body)
        imports: dict[str, str] = {}
        for piece in pieces:
            if piece.kind == "import":
                imports.update(_import_lines(ast.parse(piece.text)))
        source = replace(bare, pieces=pieces, imports=imports)
        return source if source.render(pieces) == data else None
    except (cst.ParserSyntaxError, SyntaxError, ValueError, LookupError, RecursionError):
        return None


def entries(literal: Literal) -> Sequence[Entry]:
    """Return the elements of a collection literal."""
    return literal.elements


def entry_key(entry: Entry) -> str:
    """Return what makes an element the same as another one: the key of a dictionary's, else the whole element."""
    node: cst.CSTNode = entry.key if isinstance(entry, cst.DictElement) else entry.value
    return ast.dump(ast.parse(f"({_BARE.code_for_node(node)}\n)", mode="eval"))


def entry_text(entry: Entry) -> str:
    """Return the code of an element without its comma."""
    parts: list[cst.CSTNode] = [entry.key, entry.value] if isinstance(entry, cst.DictElement) else [entry.value]
    return ": ".join(_BARE.code_for_node(part) for part in parts)


def entry_uses(entry: Entry) -> frozenset[str]:
    """Return the names that an element needs."""
    parts: list[cst.CSTNode] = [entry.key, entry.value] if isinstance(entry, cst.DictElement) else [entry.value]
    return frozenset().union(*(facts(f"({_BARE.code_for_node(part)}\n)").uses for part in parts))


def with_entries(piece: Piece, source: Source, elements: Sequence[Entry]) -> Piece:
    """Return the piece with other elements in its collection literal."""
    literal = piece.literal
    assert literal is not None
    node = piece.node.deep_replace(literal, literal.with_changes(elements=elements))
    return source.piece(node)  # type: ignore[arg-type]


def appended(literal: Literal, entry: Entry) -> list[Entry]:
    """Return the elements with one more at the end, laid out as the others are."""
    old = list(entries(literal))
    if not old:
        return [entry.with_changes(comma=cst.MaybeSentinel.DEFAULT)]
    last = old[-1]
    if isinstance(last.comma, cst.Comma) and isinstance(last.comma.whitespace_after, cst.ParenthesizedWhitespace):
        between = old[-2].comma if len(old) > 1 else last.comma
        if len(old) == 1:
            opening = getattr(literal, "lbracket", None) or getattr(literal, "lbrace", None)
            space = opening.whitespace_after if opening is not None else cst.SimpleWhitespace(" ")
            between = cst.Comma(whitespace_after=space)
        return [*old[:-1], last.with_changes(comma=between), entry.with_changes(comma=last.comma)]
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [*old[:-1], last.with_changes(comma=comma), entry.with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def without(literal: Literal, index: int) -> list[Entry]:
    """Return the elements without the one at `index`; the new last one takes over the old last comma."""
    old = list(entries(literal))
    kept = old[:index] + old[index + 1 :]
    if kept and index == len(old) - 1:
        kept[-1] = kept[-1].with_changes(comma=old[-1].comma)
    if len(kept) == 1 and isinstance(literal, cst.Tuple):
        kept[0] = kept[0].with_changes(comma=cst.Comma())
    return kept


def walk(
    node: cst.CSTNode, parents: tuple[cst.CSTNode, ...] = ()
) -> Iterator[tuple[cst.CSTNode, tuple[cst.CSTNode, ...]]]:
    """Yield every node but white space, with its ancestors, in source order."""
    yield node, parents
    inner = (*parents, node)
    for child in node.children:
        if not isinstance(child, (cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine, cst.Comma)):
            yield from walk(child, inner)


_BARE = cst.Module([])


def _kind(node: Statement) -> str:
    if isinstance(node, cst.FunctionDef):
        return "def"
    if isinstance(node, cst.ClassDef):
        return "class"
    if isinstance(node, cst.SimpleStatementLine):
        if all(isinstance(small, (cst.Import, cst.ImportFrom)) for small in node.body):
            return "import"
        if _target(node) is not None:
            return "const"
        first = node.body[0] if node.body else None
        if isinstance(first, cst.Expr) and isinstance(first.value, (cst.SimpleString, cst.ConcatenatedString)):
            return "doc"
    return "other"


def _target(node: Statement) -> cst.Name | None:
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    small = node.body[0]
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
        return small.targets[0].target
    if isinstance(small, cst.AnnAssign) and small.value is not None and isinstance(small.target, cst.Name):
        return small.target
    return None


def _value(node: Statement) -> cst.BaseExpression | None:
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and node.body else None
    return small.value if isinstance(small, (cst.Assign, cst.AnnAssign)) else None


def _import_lines(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                line = f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                yield (alias.asname or alias.name.split(".")[0]), line
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origin = "." * node.level + (node.module or "")
                line = f"from {origin} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                yield (alias.asname or alias.name), line
