"""Rows from JSON-lines files, with one clear error per fault, and a check that no input stands in two splits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from leadscrew.core.canonical import digest_of
from leadscrew.core.task import SPLITS, Instance, Split
from leadscrew.errors import DomainError

Row = tuple[int, dict[str, Any]]
"""Line number (from 1) and object."""
SPLIT_FILES: Mapping[Split, tuple[str, ...]] = {
    "train": ("train.jsonl",),
    "val": ("val.jsonl", "valid.jsonl", "validation.jsonl", "dev.jsonl"),
    "test": ("test.jsonl",),
}


def read_rows(path: Path) -> list[Row]:
    """Read one JSON object per line; blank lines are skipped.

    Raises `DomainError` with file and line for what cannot be read, is no UTF-8, no JSON, no object, or holds NaN; and
    for a file without rows.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DomainError(f"the data file {path} cannot be read ({error.strerror or error}).") from None
    rows: list[Row] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_no_constant)
        except UnicodeDecodeError as error:
            raise DomainError(f"{path}, line {number}: no UTF-8 text ({error.reason} at byte {error.start}).") from None
        except (ValueError, RecursionError) as error:
            raise DomainError(
                f"{path}, line {number}: no JSON ({error}). Write one object per line, such as "
                '{"input": "...", "expected": "..."}.'
            ) from None
        if not isinstance(row, dict):
            raise DomainError(
                f"{path}, line {number}: a {type(row).__name__}, not an object. Write one object per line, such as "
                '{"input": "...", "expected": "..."}.'
            )
        rows.append((number, row))
    if not rows:
        raise DomainError(f"the data file {path} holds no rows; a split needs at least one.")
    return rows


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def split_file(folder: Path, split: Split) -> Path:
    """Return the file of a split in a folder; raises `DomainError` if there is none."""
    for name in SPLIT_FILES[split]:
        if (folder / name).is_file():
            return folder / name
    names = " or ".join(SPLIT_FILES[split])
    present = sorted(p.name for p in folder.glob("*")) if folder.is_dir() else []
    found = f"it holds {', '.join(present[:8])}" if present else "it is empty or missing"
    raise DomainError(f"the data folder {folder} has no {names} ({found}). Each of train, val and test needs a file.")


def has_splits(folder: Path) -> bool:
    """Say whether a folder holds a file of any split."""
    return any((folder / name).is_file() for names in SPLIT_FILES.values() for name in names)


@dataclass(frozen=True, slots=True)
class Hygiene:
    """Which inputs stand twice. `shared` gives pairs of ids of equal inputs in two splits, `duplicates` within one."""

    shared: Mapping[tuple[Split, Split], tuple[tuple[str, str], ...]] = field(default_factory=dict)
    duplicates: Mapping[Split, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return one sentence per finding."""
        out = [
            f"{len(pairs)} input{_s(pairs)} of {a} also stand{_s(pairs, verb=True)} in {b} (first: {_pair(pairs[0])})"
            for (a, b), pairs in self.shared.items()
        ]
        out += [
            f"{len(pairs)} input{_s(pairs)} of {split} repeat{_s(pairs, verb=True)} another (first: {_pair(pairs[0])})"
            for split, pairs in self.duplicates.items()
        ]
        return out


def _s(pairs: Sequence[Any], *, verb: bool = False) -> str:
    return "s" if (len(pairs) == 1) == verb else ""


def _pair(pair: tuple[str, str]) -> str:
    return f"{pair[0]} = {pair[1]}"


def input_key(value: Any) -> str:
    """Return a digest under which inputs count as the same: case and white space of texts do not matter.

    >>> input_key("A  b") == input_key("a b"), input_key(1) == input_key("1")
    (True, False)
    """
    return digest_of(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def inspect_splits(splits: Mapping[Split, Iterable[Instance]]) -> Hygiene:
    """Compare inputs within and between splits. Equal inputs of different data sets count too."""
    keys: dict[Split, dict[str, str]] = {}
    duplicates: dict[Split, tuple[tuple[str, str], ...]] = {}
    for split, instances in splits.items():
        seen: dict[str, str] = {}
        twice: list[tuple[str, str]] = []
        for instance in instances:
            key = input_key(instance.input)
            if key in seen:
                twice.append((seen[key], instance.id))
            else:
                seen[key] = instance.id
        keys[split] = seen
        if twice:
            duplicates[split] = tuple(twice)
    shared: dict[tuple[Split, Split], tuple[tuple[str, str], ...]] = {}
    order = [split for split in SPLITS if split in keys]
    for i, a in enumerate(order):
        for b in order[i + 1 :]:
            both = tuple((keys[a][key], keys[b][key]) for key in keys[a] if key in keys[b])
            if both:
                shared[a, b] = both
    return Hygiene(shared, duplicates)


def refuse_overlap(domain: str, hygiene: Hygiene, *, allow: bool) -> None:
    """Raise `DomainError` where test inputs stand in train or val, unless that is allowed."""
    if allow:
        return
    for (a, b), pairs in hygiene.shared.items():
        if b == "test":
            raise DomainError(
                f"the data of {domain!r} are not clean: {Hygiene({(a, b): pairs}).lines()[0]}. The test would not be "
                "held out. Remove these rows from one of the two, or set the option allow_overlap = true."
            )
