"""One Python file as a list of top-level pieces that can be edited, moved and rendered byte for byte.

Most pieces of a candidate are those of its parents. So names, digests and concrete syntax trees (LibCST, the costly
part) are made per piece and kept by its text, and a new candidate costs one parse by `ast`.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import libcst as cst

from leadscrew.operators.genetic.names import Facts, facts

LONGEST = 64 << 10
"""Characters of one top-level statement that are parsed by LibCST, which takes long and nests deep."""

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Literal = cst.List | cst.Tuple | cst.Set | cst.Dict
Entry = cst.BaseElement | cst.BaseDictElement


@dataclass(frozen=True, eq=False)
class Piece:
    """One top-level statement: its text with the blank lines and comments above it, its kind, name and names.

    `kind` is `def`, `class`, `const` (one plain name assigned), `import`, `doc` or `other`; `name` is what a `def`,
    `class` or `const` binds, else empty.
    """

    text: str
    kind: str
    name: str
    facts: Facts

    @classmethod
    def of(cls, text: str) -> Piece:
        """Read the text of one statement; raises `SyntaxError`."""
        return cls(text, *_kind(text), facts(text))

    @property
    def node(self) -> Statement:
        """The concrete syntax tree, parsed at first need and shared by pieces of the same text."""
        return _statement(self.text)

    @property
    def key(self) -> str:
        """The syntax tree as text: equal for pieces that differ in layout only."""
        return _key(self.text)

    def same(self, other: Piece) -> bool:
        """Say whether two pieces differ in layout at most."""
        return self.text == other.text or self.key == other.key

    @property
    def numbers(self) -> tuple[cst.CSTNode, ...]:
        """The numbers and switches of the piece, but none in imports, annotations and patterns."""
        return () if self.kind in ("import", "doc") else _numbers(self.text)

    @property
    def literal(self) -> Literal | None:
        """The collection literal that a `const` assigns, if it does."""
        return _literal(self.text) if self.kind == "const" else None


@dataclass(frozen=True)
class Source:
    """A file cut into pieces. `imports` maps a name to the one import line that binds it."""

    head: bytes
    encoding: str
    pieces: tuple[Piece, ...]
    foot: str
    newline: str
    indent: str
    open_end: bool
    """Whether the last line has no line end."""

    @cached_property
    def module(self) -> cst.Module:
        """An empty module with this file's habits, to render nodes with."""
        return cst.Module([], default_indent=self.indent, default_newline=self.newline)

    @cached_property
    def imports(self) -> dict[str, str]:
        """The import line of each name that an import at the top level binds."""
        found: dict[str, str] = {}
        for piece in self.pieces:
            if piece.kind == "import":
                found.update(_import_lines(piece.text))
        return found

    @cached_property
    def definers(self) -> dict[str, list[Piece]]:
        """The pieces that bind each name."""
        table: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            for name in sorted(piece.facts.bound):
                table.setdefault(name, []).append(piece)
        return table

    @cached_property
    def named(self) -> dict[str, Piece]:
        """The `def`, `class` and `const` pieces by name, in order; names bound more than once are left out."""
        return {p.name: p for p in self.pieces if p.name and len(self.definers[p.name]) == 1}

    @cached_property
    def words(self) -> frozenset[str]:
        """Every name bound or used anywhere in the file."""
        return frozenset().union(*(p.facts.bound | p.facts.uses | p.facts.inner for p in self.pieces))

    def piece(self, node: Statement) -> Piece:
        """Make a piece of `node`, rendered in this file's indentation and line ends; raises `SyntaxError`."""
        return Piece.of(self.module.code_for_node(node))

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of a node."""
        return self.module.code_for_node(node)

    def render(self, pieces: Sequence[Piece]) -> bytes:
        """Return the file with these pieces in place of its own."""
        text = "".join(piece.text for piece in pieces) + self.foot
        if self.open_end and text.endswith(self.newline):
            text = text[: -len(self.newline)]
        return self.head + text.encode(self.encoding)

    def replaced(self, old: Piece, new: Piece) -> list[Piece]:
        """Return the pieces with one of them exchanged."""
        return [new if piece is old else piece for piece in self.pieces]


@lru_cache(maxsize=256)
def parse(data: bytes) -> Source | None:
    """Cut a file into pieces; None if it is no valid Python or would not come back byte for byte."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        mark = b""
        if encoding == "utf-8-sig":
            mark, encoding = data[:3], "utf-8"
        text = data[len(mark) :].decode(encoding)
        tree = ast.parse(text)
        source = _cut(text, tree, mark, encoding)
        return source if source.render(source.pieces) == data else None
    except (SyntaxError, ValueError, LookupError, RecursionError):
        return None


