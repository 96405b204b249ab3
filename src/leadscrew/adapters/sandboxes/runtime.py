"""The prepared runtime: an interpreter, its shared libraries and a documentation-stripped standard library in a folder.

Boxes mount this folder at `/py` instead of the host's `/usr`, so nothing of the host's software is inside. It is built
once per interpreter (about two seconds, 70 MB) in the user's cache folder, and named by a digest of the interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from leadscrew.core.canonical import digest_of
from leadscrew.errors import SandboxUnavailable

FORMAT = 1
"""Raised when the layout of the folder changes, so that old caches are not used."""

_FACTS = "import sys, sysconfig; print(sysconfig.get_path('stdlib')); print(sys.version)"
_BUILDER = Path(__file__).with_name("build_runtime.py")


@dataclass(frozen=True, slots=True)
class Runtime:
    """A prepared runtime. `folder` is mounted at `/py`; `python`, `stdlib` are paths inside it, `loader` is where the
    interpreter's ELF header looks for the dynamic loader, `host_stdlib` the standard library it was made from."""

    folder: Path
    python: str
    stdlib: str
    loader: str
    host_stdlib: str
    version: str

    def cover(self, folder: bool) -> str:
        """Return the host path of an empty folder, or else of an empty file, to hide something behind."""
        return str(self.folder / ("empty" if folder else "nothing"))


def cache_folder() -> Path:
    """Return leadscrew's cache folder: `$XDG_CACHE_HOME/leadscrew` or `~/.cache/leadscrew`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "leadscrew"


def prepare(interpreter: str = "", cache: Path | None = None) -> Runtime:
    """Return the runtime for an interpreter (empty: the one that runs this), building it first if need be.

    Two processes may call this at once: each builds in a folder of its own and the first rename wins.
    Raises `SandboxUnavailable` if it cannot be built.
    """
    path = os.path.realpath(interpreter or sys.executable)
    facts = _facts(path)
    folder = (cache or cache_folder()) / "runtimes" / digest_of([FORMAT, facts, _BUILDER.read_text()])[:32]
    if not (folder / "layout.json").is_file():
        _build(path, folder)
    layout: dict[str, Any] = json.loads((folder / "layout.json").read_text())
    return Runtime(
        folder, layout["python"], layout["stdlib"], layout["loader"], layout["host_stdlib"], layout["version"]
    )


def _build(interpreter: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".build-", dir=folder.parent))
    try:
        done = subprocess.run(
            [interpreter, "-I", "-S", "-W", "ignore", str(_BUILDER), str(scratch)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SandboxUnavailable(
                f"the runtime for boxes could not be built from {interpreter}: {last}. Boxes run on a copy of this "
                "interpreter; it needs `ldd` (Debian: apt install libc-bin) and about 100 MB in "
                f"{folder.parent} (set XDG_CACHE_HOME to put it elsewhere)."
            )
        try:
            os.rename(scratch, folder)
        except OSError:
            if not (folder / "layout.json").is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@lru_cache(maxsize=16)
def _facts(path: str) -> tuple[object, ...]:
    """Return what makes two interpreters different, for the digest."""
    if path == os.path.realpath(sys.executable):
        version, stdlib = sys.version, sysconfig.get_path("stdlib")
    else:
        try:
            done = subprocess.run([path, "-I", "-S", "-c", _FACTS], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SandboxUnavailable(
                f"the interpreter {path!r} cannot be run ({error}), but programs were to run on a copy of it; "
                "name a Python >= 3.11 in the program environment, or leave `interpreter` empty."
            ) from error
        stdlib, version = done.stdout.split("\n", 1)
    marks = []
    for file in (path, os.path.join(stdlib, "os.py"), os.path.join(stdlib, "lib-dynload")):
        try:
            status = os.stat(file)
        except OSError:
            continue
        marks.append((file, status.st_size, status.st_mtime_ns))
    return (version.strip(), stdlib, tuple(marks))
