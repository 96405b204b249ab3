"""`leadscrew init`: a small real task in a folder that runs at once, or a repository as the program."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from leadscrew.errors import NotFoundError, UsageError

ROWS = {"train": 40, "val": 60, "test": 150}
_MINUTES = {"billing": 6.0, "login": 4.0, "api": 28.0, "hardware": 17.0}
_CARE = {"key": 1.5, "regular": 1.0, "new": 1.2}


@dataclass(frozen=True, slots=True)
class Scaffold:
    """What was made: the folder, its files in order, and the command that runs it."""

    folder: Path
    files: tuple[str, ...]
    next: str


def init(folder: str | Path, *, from_git: str | Path | None = None) -> Scaffold:
    """Write a task into `folder`, which must be absent or empty. Raises `UsageError` otherwise.

    With `from_git` the tracked files of that repository become the program, with an entry file where it has none.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{str(target)!r} exists and is not empty; nothing was written. Name a new folder.")
    name = target.resolve().name
    if from_git is None:
        files = {**_template("init", {"name": name}), **_data(_tickets())}
    else:
        repository = _tracked(Path(from_git))
        files = {f"program/{path}": data for path, data in repository.items()}
        door = "it is there already, check it" if "main.py" in repository else "one that echoes its input was added"
        texts = _template("init_git", {"name": name, "repo": str(Path(from_git)), "door": door})
        entry = texts.pop("main.py")
        files.setdefault("program/main.py", entry)
        files |= texts | _data(_placeholders())
        files["leadscrew.toml"] = _template("init", {"name": name})["leadscrew.toml"]
    for path, data in files.items():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return Scaffold(target, tuple(sorted(files)), f"leadscrew run {target}")


def _template(name: str, words: Mapping[str, str]) -> dict[str, bytes]:
    """Read a template folder. `$name` is filled in for texts meant for people and settings, never in code."""
    root = resources.files("leadscrew") / "templates" / name
    out: dict[str, bytes] = {}
    pending = [(root, "")]
    while pending:
        place, prefix = pending.pop()
        for entry in place.iterdir():
            path = prefix + entry.name
            if entry.is_dir():
                if entry.name != "__pycache__":
                    pending.append((entry, path + "/"))
            elif path.endswith((".md", ".toml")):
                out[path] = Template(entry.read_text("utf-8")).substitute(words).encode()
            elif path.endswith(".py"):
                out[path] = entry.read_bytes()
    return out


def _tracked(repository: Path) -> dict[str, bytes]:
    """The regular tracked files of a repository folder, as they are in the working tree."""
    if not repository.is_dir():
        raise NotFoundError(f"there is no folder {str(repository)!r}. Name a git checkout.", name=str(repository))
    try:
        listed = subprocess.run(
            ["git", "-C", str(repository), "ls-files", "-z"], capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise UsageError("--from-git needs the command `git`, which is not installed here.") from None
    if listed.returncode != 0:
        reason = listed.stderr.decode("utf-8", "replace").strip().splitlines()[:1]
        raise UsageError(f"{str(repository)!r} is no git checkout: {' '.join(reason) or 'git ls-files failed'}.")
    out: dict[str, bytes] = {}
    for path in listed.stdout.decode("utf-8", "surrogateescape").split("\0"):
        place = repository / path
        if path and place.is_file() and not place.is_symlink():
            out[path] = place.read_bytes()
    if not out:
        raise UsageError(f"{str(repository)!r} has no tracked files here; commit or `git add` what should evolve.")
    return out


def _data(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, bytes]:
    return {
        f"data/{split}.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in items).encode()
        for split, items in rows.items()
    }


def _tickets() -> dict[str, list[dict[str, Any]]]:
    """Support tickets and the minutes they took, with a spread of 6 %; the same rows on every machine."""
    source = _ticket_stream(random.Random(20240229))
    return {
        split: [{"id": f"{split}-{n:03}", **next(source)} for n in range(1, count + 1)] for split, count in ROWS.items()
    }


def _ticket_stream(rng: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        ticket: dict[str, Any] = {
            "words": int(rng.triangular(10, 600, 90)),
            "attachments": rng.choice((0, 0, 0, 1, 1, 2, 4)),
            "product": rng.choice(tuple(_MINUTES)),
            "customer": rng.choice(("regular", "regular", "new", "key")),
            "reopened": rng.choice((0, 0, 0, 1, 2)),
            "weekend": rng.random() < 0.25,
        }
        minutes = ticket["words"] / 70 + ticket["attachments"] * 2.5
        handling = _MINUTES[ticket["product"]] + ticket["reopened"] * 5
        minutes += handling * 1.25 if ticket["weekend"] else handling
        minutes *= _CARE[ticket["customer"]] * rng.uniform(0.94, 1.06)
        yield {"input": ticket, "expected": round(minutes, 1)}


def _placeholders() -> dict[str, list[dict[str, Any]]]:
    """Rows that only show the form; every second one is answered right by a program that echoes its input."""
    counts = {"train": 4, "val": 8, "test": 8}
    return {
        split: [
            {"id": f"{split}-{n:03}", "input": f"{split} {n}", "expected": f"{split} {n if n % 2 else 'else'}"}
            for n in range(1, count + 1)
        ]
        for split, count in counts.items()
    }