def _cut(text: str, tree: ast.Module, mark: bytes, encoding: str) -> Source:
    rows = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    newline = next((end for end in ("\r\n", "\n", "\r") if rows and rows[0].endswith(end)), "\n")
    open_end = bool(rows) and not rows[-1].endswith(("\r", "\n"))
    if open_end:
        rows[-1] += newline
    spans: list[list[int]] = []
    for node in tree.body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        end = node.end_lineno or start
        if spans and start <= spans[-1][1]:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([start, end])
    first = spans[0][0] - 1 if spans else len(rows)
    pieces: list[Piece] = []
    at = first
    for _, end in spans:
        pieces.append(Piece.of("".join(rows[at:end])))
        at = end
    head = mark + "".join(rows[:first]).encode(encoding)
    foot = "".join(rows[at:])
    if open_end and not spans:
        head, open_end = mark + text.encode(encoding), False
    return Source(head, encoding, tuple(pieces), foot, newline, _indent(rows, tree), open_end)


def _indent(rows: Sequence[str], tree: ast.Module) -> str:
    for node in tree.body:
        inner = getattr(node, "body", None)
        if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt) and inner[0].lineno > node.lineno:
            row = rows[inner[0].lineno - 1]
            blank = row[: len(row) - len(row.lstrip(" \t"))]
            if blank:
                return blank
    return "    "


@lru_cache(maxsize=2048)
def _kind(text: str) -> tuple[str, str]:
    body = ast.parse(text).body
    node = body[0] if len(body) == 1 else None
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return "def", node.name
    if isinstance(node, ast.ClassDef):
        return "class", node.name
    if all(isinstance(part, (ast.Import, ast.ImportFrom)) for part in body):
        return "import", ""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return "const", node.targets[0].id
    if isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
        return "const", node.target.id
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return "doc", ""
    return "other", ""


@lru_cache(maxsize=512)
def _statement(text: str) -> Statement:
    if len(text) > LONGEST:
        raise SyntaxError(f"a statement of {len(text)} characters is not taken apart")
    try:
        return cst.parse_module(text).body[0]
    except cst.ParserSyntaxError as error:
        # Python takes it and LibCST does not: newer syntax, or thousands of strings in a row.
        raise SyntaxError(f"LibCST cannot parse a statement: {error.message}") from None


@lru_cache(maxsize=2048)
def _key(text: str) -> str:
    return hashlib.sha256(ast.dump(ast.parse(text)).encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=512)
def _numbers(text: str) -> tuple[cst.CSTNode, ...]:
    found: list[cst.CSTNode] = []
    barred: set[int] = set()
    for node, parent in walk(_statement(text)):
        if id(parent) in barred or isinstance(node, (cst.Annotation, cst.MatchPattern)):
            barred.add(id(node))
        elif isinstance(node, (cst.Integer, cst.Float)):
            found.append(node)
        elif isinstance(node, cst.Name) and node.value in ("True", "False"):
            found.append(node)
    return tuple(found)


def entries(literal: Literal) -> Sequence[Entry]:
    """Return the elements of a collection literal."""
    return literal.elements


def entry_key(entry: Entry) -> str:
    """Return what makes an element the same as another one: the key of a dictionary's, else the whole element."""
    return _expression_key(_BARE.code_for_node(entry.key if isinstance(entry, cst.DictElement) else entry.value))


@lru_cache(maxsize=1024)
def _expression_key(code: str) -> str:
    return ast.dump(ast.parse(f"({code}\n)", mode="eval"))


def entry_text(entry: Entry) -> str:
    """Return the code of an element without its comma."""
    parts: list[cst.CSTNode] = [entry.key, entry.value] if isinstance(entry, cst.DictElement) else [entry.value]
    return ": ".join(_BARE.code_for_node(part) for part in parts)


