"""What every source file must have, and must not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import leadscrew.errors
from house.tree import DATA_ROOMS, ROOT, SOURCE, python_files, room_of, syntax, text_files

# Written in pieces, so that this file does not name what it forbids.
MACHINE = re.compile(
    "|".join(
        [
            r"/work/(main|shared|\.lib" + "rary)",
            r"/tmp/(br" + r"ief|ve" + r"nv|v0|leadscrew-)\b",
            r"/ro" + r"ot/\.?\w",
            r"/ho" + r"me/(?!user\b|you\b|me\b|alice\b|bob\b)\w",
            r"\.py" + "env",
            r"/opt/(py" + "pi|wheels)",
        ]
    )
)
UNFINISHED = re.compile(r"\b(TO" + "DO|FIX" + "ME|XX" + r"X|HA" + r"CK)\b")
DOCUMENTED = ("errors", "core", "policies", "ports", "engine", "operators", "methods")
SOURCES = [p for p in python_files() if room_of(p) not in ("templates",)]


def short(path: Path) -> str:
    """Return a path as it stands in the project."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", text_files(), ids=short)
def test_no_file_names_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    assert [m.group() for m in MACHINE.finditer(text)] == []


@pytest.mark.parametrize("path", text_files((".py", ".sql", ".sh", "")), ids=short)
def test_nothing_is_left_to_do(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    assert [line for line in text.splitlines() if UNFINISHED.search(line)] == []


@pytest.mark.parametrize("path", SOURCES, ids=short)
def test_no_stubs(path: Path) -> None:
    assert list(_stubs(syntax(path), shape_only=False)) == []


def _stubs(node: ast.AST, *, shape_only: bool) -> Iterator[str]:
    """Yield functions without a body, outside protocols and abstract or overloaded methods."""
    for child in ast.iter_child_nodes(node):
        inside = shape_only
        if isinstance(child, ast.ClassDef):
            inside = any(ast.unparse(base).startswith("Protocol") for base in child.bases)
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not shape_only:
            body = [s for s in child.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            marks = " ".join(ast.unparse(d) for d in child.decorator_list)
            documented = ast.get_docstring(child) is not None
            placeholder = any(
                isinstance(s, ast.Raise)
                and s.exc is not None
                and ast.unparse(s.exc) in ("NotImplementedError", "NotImplementedError()")
                for s in body
            )
            hollow = all(isinstance(s, ast.Pass) for s in body) and not documented
            if (placeholder or hollow) and "abstract" not in marks and "overload" not in marks:
                yield f"{child.name} in line {child.lineno}"
        yield from _stubs(child, shape_only=inside)


@pytest.mark.parametrize("path", [p for p in SOURCES if room_of(p) in DOCUMENTED], ids=short)
def test_everything_public_is_documented(path: Path) -> None:
    tree = syntax(path)
    bare = [] if ast.get_docstring(tree) else ["the module"]
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                bare.append(node.name)
            protocol = isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(b) for b in node.bases)
            for inner in node.body if isinstance(node, ast.ClassDef) and not protocol else ():
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) and not inner.name.startswith("_"):
                    if not ast.get_docstring(inner) and not _explained(inner):
                        bare.append(f"{node.name}.{inner.name}")
    assert bare == []


def _explained(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A method that carries out a port or a base class is explained there."""
    return any(ast.unparse(d).split(".")[-1] in ("override", "setter", "overload") for d in function.decorator_list)


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name != "__init__.py"], ids=short)
def test_files_are_of_readable_length(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 560, f"{short(path)} has {lines} lines: one concept, one file"


@pytest.mark.parametrize("path", SOURCES, ids=short)
def test_no_failure_is_swallowed(path: Path) -> None:
    """A bare `except:`, or one of everything whose body is only `pass`."""
    found = []
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.ExceptHandler):
            everything = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
            if node.type is None or (everything and all(isinstance(s, (ast.Pass, ast.Continue)) for s in node.body)):
                found.append(node.lineno)
    assert found == []


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn: dict[str, str] = {}
    parents: dict[int, str] = {}
    for line in (leadscrew.errors.__doc__ or "").splitlines():
        match = re.match(r"^(?P<lead>[ │├└─]*)(?P<name>[A-Z]\w+)\b", line)
        if match and line.startswith("    ") and hasattr(leadscrew.errors, match["name"]):
            depth = len(match["lead"])
            parents[depth] = match["name"]
            drawn[match["name"]] = next((parents[d] for d in sorted(parents, reverse=True) if d < depth), "")
            for deeper in [d for d in parents if d > depth]:
                del parents[deeper]
    real = {
        name: value.__bases__[0].__name__ if issubclass(value.__bases__[0], leadscrew.errors.LeadscrewError) else ""
        for name, value in vars(leadscrew.errors).items()
        if isinstance(value, type) and issubclass(value, leadscrew.errors.LeadscrewError)
    }
    assert drawn == real


def test_exit_codes_tell_the_groups_apart() -> None:
    codes = [getattr(leadscrew.errors, n).exit_code for n in ("UsageError", "RefusedError", "PausedError")]
    assert len(set(codes)) == 3
    assert 0 not in codes


def test_data_rooms_hold_what_is_shipped() -> None:
    """Nothing that git ignores may be needed at run time: the wheel is built from what git knows."""
    names = {
        p.name for room in DATA_ROOMS if (SOURCE / room).is_dir() for p in (SOURCE / room).rglob("*") if p.is_file()
    }
    assert not {n for n in names if n.endswith((".egg-info", ".pyo"))}
