"""Named packages of an interpreter, mounted into boxes one by one, with the shared libraries they need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from leadscrew.adapters.sandboxes.build_runtime import libraries
from leadscrew.adapters.sandboxes.runtime import Runtime, cache_folder
from leadscrew.core.canonical import digest_of
from leadscrew.core.task import ProgramEnvironment
from leadscrew.errors import ConfigError

_ASK = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))]))"


@dataclass(frozen=True, slots=True)
class Packages:
    """Where packages lie on the host and in a box, and the folders in the box that hold their libraries."""

    mounts: tuple[tuple[str, str], ...] = ()
    library_folders: tuple[str, ...] = ()


def find_packages(environment: ProgramEnvironment, runtime: Runtime, cache: Path | None = None) -> Packages:
    """Find every named package and its libraries; raises `ConfigError` naming the one that is not installed.

    A package named `numpy` brings `numpy/` or `numpy.py`, a folder `numpy.libs` beside it and the metadata of its name,
    for packages that ask for their own version; nothing else, so what it imports in turn must be named too.
    """
    if not environment.packages:
        return Packages()
    folders = site_folders(environment.interpreter)
    mounts: list[tuple[str, str]] = []
    for name in environment.packages:
        top = name.split(".")[0]
        found = next((hit for folder in folders for hit in _entries(folder, top)), None)
        if found is None:
            raise ConfigError(
                f"the program environment names the package {name!r}, but it is not in "
                f"{', '.join(folders) or 'any package folder'} of {environment.interpreter or sys.executable}. "
                "Programs could not import it: install it there, or leave it out. Write the import name (`yaml`, not `PyYAML`).",
                key="environment.packages", value=name,
            )  # fmt: skip
        beside = os.path.dirname(found)
        for path in (found, os.path.join(beside, f"{top}.libs"), *_metadata(beside, top)):
            target = f"/site/{os.path.relpath(path, beside)}"
            if os.path.exists(path) and (path, target) not in mounts:
                mounts.append((path, target))
    extra = _libraries(mounts, runtime, cache)
    return Packages((*mounts, *extra), tuple(target for _, target in extra))


@lru_cache(maxsize=16)
def site_folders(interpreter: str) -> Sequence[str]:
    """Return the package folders of an interpreter; empty names the one that runs this."""
    if not interpreter:
        return [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    done = subprocess.run([interpreter, "-s", "-c", _ASK], capture_output=True, text=True, check=False)
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


def _entries(folder: str, name: str) -> list[str]:
    if os.path.isdir(os.path.join(folder, name)):
        return [os.path.join(folder, name)]
    if not os.path.isdir(folder):
        return []
    return [
        os.path.join(folder, file)
        for file in sorted(os.listdir(folder))
        if file == f"{name}.py" or (file.startswith(f"{name}.") and file.endswith(".so"))
    ]


def _metadata(folder: str, name: str) -> list[str]:
    # Not the whole folder: other files in it tell where on the host things come from.
    ends = ("METADATA", "entry_points.txt")
    plain = name.lower().replace("_", "-")
    found = [
        info
        for info in sorted(os.listdir(folder))
        if info.endswith(".dist-info") and info.split("-")[0].lower().replace("_", "-") == plain
    ]
    return [path for info in found for end in ends if os.path.exists(path := os.path.join(folder, info, end))]


def _libraries(mounts: Sequence[tuple[str, str]], runtime: Runtime, cache: Path | None) -> tuple[tuple[str, str], ...]:
    """Copy the shared libraries that the packages need beyond their own and the runtime's into a cached folder."""
    objects: list[str] = []
    for source, _ in mounts:
        if os.path.isdir(source):
            objects += [str(p) for p in sorted(Path(source).rglob("*.so*")) if p.is_file()]
        elif ".so" in os.path.basename(source):
            objects.append(source)
    if not objects:
        return ()
    roots = tuple(os.path.realpath(source) + "/" for source, _ in mounts)
    found, _ = libraries(objects)
    have = set(os.listdir(runtime.folder / "lib"))
    needed = {n: p for n, p in found.items() if n not in have and not os.path.realpath(p).startswith(roots)}
    if not needed:
        return ()
    marks = [(n, p, os.stat(p).st_size, os.stat(p).st_mtime_ns) for n, p in sorted(needed.items())]
    folder = (cache or cache_folder()) / "libraries" / digest_of([list(m) for m in marks])[:32]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".build-", dir=folder.parent))
        scratch.chmod(0o755)
        for name, path in needed.items():
            shutil.copyfile(path, scratch / name)
            (scratch / name).chmod(0o755)
        try:
            os.rename(scratch, folder)
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            if not folder.is_dir():
                raise
    return ((str(folder), "/site.libs"),)
