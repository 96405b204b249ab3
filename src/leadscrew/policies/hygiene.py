"""Two rules that proposers are told and that are checked: no variant that only tunes numbers, no names of the data.

Source: the skill of Meta-Harness forbids both in words (arXiv 2603.28052, appendix D) and enforces neither. Source text
is parsed here, never run; hostile text (huge, deeply nested, no Python) can make a check say nothing, but not fail.
"""

from __future__ import annotations

import ast
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from leadscrew.core.program import Program, diff

Rule = Literal["off", "flag", "reject"]

MAX_SOURCE = 256 << 10
"""Bytes of one file that are looked at; longer files count as changed in substance and are scanned up to here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule: its name, whether it only flags or rejects, and what was found in words."""

    rule: Literal["constants_only", "dataset_names"]
    action: Literal["flag", "reject"]
    text: str


def check(
    base: Program | None,
    child: Program,
    names: DataNames,
    *,
    constants_only: Rule = "flag",
    dataset_names: Rule = "reject",
) -> tuple[Finding, ...]:
    """Apply both rules to a proposed tree; `base` is the tree it started from, None if there is none."""
    found: list[Finding] = []
    if constants_only != "off" and base is not None and (text := only_constants(base, child)) is not None:
        found.append(Finding("constants_only", constants_only, text))
    if dataset_names != "off" and (planted := names.planted(child, base)):
        text = f"names the data: {', '.join(planted[:5])}; a program must not know which data it is scored on"
        found.append(Finding("dataset_names", dataset_names, text))
    return tuple(found)


# -- constants only --------------------------------------------------------------------------------


def only_constants(base: Program, child: Program) -> str | None:
    """Say in words that a change touches nothing but constants (or comments), or return None if it does more.

    Python: the syntax trees are equal once numbers, truth values, None and one-word strings are masked, and
    collections and arithmetic of nothing else with them. A string of several words is text (a prompt), not a parameter.
    Other text files: equal once numbers are masked. Equal programs give None.

    >>> a = Program.of({"main.py": "k = 5\\n"})
    >>> only_constants(a, Program.of({"main.py": "k = 7\\n"}))
    'changes only constants in main.py'
    >>> only_constants(a, Program.of({"main.py": "k = f(7)\\n"})) is None
    True
    """
    patch = diff(base, child)
    if not patch or any(c.kind != "modify" or c.path not in base for c in patch.changes):
        return None
    for change in patch.changes:
        if not _same_but_constants(change.path, base[change.path].data, child[change.path].data):
            return None
    return f"changes only constants in {', '.join(c.path for c in patch.changes)}"


def _same_but_constants(path: str, old: bytes, new: bytes) -> bool:
    if len(old) > MAX_SOURCE or len(new) > MAX_SOURCE:
        return False
    if path.endswith(".py"):
        before, after = _masked(old), _masked(new)
        return before is not None and before == after
    try:
        texts = old.decode("utf-8"), new.decode("utf-8")
    except UnicodeDecodeError:
        return False
    before, after = (_NUMBER.sub("0", text) for text in texts)
    return before == after


_NUMBER = re.compile(r"-?\d+(?:[._]\d+)*(?:[eE][+-]?\d+)?")


def _masked(source: bytes) -> str | None:
    """The syntax tree as text with its constants masked; None if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        return ast.dump(_Mask().visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_MASK = "\0constant"


class _Mask(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        parameter = not isinstance(node.value, str) or not re.search(r"\s", node.value.strip())
        return ast.Constant(_MASK) if parameter else ast.Constant(node.value)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        # A docstring changes what a reader sees, not what the program does.
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Expr(ast.Constant(_MASK)) if text else self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        match node:
            case ast.UnaryOp(operand=part) if _is_mask(part):
                return ast.Constant(_MASK)
            case ast.BinOp(left=left, right=right) if _is_mask(left) and _is_mask(right):
                return ast.Constant(_MASK)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) if parts and all(
                map(_is_mask, parts)
            ):
                return ast.Constant(_MASK)
            case ast.Dict(keys=keys, values=values) if keys and all(map(_is_mask, [*keys, *values])):
                return ast.Constant(_MASK)
        return node


def _is_mask(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == _MASK


# -- names of the data -----------------------------------------------------------------------------

_COMMON = frozenset(
    """data dataset datasets default eval evaluation example examples input inputs instance instances item items label
    labels main output outputs predict program question answer sample samples score scores seed solve task tasks test
    tests text train training val valid validation""".split()  # noqa: SIM905 - a list of words reads best as words
)
_PIECE = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LONGEST = 8


class DataNames:
    """Names that a program must not know: data sets, instance ids, files of splits.

    Compared in lower case and cut into words, so `Symptom2Disease`, `symptom2_disease` and `"Symptom2" + "Disease"` are
    one name. Names that any program may use (`main`, `test`, short numbers) are left out. Built once, then asked per
    candidate in time linear in its text. Do not give it names that are ordinary code or prose of the task.

    >>> names = DataNames(["LawBench", "main"])
    >>> names.planted(Program.of({"a.py": "if law_bench: pass\\n"}))
    ('lawbench (a.py)',)
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {squashed for name in names if _telling(squashed := "".join(_words(name)))}

    def __len__(self) -> int:
        return len(self._names)

    def planted(self, child: Program, base: Program | None = None) -> tuple[str, ...]:
        """Return `name (file)` for every name in paths, code, comments or texts of `child` that `base` lacks."""
        if not self._names:
            return ()
        changed = [p for p in child if base is None or p not in base or base[p].data != child[p].data]
        hits = dict.fromkeys((name, path) for path in changed for name in self._found(path, child[path].data))
        if hits and base is not None:
            known = {name for path in base for name in self._found(path, base[path].data)}
            hits = {hit: None for hit in hits if hit[0] not in known}
        return tuple(f"{name} ({path})" for name, path in hits)

    def _found(self, path: str, data: bytes) -> Iterator[str]:
        yield from self._in_line(path)
        for line in data[:MAX_SOURCE].decode("utf-8", "replace").splitlines():
            yield from self._in_line(line)

    def _in_line(self, line: str) -> Iterator[str]:
        words = _words(line)
        for start in range(len(words)):
            joined = ""
            for word in words[start : start + _LONGEST]:
                joined += word
                if joined in self._names:
                    yield joined


def _words(text: str) -> list[str]:
    pieces = _PIECE.findall(unicodedata.normalize("NFKC", text))
    return [word.casefold() for piece in pieces for word in _CAMEL.split(piece)]


def _telling(name: str) -> bool:
    if name in _COMMON or len(name) < 4:
        return False
    return len(name) >= 6 if name.isdigit() else True
