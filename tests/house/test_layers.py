"""Imports run downward only, and some rooms are known to few (design section 5)."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from house.tree import (
    DATA_ROOMS,
    SOURCE,
    circles,
    imports,
    module_name,
    modules,
    python_files,
    room_of,
    room_of_module,
    syntax,
)

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("core",),
    ("policies",),
    ("ports",),
    ("engine",),
    ("operators",),
    ("methods",),
    ("adapters", "domains"),
    ("testing",),
    ("report", "config", "plugins", "roles", "wire"),
    ("sitting",),
    ("runs", "control", "models"),
    ("web", "cli", "__main__"),
    ("__init__",),
)
HEIGHT = {room: height for height, rooms in enumerate(LAYERS) for room in rooms}
APART = [{"adapters", "domains"}, {"web", "cli"}]
"""Rooms of one height that do not know each other."""
KNOW_ADAPTERS = {"adapters", "wire", "roles", "models", "plugins", "testing"}
HEAVY = ["libcst", "rich", "numpy", "scipy", "msgspec", "aiohttp", "genai_prices", "xllamacpp", "openai", "anthropic"]
METHODS = re.compile(r"hyper_?agent|meta_?skill|harness|swarm", re.IGNORECASE)


def arrows() -> list[tuple[str, str, int]]:
    """Return (module, imported module, line) for every import of the package by itself."""
    return [
        (module_name(path), found.target, found.line)
        for path in python_files()
        if room_of(path) not in DATA_ROOMS
        for found in imports(path)
        if found.target.split(".")[0] == "leadscrew"
    ]


def test_every_room_has_a_place() -> None:
    rooms = {room_of(path) for path in python_files()} - set(DATA_ROOMS)
    assert rooms <= set(HEIGHT), f"no layer for {sorted(rooms - set(HEIGHT))}"


def test_no_arrow_points_upward() -> None:
    found = arrows()
    assert len(found) > 20
    upward = [
        f"{module}:{line} imports {target}"
        for module, target, line in found
        if HEIGHT[room_of_module(target)] > HEIGHT[room_of_module(module)]
        or any({room_of_module(module), room_of_module(target)} == apart for apart in APART)
    ]
    assert not upward, "\n".join(upward)


def test_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module, target, _ in arrows():
        if target in modules() and target != module:
            graph.setdefault(module, set()).add(target)
    assert circles(graph) == []


def test_every_import_of_ours_exists() -> None:
    unknown = [f"{module}:{line} {target}" for module, target, line in arrows() if target not in modules()]
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("room", DATA_ROOMS)
def test_data_rooms_are_imported_by_nobody(room: str) -> None:
    assert [arrow for arrow in arrows() if room_of_module(arrow[1]) == room] == []


def test_the_guest_needs_the_standard_library_only() -> None:
    guests = [path for path in python_files() if room_of(path) == "guest"]
    own = {path.stem for path in guests} | {"leadscrew_guest"}
    foreign = [
        f"{path.name}:{found.line} {found.target}"
        for path in guests
        for found in imports(path)
        if found.target.split(".")[0] not in own | sys.stdlib_module_names
        # What the type checker alone reads names the neighbours by their place in the package.
        and not found.target.startswith("leadscrew.guest.")
    ]
    assert not foreign, foreign


def test_only_a_few_know_the_adapters() -> None:
    outsiders = [
        f"{module}:{line} imports {target}"
        for module, target, line in arrows()
        if room_of_module(target) == "adapters" and room_of_module(module) not in KNOW_ADAPTERS
    ]
    assert not outsiders, "\n".join(outsiders)


@pytest.mark.parametrize("room", ["core", "policies", "ports", "engine"])
def test_the_engine_names_no_method(room: str) -> None:
    """Identifiers and strings count; docstrings may explain for whom something is."""
    named = []
    for path in python_files():
        if room_of(path) == room:
            tree = syntax(path)
            docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                words = [v for v in vars(node).values() if isinstance(v, str) and id(node) not in docs]
                named += [
                    f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', '?')} {w}" for w in words if METHODS.search(w)
                ]
    assert not named, "\n".join(named)


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_never_loaded_with_the_face(package: str) -> None:
    import subprocess

    code = f"import leadscrew, sys; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_heavy_packages_are_never_loaded_with_the_help() -> None:
    import subprocess

    code = f"""
import sys
from leadscrew.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "usage: leadscrew" in done.stdout
    assert done.stderr == "[]\n"
