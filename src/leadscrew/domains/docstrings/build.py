"""Build the docstring data set from the standard library's source files. Stdlib only; also runs as a script.

The sources are parsed with `ast` and never imported. The script form lets a search process have the set built without
holding its test rows: they go straight into a file of their own.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
import json
import os
import random
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

GENERATOR = 6
"""Version of this generator; part of the cache key."""
SPLITS = ("train", "val", "test")
MIN_CHARS = 41
MAX_CHARS = 400
MIN_PER_LABEL = 15
MAX_PER_LABEL = 60
SHARES = (0.342, 0.1445)
"""Shares of train and val in each label; the rest is test, so that small differences can be resolved there."""
MASK = "MODULE"
# Tests and bundled applications are not the library; a private module is the twin of a public one.
_SKIPPED_TOPS = frozenset({"test", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "lib-dynload"})
_SKIPPED_PARTS = frozenset({"test", "tests", "idle_test", "__pycache__", "_vendor", "_bundled", "site-packages"})
_SHINGLE = 5

Row = list[str]
"""id, text, label"""


class NoSourcesError(Exception):
    """The interpreter ships too few of its library's source files."""


def library_root() -> Path:
    """Return the folder that holds the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def fold(text: str) -> str:
    """Return `text` with every run of white space as one blank.

    >>> fold("  a\\n   b ")
    'a b'
    """
    return " ".join(text.split())


def mask(text: str, module: str) -> str:
    """Return `text` with the module's name, in any case, replaced wherever no letter adjoins it.

    >>> mask("Email package; email.message, an email_x, emails", "email")
    'MODULE package; MODULE.message, an MODULE_x, emails'
    """
    return re.sub(rf"(?<![A-Za-z]){re.escape(module)}(?![A-Za-z])", MASK, text, flags=re.IGNORECASE)


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (top-level module, file) of everything a box may hold, in path order; the module is empty if it is no label."""
    for entry in sorted(root.iterdir()):
        top = entry.name.removesuffix(".py")
        label = "" if top.startswith("_") or top in _SKIPPED_TOPS or not top.isidentifier() else top
        for path in [entry] if entry.is_file() else sorted(entry.rglob("*.py")):
            if path.suffix == ".py" and not _SKIPPED_PARTS.intersection(path.relative_to(root).parts):
                yield label, path


def texts_of(path: Path) -> tuple[list[str], list[str]]:
    """Return the folded docstrings of one file's functions, methods and classes, and the long texts that are no docstrings.

    The file is parsed and never run. Both lists are empty for one that is no Python: it is never compiled, so in no box.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return [], []
    documented: list[str] = []
    others: list[str] = []
    stripped: set[int] = set()
    for node in ast.walk(tree):  # from the root downward: a docstring's owner comes before the docstring
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                stripped.add(id(first.value))
                text = first.value.value
                if (
                    isinstance(text, str)
                    and not isinstance(node, ast.Module)
                    and len(folded := fold(text)) >= MIN_CHARS
                ):
                    documented.append(folded)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if len(node.value) >= MIN_CHARS and id(node) not in stripped:
                others.append(node.value)
    return documented, others


def compiled_texts(root: Path) -> Iterator[str]:
    """Yield the long texts inside the interpreter's compiled modules, which keep their documentation in a box."""
    files = [Path(os.path.realpath(sys.executable))]
    files += sorted((root / "lib-dynload").glob("*.so"))
    files += sorted(p for p in root.parent.glob("libpython3*.so*") if p.is_file())
    for path in files:
        try:
            data = path.read_bytes()
        except OSError:
            continue
        for chunk in re.findall(rb"[\t\n -~]{40,}", data):
            yield chunk.decode("ascii")


def shingles(words: Sequence[str]) -> Iterator[int]:
    """Yield a hash of every run of 5 words.

    >>> len(list(shingles("a b c d e f".split())))
    2
    """
    for run in zip(words, words[1:], words[2:], words[3:], words[4:], strict=False):
        yield hash(run)


def is_readable(text: str, readable: Set[int]) -> bool:
    """Say whether 8 words in a row of a text (all but two, where it is shorter) are covered by known shingles."""
    words = text.split()
    needed = min(8, len(words) - 2) - _SHINGLE + 1
    if needed < 1:
        return True  # too few words to tell
    row = 0
    for shingle in shingles(words):
        row = row + 1 if shingle in readable else 0
        if row >= needed:
            return True
    return False


