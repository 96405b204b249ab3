"""Which names a piece of code binds and needs, and whether a module's names all resolve. Standard library only."""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program

_STAR = re.compile(rb"(?m)^[ \t]*from[ \t].*\bimport[ \t]*\*")
_BUILTINS = frozenset(dir(builtins)) | {
    "__file__", "__name__", "__doc__", "__builtins__", "__spec__", "__loader__", "__package__", "__path__",
    "__annotations__", "__module__", "__qualname__", "__class__", "__dict__",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """The names of some module-level code: `bound` by it there, `uses` from there, `inner` bound in its functions."""

    bound: frozenset[str]
    uses: frozenset[str]
    inner: frozenset[str]


@lru_cache(maxsize=4096)
def facts(code: str) -> Facts:
    """Return the names of `code`; raises `SyntaxError` if it does not parse.

    >>> sorted(facts("def f(x):\\n    return g(x) + K\\n").uses)
    ['K', 'g']
    """
    return _facts(code)


def _facts(code: str | bytes) -> Facts:
    top = symtable.symtable(code, "<piece>", "exec")  # type: ignore[arg-type]
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    uses = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    inner: set[str] = set()
    tables = list(top.get_children())
    while tables:
        table = tables.pop()
        tables.extend(table.get_children())
        in_class = table.get_type() == "class"
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_global():
                uses.add(name)
                if symbol.is_assigned():
                    bound.add(name)
            elif symbol.is_local():
                inner.add(name)
                if in_class and symbol.is_referenced():
                    # A class body may read a global before it binds the same name.
                    uses.add(name)
    return Facts(frozenset(bound), frozenset(uses), frozenset(inner))


@lru_cache(maxsize=512)
def problems(code: str | bytes) -> frozenset[str]:
    """Return the names that a module needs but nowhere binds, and those that it uses on import before they are bound.

    A light check: a module with a star import passes, and names bound on some paths count as bound.

    >>> sorted(problems("x = y\\ndef f():\\n    return z\\n")), sorted(problems("b = a()\\ndef a(): pass\\n"))
    (['y', 'z'], ['a before its definition'])
    """
    tree = ast.parse(code)
    if _STAR.search(code if isinstance(code, bytes) else code.encode("utf-8", "replace")):
        return frozenset()
    whole = _facts(code)
    missing = {name for name in whole.uses if name not in whole.bound and name not in _BUILTINS}
    lazy_hints = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
    seen: set[str] = set()
    late: set[str] = set()
    for statement in tree.body:
        now = _Immediate(lazy_hints)
        now.visit(statement)
        late |= {n for n in now.loads - now.stores - seen if n in whole.bound and n not in _BUILTINS}
        seen |= now.stores
    return frozenset(missing | {f"{name} before its definition" for name in late})


class _Immediate(ast.NodeVisitor):
    """Names that a statement loads and binds while the module is imported; bodies of functions run later."""

    def __init__(self, lazy_hints: bool) -> None:
        self.loads: set[str] = set()
        self.stores: set[str] = set()
        self.lazy_hints = lazy_hints

    def visit_Name(self, node: ast.Name) -> None:
        (self.loads if isinstance(node.ctx, ast.Load) else self.stores).add(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.stores.add(node.name)
        for part in (*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in (*node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.stores.add(node.name)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)
        if not self.lazy_hints:
            self.visit(node.annotation)

    def visit_alias(self, node: ast.alias) -> None:
        self.stores.add((node.asname or node.name).split(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.stores.add(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self.stores.add(node.name)
        self.generic_visit(node)


@lru_cache(maxsize=1024)
def _file_digest(path: str, data: bytes) -> str:
    if path.endswith(".py"):
        try:
            parts = "\n".join(sorted(_parts(data)))
            return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
        except (SyntaxError, ValueError, RecursionError):
            pass  # no tree to compare by: the bytes decide
    return hashlib.sha256(data).hexdigest()


def _parts(data: bytes) -> Iterator[str]:
    uses = _facts(data).uses
    for node in ast.parse(data).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            origin = f"{'.' * node.level}{node.module or ''}:" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if alias.name == "*" or (alias.asname or alias.name.split(".")[0]) in uses:
                    yield f"import {origin}{alias.name} as {alias.asname}"
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield ast.dump(node)


def tree_digest(program: Program) -> str:
    """Return a digest under which two programs that only look different are equal.

    In Python files comments, layout, the module's docstring, unused imports and the order of top-level statements do not
    count, so that a copy of a donor with its parts shuffled is still seen as a copy. Other files count by their bytes.

    >>> one, two = Program.of({"a.py": "x=1\\ny=2"}), Program.of({"a.py": "import re\\ny = 2\\nx = 1  # one\\n"})
    >>> tree_digest(one) == tree_digest(two)
    True
    """
    return digest_of([[path, file.executable, _file_digest(path, file.data)] for path, file in program.items()])