def entry_uses(entry: Entry) -> frozenset[str]:
    """Return the names that an element needs."""
    parts: list[cst.CSTNode] = [entry.key, entry.value] if isinstance(entry, cst.DictElement) else [entry.value]
    return frozenset().union(*(facts(f"({_BARE.code_for_node(part)}\n)").uses for part in parts))


def with_literal(piece: Piece, source: Source, literal: Literal) -> Piece:
    """Return the piece with another collection literal in place of its own."""
    old = piece.literal
    assert old is not None
    return source.piece(piece.node.deep_replace(old, literal))  # type: ignore[arg-type]


def appended(literal: Literal, entry: Entry) -> Literal:
    """Return the literal with one more element at the end, laid out as the others are."""
    old = list(entries(literal))
    entry = entry.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    if not old:
        return literal.with_changes(elements=[entry])
    last = old[-1]
    opening, closing = _brackets(literal)
    if opening is None or not isinstance(opening.whitespace_after, cst.ParenthesizedWhitespace):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return literal.with_changes(elements=[*old[:-1], last.with_changes(comma=comma), entry])
    # One element per line: a comment behind the last one must stay with it, not move on to the new one.
    space = opening.whitespace_after.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    if closing is not None and isinstance(closing.whitespace_before, cst.ParenthesizedWhitespace):
        end = closing.whitespace_before
        space = space.with_changes(first_line=end.first_line)
        clean = closing.with_changes(whitespace_before=end.with_changes(first_line=cst.TrailingWhitespace()))
        literal = literal.deep_replace(closing, clean)
        old = list(entries(literal))
    entry = entry.with_changes(comma=last.comma)
    return literal.with_changes(elements=[*old[:-1], last.with_changes(comma=cst.Comma(whitespace_after=space)), entry])


def without(literal: Literal, index: int) -> Literal:
    """Return the literal without the element at `index`; the new last one takes over the old last comma."""
    old = list(entries(literal))
    kept = old[:index] + old[index + 1 :]
    if kept and index == len(old) - 1:
        kept[-1] = kept[-1].with_changes(comma=old[-1].comma)
    if len(kept) == 1 and isinstance(literal, cst.Tuple):
        kept[0] = kept[0].with_changes(comma=cst.Comma())
    return literal.with_changes(elements=kept)


def _brackets(literal: Literal) -> tuple[Any, Any]:
    if isinstance(literal, cst.Tuple):
        return (literal.lpar[0], literal.rpar[-1]) if literal.lpar and literal.rpar else (None, None)
    if isinstance(literal, cst.List):
        return literal.lbracket, literal.rbracket
    return literal.lbrace, literal.rbrace


def walk(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode | None]]:
    """Yield every node but white space and punctuation, with its parent, in source order."""
    stack: list[tuple[cst.CSTNode, cst.CSTNode | None]] = [(node, None)]
    while stack:
        current, parent = stack.pop()
        yield current, parent
        found: list[tuple[cst.CSTNode, cst.CSTNode | None]] = []
        for name in _parts(type(current)):
            value = getattr(current, name)
            if isinstance(value, cst.CSTNode):
                found.append((value, current))
            elif isinstance(value, (list, tuple)):
                found += [(part, current) for part in value if isinstance(part, cst.CSTNode)]
        stack.extend(reversed(found))


@lru_cache(maxsize=512)
def _parts(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    # CSTNode.children runs a visitor for each node, ten times slower than reading the fields.
    skipped = (
        "whitespace",
        "leading",
        "lpar",
        "rpar",
        "comma",
        "semicolon",
        "header",
        "footer",
        "lines_after",
        "indent",
    )
    return tuple(f.name for f in fields(kind) if not f.name.startswith(skipped))


_BARE = cst.Module([])


@lru_cache(maxsize=512)
def _literal(text: str) -> Literal | None:
    node = _statement(text)
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and node.body else None
    value = small.value if isinstance(small, (cst.Assign, cst.AnnAssign)) else None
    return value if isinstance(value, (cst.List, cst.Tuple, cst.Set, cst.Dict)) else None


@lru_cache(maxsize=512)
def _import_lines(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            origin = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                line = (f"from {origin} " if origin else "") + f"import {alias.name}"
                bound = alias.name if origin else alias.name.split(".")[0]
                found[alias.asname or bound] = line + (f" as {alias.asname}" if alias.asname else "")
    return found
