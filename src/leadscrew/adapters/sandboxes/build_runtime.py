"""Lay out a Python runtime for boxes. Run as a script by the interpreter that is to be copied; standard library only.

``python -I -S build_runtime.py DEST`` fills the empty folder DEST::

    bin/python3.11 (+ python, python3)   the interpreter
    lib/*.so*                            every shared library that it and its extension modules need, and the loader
    own/*.so*                            links to those of them that do not come from the system's library folders
    lib/python3.11/**.pyc                the standard library, source-less, without docstrings
    etc/passwd, etc/group                what a box shows instead of the host's
    empty/, nothing                      an empty folder and an empty file, to hide others behind
    layout.json                          {"python": "bin/python3.11", "loader": "/lib64/ld-linux-x86-64.so.2", ...}
"""

from __future__ import annotations

import ast
import importlib.util
import json
import marshal
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = frozenset(
    (
        "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "site-packages", "dist-packages", "lib2to3",
        "pydoc_data", "__pycache__", "lib-dynload", "__phello__", "turtle.py", "antigravity.py", "this.py", "venv",
        "pydoc.py",
    )
)  # fmt: skip
"""Folders and files that no program needs in a box, or that hold documentation as data."""

LEFT_OUT_EXTENSIONS = re.compile(r"^(_test|_ctypes_test|xx|_xx|_tkinter)")
SYSTEM_LIBRARIES = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")


def libraries(files: list[str]) -> tuple[dict[str, str], str]:
    """Return name -> path of the shared libraries that `ldd` names for `files`, and the path of the loader."""
    found: dict[str, str] = {}
    loader = ""
    done = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        text = line.strip().split(" (0x")[0]
        if " => " in text:
            name, path = text.split(" => ", 1)
            if path.startswith("/"):
                found.setdefault(os.path.basename(name), path)
                if os.path.basename(name).startswith(("ld-linux", "ld-musl", "ld64")):
                    loader = name if name.startswith("/") else path
        elif text.startswith("/") and not text.endswith(":"):
            found.setdefault(os.path.basename(text), text)
            loader = text
    return found, loader


class WithoutTexts(ast.NodeTransformer):
    """Empties documentation that is assigned by hand, which `optimize=2` keeps: `f.__doc__ = "..."`, `_f_doc = "..."`."""

    NAME = re.compile(r"(^|_)doc(string)?s?_*$", re.IGNORECASE)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        for target in node.targets:
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            if self.NAME.search(name) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                node.value.value = ""
        return node


def compile_tree(source: Path, target: Path, inside: str = "") -> int:
    """Compile a tree of modules to source-less byte code without docstrings; return how many were written."""
    count = 0
    for entry in sorted(source.iterdir()):
        if entry.name in LEFT_OUT or (not inside and entry.name.startswith("config-")):
            continue
        if entry.is_dir():
            count += compile_tree(entry, target / entry.name, f"{inside}{entry.name}/")
        elif entry.suffix == ".py":
            try:
                tree = WithoutTexts().visit(ast.parse(entry.read_bytes()))
                code = compile(tree, inside + entry.name, "exec", dont_inherit=True, optimize=2)
            except SyntaxError:
                continue  # files kept by the standard library as bad examples
            target.mkdir(parents=True, exist_ok=True)
            data = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
            (target / (entry.stem + ".pyc")).write_bytes(data)
            count += 1
    return count


def build(dest: Path) -> None:
    """Fill `dest`."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stdlib = Path(sysconfig.get_path("stdlib"))
    name = f"python{version}"
    home = dest / "lib" / name
    dynload = home / "lib-dynload"
    for folder in (dest / "bin", dest / "own", dest / "etc", dest / "empty", dynload):
        folder.mkdir(parents=True, exist_ok=True)
    binary = os.path.realpath(sys.executable)
    shutil.copyfile(binary, dest / "bin" / name)
    (dest / "bin" / name).chmod(0o755)
    for alias in ("python", "python3"):
        (dest / "bin" / alias).symlink_to(name)

    modules = compile_tree(stdlib, home)
    extensions = []
    source = Path(sysconfig.get_config_var("DESTSHARED") or stdlib / "lib-dynload")
    if not source.is_dir():
        source = stdlib / "lib-dynload"
    for entry in sorted(source.iterdir()) if source.is_dir() else []:
        if ".so" in entry.suffixes and not LEFT_OUT_EXTENSIONS.match(entry.name):
            shutil.copyfile(entry, dynload / entry.name)
            extensions.append(str(entry))

    found, loader = libraries([binary, *extensions])
    for library, path in found.items():
        shutil.copyfile(path, dest / "lib" / library)
        (dest / "lib" / library).chmod(0o755)
        if not path.startswith(SYSTEM_LIBRARIES):
            (dest / "own" / library).symlink_to(f"../lib/{library}")

    (dest / "etc" / "passwd").write_text("box:x:1000:1000:box:/work:/bin/sh\n")
    (dest / "nothing").touch()
    (dest / "etc" / "group").write_text("box:x:1000:\n")
    layout = {
        "python": f"bin/{name}",
        "stdlib": f"lib/{name}",
        "loader": loader,
        "host_stdlib": str(stdlib),
        "version": sys.version.split()[0],
        "modules": modules,
        "libraries": sorted(found),
    }
    (dest / "layout.json").write_text(json.dumps(layout, indent=1))
    for top, _, files in os.walk(dest):
        os.chmod(top, 0o755)
        for file in files:
            place = os.path.join(top, file)
            if not os.path.islink(place):
                os.chmod(place, 0o755 if top == str(dest / "bin") or ".so" in file else 0o644)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
