"""`docstrings`: which module of the standard library does this docstring come from?

Built from the running interpreter's own source files, so it exists wherever Python does. Texts stay on the machine:
the package ships the generator, not the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leadscrew.core.canonical import digest_of
from leadscrew.core.task import Instance, Provenance, Split
from leadscrew.domains.classification import Classification
from leadscrew.domains.docstrings import build
from leadscrew.domains.masks import cache_folder, standard_library_texts
from leadscrew.domains.options import sizes, whole
from leadscrew.errors import DomainError


class Docstrings(Classification):
    """Docstring -> top-level module: about 63 labels and 875 / 370 / 1,285 train / val / test texts, drawn by the seed.

    Functions, methods and classes with more than 40 characters of documentation; the module's name is masked, white
    space folded, the text cut at 400 characters; up to 60 texts per module. What could be read back inside a box is left
    out: documentation that is also compiled into the interpreter (`os`, `codecs`, ...) or repeated by usage texts.

    `labels` restricts the task to that many modules, `limit` the rows (a number, or a table by split), `mode` is how
    learners see train, `solver = "llm"` puts programs that ask a model among the baselines, `cache` replaces the folder
    where built sets are kept. The set is built once, in a process of its own, in about 3 s; its test rows are a separate
    file that only `instances("test")` reads.
    Raises `DomainError` for wrong options or when the interpreter ships no sources.
    """

    name = "docstrings"
    public_since = "1991-02-20"

    def __init__(
        self,
        *,
        seed: int = 0,
        labels: int | None = None,
        limit: int | Mapping[str, int] | None = None,
        mode: str = "offline",
        solver: str = "none",
        cache: str = "",
    ) -> None:
        super().__init__(mode=mode, solver=solver)
        seed = whole(self.name, "seed", seed, 0)
        if labels is not None:
            labels = whole(self.name, "labels", labels, 2)
        self._arguments = [
            "--seed",
            str(seed),
            "--limits",
            json.dumps(sizes(self.name, "limit", limit), sort_keys=True),
        ]
        if labels is not None:
            self._arguments += ["--labels", str(labels)]
        self._root = Path(cache) if cache else cache_folder()
        key = digest_of([build.GENERATOR, sys.version, str(build.library_root()), self._arguments])
        self._folder = self._root / "docstrings" / key[:32]
        self._manifest = self._ready()
        self._masks: list[str] = []
        self._rows: dict[str, Sequence[Instance]] = {}
        self.provenance = Provenance(
            f"docstrings of the standard library of Python {sys.version.split()[0]}, generator {build.GENERATOR}",
            "PSF-2.0",
            self.public_since,
            digest_of(self._manifest["digests"]),
        )

    def instances(self, split: Split) -> Sequence[Instance]:
        """Return a split's rows; the test file is opened for `test` only."""
        if split not in self._rows:
            rows = self._read("test.json" if split == "test" else "search.json")
            for name, part in rows.items():
                self._rows[name] = tuple(Instance(i, name, text, label) for i, text, label in part)
        return self._rows[split]

    def split_digest(self, split: Split) -> str:
        """Return the digest that was taken when the set was built, without reading its rows."""
        return str(self._manifest["digests"][split])

    def masks(self) -> Sequence[str]:
        """Return the standard library's sources wherever they lie on this host, and the built sets."""
        if not self._masks:
            self._masks = [*standard_library_texts(), str(self._folder.parent)]
        return self._masks

    # -- the built set ---------------------------------------------------------------------------

    def _ready(self) -> dict[str, Any]:
        manifest = self._manifest_on_disk()
        if manifest is None:
            self._build()
            manifest = self._manifest_on_disk()
        if manifest is None:
            raise DomainError(f"the docstring data set under {self._folder} cannot be read although it was just built.")
        return manifest

    def _manifest_on_disk(self) -> dict[str, Any] | None:
        try:
            manifest = json.loads((self._folder / "manifest.json").read_bytes())
        except (OSError, ValueError):
            return None
        return manifest if isinstance(manifest, dict) and "digests" in manifest and "files" in manifest else None

    def _build(self) -> None:
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            work = Path(tempfile.mkdtemp(prefix=".building-", dir=self._folder.parent))
        except OSError as error:
            raise DomainError(
                f"the docstring data set cannot be kept in {self._root} ({error.strerror}). "
                "Set XDG_CACHE_HOME, or the option 'cache' of the domain, to a folder that can be written."
            ) from None
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(Path(build.__file__)), str(work), *self._arguments],
                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode != 0:
                reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
                raise DomainError(
                    f"the docstring data set cannot be built: {reason[0]}. It is parsed from the standard library's "
                    "source files: use an interpreter that ships them as .py files, or another domain such as "
                    "'classify-jsonl'."
                )
            for name in ("search.json", "test.json", "manifest.json"):
                self._folder.mkdir(exist_ok=True, mode=0o700)
                os.replace(work / name, self._folder / name)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _read(self, name: str) -> dict[Split, list[build.Row]]:
        path = self._folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DomainError(
                f"{path} cannot be read ({error.strerror}). Make the domain again: it is then rebuilt."
            ) from None
        if hashlib.sha256(data).hexdigest() != self._manifest["files"][name]:
            raise DomainError(
                f"{path} was altered after it was built. Delete the folder {self._folder}: it is then rebuilt."
            )
        rows: dict[Split, list[build.Row]] = json.loads(data)
        return rows