def collect(root: Path) -> dict[str, list[str]]:
    """Return the distinct masked texts of every top-level module, in source order.

    A text that stands in two modules has no single answer and is left out, as is one that can be read in a box.
    Raises `NoSourcesError` if almost nothing is found.
    """
    found = [(top, *texts_of(path)) for top, path in source_files(root)]
    # A program could look an answer up in usage texts and messages that repeat a docstring, and in compiled modules.
    readable: set[int] = set()
    for text in itertools.chain(compiled_texts(root), *(others for _, _, others in found)):
        readable.update(shingles(text.split()))
    texts: dict[str, dict[str, None]] = {}
    owners: dict[str, set[str]] = {}
    for top, documented, _ in found:
        for text in documented if top else ():
            if is_readable(text, readable):
                continue
            item = mask(text, top)[:MAX_CHARS].rstrip()
            texts.setdefault(top, {}).setdefault(item)
            owners.setdefault(item.casefold(), set()).add(top)
    pool: dict[str, list[str]] = {}
    for top, items in texts.items():
        seen: set[str] = set()
        for item in items:
            key = item.casefold()
            if len(owners[key]) == 1 and key not in seen:
                seen.add(key)
                pool.setdefault(top, []).append(item)
    pool = {top: items for top, items in pool.items() if len(items) >= MIN_PER_LABEL}
    if len(pool) < 10:
        raise NoSourcesError(f"only {len(pool)} modules with docstrings were found under {root}")
    return pool


def draw(
    pool: Mapping[str, list[str]], seed: int, labels: int | None = None, limits: Mapping[str, int] | None = None
) -> dict[str, list[Row]]:
    """Draw up to 60 texts per label and split each label's by fixed shares; rows are [id, text, label].

    `labels` keeps that many labels, drawn by the seed among the more frequent half (or among as many as are asked for).
    `limits` cuts splits to a number of rows after they were shuffled.
    """
    rng = random.Random(f"docstrings:{GENERATOR}:{seed}")
    names = sorted(pool, key=lambda name: (-len(pool[name]), name))
    if labels is not None:
        names = rng.sample(names[: max(labels, len(names) // 2)], min(labels, len(names)))
    splits: dict[str, list[Row]] = {split: [] for split in SPLITS}
    for name in sorted(names):
        drawn = rng.sample(pool[name], min(MAX_PER_LABEL, len(pool[name])))
        train = max(1, round(SHARES[0] * len(drawn)))
        val = max(1, round(SHARES[1] * len(drawn)))
        for split, part in zip(SPLITS, (drawn[:train], drawn[train : train + val], drawn[train + val :]), strict=True):
            splits[split].extend(["", text, name] for text in part)
    for split, rows in splits.items():
        rng.shuffle(rows)
        del rows[(limits or {}).get(split, len(rows)) :]
        for number, row in enumerate(rows):
            row[0] = f"{split}-{number:04d}"
    return splits


def write(folder: Path, splits: Mapping[str, list[Row]], about: Mapping[str, Any]) -> None:
    """Write `search.json` (train and val), `test.json` and, last, `manifest.json`, each by rename."""
    folder.mkdir(parents=True, exist_ok=True)
    search = _put(folder / "search.json", {split: splits[split] for split in ("train", "val")})
    test = _put(folder / "test.json", {"test": splits["test"]})
    counts = {split: len(rows) for split, rows in splits.items()}
    digests = {split: split_digest(rows) for split, rows in splits.items()}
    files = {"search.json": search, "test.json": test}
    _put(folder / "manifest.json", {**about, "counts": counts, "digests": digests, "files": files})


def split_digest(rows: Iterable[Row]) -> str:
    """Return the digest of a split as `Domain.split_digest` defines it."""
    value = [[id_, "main", text, label] for id_, text, label in rows]
    data = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()


def _put(path: Path, value: Any) -> str:
    data = json.dumps(value, ensure_ascii=True, sort_keys=True).encode("ascii")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(name, path)
    return hashlib.sha256(data).hexdigest()


def main(arguments: list[str]) -> int:
    """Build one set into a folder; exit code 3 when the library's sources are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--labels", type=int)
    parser.add_argument("--limits", type=json.loads, default={})
    given = parser.parse_args(arguments)
    try:
        pool = collect(library_root())
    except (NoSourcesError, OSError) as error:
        print(error, file=sys.stderr)
        return 3
    about = {"generator": GENERATOR, "python": sys.version, "seed": given.seed, "modules": len(pool)}
    write(given.folder, draw(pool, given.seed, given.labels, given.limits), about)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
