"""The source as the house tests see it: files, modules, and who imports whom, lazy imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "leadscrew"
DATA_ROOMS = ("guest", "templates")
"""Laid into boxes or copied out as files: never imported by the package."""


@dataclass(frozen=True)
class Import:
    """One import statement: `target` is the dotted module, `line` where it stands, `lazy` whether inside a function."""

    target: str
    line: int
    lazy: bool


@cache
def python_files() -> tuple[Path, ...]:
    """Return every Python file of the package but templates, which hold programs and are data."""
    return tuple(p for p in sorted(SOURCE.rglob("*.py")) if room_of(p) != "templates")


def module_name(path: Path) -> str:
    """Return the dotted name of a source file.

    >>> module_name(SOURCE / "core" / "program.py"), module_name(SOURCE / "core" / "__init__.py")
    ('leadscrew.core.program', 'leadscrew.core')
    """
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(path: Path) -> str:
    """Return the folder or module directly under the package that a file belongs to; `__init__` is the face."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def room_of_module(name: str) -> str:
    """Return the room of a dotted module name; the package itself is the face."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def syntax(path: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def modules() -> frozenset[str]:
    """Return the dotted names of everything importable in the package."""
    return frozenset(module_name(p) for p in python_files())


def imports(path: Path) -> tuple[Import, ...]:
    """Return what a file imports, `import a.b` and `from a import b` alike, resolved to modules where they are ours."""
    return tuple(_imports(syntax(path), path, lazy=False))


def _imports(node: ast.AST, path: Path, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, lazy)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, path)
            for alias in child.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in modules() else base, child.lineno, lazy)
        elif isinstance(child, ast.Call) and _called(child) in ("import_module", "__import__") and child.args:
            if isinstance(child.args[0], ast.Constant) and isinstance(child.args[0].value, str):
                yield Import(child.args[0].value, child.lineno, lazy)
        inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _imports(child, path, lazy=inside)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    if not node.level:
        return node.module or ""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other (Tarjan), largest first, single nodes left out.

    >>> circles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    [['a', 'b']]
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1 or node in graph.get(node, ()):
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def text_files(
    suffixes: Iterable[str] = (".py", ".md", ".toml", ".sql", ".txt", ".json", ".cfg", ".sh", ""),
) -> list[Path]:
    """Return the project's text files: source, tests, docs, benches and those at the root, without what git ignores."""
    wanted = set(suffixes)
    out = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in wanted and not p.name.startswith(".coverage")]
    for folder in ("src", "tests", "docs", "bench", ".ci", "examples"):
        for path in (ROOT / folder).rglob("*"):
            hidden = any(part == "__pycache__" or part.endswith(".egg-info") for part in path.parts)
            if path.is_file() and path.suffix in wanted and not hidden:
                out.append(path)
    return sorted(out)
