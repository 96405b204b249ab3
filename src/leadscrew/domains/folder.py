"""`folder`: the user's own task as files: `data/*.jsonl` and a scorer `score.py`. What `leadscrew init` scaffolds."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from leadscrew.core.canonical import digest_of
from leadscrew.core.task import SPLITS, Limits, Provenance, Split
from leadscrew.domains.function import FunctionDomain, Rows, Scoring, caller
from leadscrew.domains.options import number, sizes, whole
from leadscrew.domains.tables import read_rows, split_file
from leadscrew.errors import DomainError


class FolderDomain(FunctionDomain):
    """A folder with `data/train.jsonl`, `data/val.jsonl`, `data/test.jsonl` and `score.py`.

    Rows have `input`, `expected` and, if wanted, `id` and `dataset`. `score.py` defines `score(input, answer, expected)`
    as `FunctionDomain` takes it, with a fourth parameter `judge` if it asks a model; it is run only where answers are
    scored. `scorer` and `data` name other places, relative to `path`; `scorer` may be `file.py:function`. `limit` keeps the
    first rows of the splits. Limits of a trial (`cpu_s`, `wall_s`, `load_s`, `memory_mb`) and every option of
    `FunctionDomain` but rows may be given too.

    Raises `DomainError` for a missing or broken file, with file and line.
    """

    name = "folder"

    def __init__(
        self,
        *,
        path: str = ".",
        scorer: str = "score.py",
        data: str = "data",
        operation: str = "solve",
        entry: str = "main.py",
        mode: str = "offline",
        objective: str = "score",
        direction: str = "max",
        floor: float | None = None,
        ceiling: float | None = None,
        costs: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
        limit: int | Mapping[str, int] | None = None,
        cpu_s: float | None = None,
        wall_s: float | None = None,
        load_s: float | None = None,
        memory_mb: int | None = None,
        allow_overlap: bool = False,
    ) -> None:
        root = Path(path).expanduser().absolute()
        if not root.is_dir():
            raise DomainError(f"the task folder {root} does not exist or is no folder; set 'path' of the domain.")
        file, _, function = scorer.partition(":")
        self.scorer_file = root / file
        self.data_folder = root / data
        self._function_name = function or "score"
        self._limit = sizes(self.name, "limit", limit)
        judged = check_scorer(self.scorer_file, self._function_name)
        self._loaded: Scoring | None = None
        super().__init__(
            self._scored,
            lambda: self._rows("train"),
            lambda: self._rows("val"),
            lambda: self._rows("test"),
            operation=operation,
            entry=entry,
            mode=mode,
            objective=objective,
            direction=direction,
            floor=floor,
            ceiling=ceiling,
            costs=costs,
            packages=packages,
            masks=(str(self.data_folder), str(self.scorer_file)),
            provenance=Provenance(f"the folder {root.name}", "unstated: the user's own data", "unpublished"),
            allow_overlap=allow_overlap,
        )
        self.judged = judged
        self.limits = _limits(self, {"cpu_s": cpu_s, "wall_s": wall_s, "load_s": load_s}, memory_mb)
        for split in SPLITS:
            split_file(self.data_folder, split)
        self.instances("train")  # a wrong row is told now, not at the first trial

    def scorer_digest(self) -> str:
        """Return a digest of the Python files beside the scorer, which it may import, and of the objectives."""
        beside = sorted(p for p in self.scorer_file.parent.glob("*.py") if p.is_file())
        texts = [[p.name, hashlib.sha256(p.read_bytes()).hexdigest()] for p in beside]
        names = [[o.name, o.direction, o.floor] for o in self.objectives]
        return digest_of([self.name, self.scorer_file.name, self._function_name, texts, names])

    def _rows(self, split: Split) -> Rows:
        path = split_file(self.data_folder, split)
        rows = read_rows(path)
        for line, row in rows:
            if "input" not in row:
                has = ", ".join(sorted(row)) or "nothing"
                raise DomainError(f"{path}, line {line}: no 'input'; it has {has}. Write 'input' and 'expected'.")
        return [row for _, row in rows[: self._limit.get(split, len(rows))]]

    def _scored(self, input: Any, answer: Any, expected: Any) -> Any:
        # The user's module is loaded where the first answer is scored, so that no other process runs it.
        return self._scoring()(input, answer, expected)

    def _scoring(self) -> Scoring:
        if self._loaded is None:
            self._loaded = caller(load_scorer(self.scorer_file, self._function_name), self.name)
        return self._loaded


def _limits(domain: FolderDomain, seconds: Mapping[str, float | None], memory_mb: int | None) -> Limits:
    changes: dict[str, Any] = {k: number(domain.name, k, v, 0) for k, v in seconds.items() if v is not None}
    if memory_mb is not None:
        changes["memory_mb"] = whole(domain.name, "memory_mb", memory_mb, 16)
    return replace(domain.limits, **changes)


def check_scorer(path: Path, function: str) -> bool:
    """Parse the scorer without running it and say whether `function` takes a parameter `judge`; raises `DomainError` if it
    cannot define `function`."""
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DomainError(
            f"the scorer {path} cannot be read ({error.strerror}). Write a file with score(input, answer, expected), or "
            "set the option 'scorer' of the domain."
        ) from None
    except UnicodeDecodeError:
        raise DomainError(f"the scorer {path} is no UTF-8 text.") from None
    try:
        tree = ast.parse(source, str(path))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise DomainError(f"the scorer {path}{line}: no Python ({reason}).") from None
    names: set[str] = set()
    judged = False
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function:
            judged = any(a.arg == "judge" for a in (*node.args.args, *node.args.kwonlyargs))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    if function not in names and "*" not in names:
        has = ", ".join(sorted(names)) or "nothing"
        raise DomainError(
            f"the scorer {path} defines no {function!r} (it defines {has}). Write def {function}(input, answer, expected)."
        )
    return judged


def load_scorer(path: Path, function: str) -> Callable[..., Any]:
    """Run the scorer's file and return its function; raises `DomainError` if it fails or lacks it."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = ModuleType("leadscrew_user_scorer")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a module up by its name
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except Exception as error:
        raise DomainError(f"the scorer {path} cannot be loaded: {type(error).__name__}: {error}.") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise DomainError(f"the scorer {path} has no function {function!r} after it was loaded.")
    return found  # type: ignore[no-any-return]
