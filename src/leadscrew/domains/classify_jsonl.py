"""`classify-jsonl`: the user's own classification data, a folder with train, val and test as JSON lines per data set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leadscrew.core.task import Answer, Instance, Provenance, Score, Split
from leadscrew.domains.classification import Classification, label_of
from leadscrew.domains.options import choice, nearest, sizes
from leadscrew.domains.tables import Hygiene, has_splits, inspect_splits, read_rows, refuse_overlap, split_file
from leadscrew.errors import DomainError
from leadscrew.ports import BoxReply

RULES = ("normal", "exact", "set", "smiles")
# (expected field, input fields that must be there, input fields taken along where they are): the first that fits.
_LAYOUTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("label", ("text",), ()),
    ("prompt_label", ("prompt",), ()),
    ("answer", ("question",), ("instruction", "context")),
    ("target", ("question",), ("instruction", "context")),
    ("expected", ("input",), ()),
    ("label", ("input",), ()),
    ("label", ("sentence",), ()),
)
_SEPARATORS = re.compile(r"[,;|\n\u3001\uff0c\uff1b]")
_END = " \t\n.,;:!?\"'\u3002\uff01\uff1f"


class ClassifyJsonl(Classification):
    """A folder with `train.jsonl`, `val.jsonl`, `test.jsonl`, or with subfolders of those: one data set each.

    Fields are detected (text/label, question/answer, question/target with context, instruction/question/answer,
    prompt/prompt_label, input/expected) or named: `input` (a field, or a list of fields that become a mapping) and
    `expected` (a field). Expected values become texts; those of a list are joined by "; ".

    `correct` says when an answer is right, for all data sets or as a table by data set (`"*"`: the others):
    `normal` (the same but for case, spacing, underscores and end punctuation), `exact`, `set` (the same labels between
    commas, semicolons, bars or line ends, in any order), `smiles` (the same dot-separated parts; case counts, since it
    tells aromatic from aliphatic atoms).

    Inputs of test that stand in train or val are refused unless `allow_overlap`; other repetitions are told by
    `hygiene()`. `limit` keeps the first rows of each data set's splits; `mode` is how learners see train;
    `solver = "llm"` puts programs that ask a model among the baselines.
    Raises `DomainError` with file and line for every fault of the data.
    """

    name = "classify-jsonl"

    def __init__(
        self,
        *,
        path: str,
        input: str | Sequence[str] | None = None,
        expected: str | None = None,
        correct: str | Mapping[str, str] = "normal",
        allow_overlap: bool = False,
        limit: int | Mapping[str, int] | None = None,
        mode: str = "offline",
        solver: str = "none",
    ) -> None:
        super().__init__(mode=mode, solver=solver)
        self.path = Path(path).expanduser().absolute()
        self._inputs = (input,) if isinstance(input, str) else tuple(input or ())
        self._expected = expected or ""
        if bool(self._inputs) != bool(self._expected):
            raise DomainError(
                f"the domain {self.name!r} got only one of the options 'input' and 'expected'; name both fields or none."
            )
        self._limit = sizes(self.name, "limit", limit)
        self._allow_overlap = allow_overlap
        self._folders = self._datasets()
        self._rules = self._check_rules(correct)
        self._instances: dict[Split, tuple[Instance, ...]] = {}
        self.provenance = Provenance(f"JSON lines in {self.path.name}", "unstated: the user's own data", "unpublished")
        self.instances("train")  # a wrong folder or mapping is told now, not at the first trial

    # -- the contract ----------------------------------------------------------------------------

    def instances(self, split: Split) -> Sequence[Instance]:
        """Return a split's rows, data set by data set; the test files are opened for `test` only."""
        if split not in self._instances:
            loaded = tuple(
                instance
                for dataset, folder in self._folders.items()
                for instance in self._load(dataset, split_file(folder, split), split)
            )
            if split == "test":
                splits: dict[Split, Sequence[Instance]] = {
                    "train": self.instances("train"),
                    "val": self.instances("val"),
                    "test": loaded,
                }
                refuse_overlap(self.name, inspect_splits(splits), allow=self._allow_overlap)
            self._instances[split] = loaded
        return self._instances[split]

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        """Return 1 for a right label, else 0, by the data set's rule; `set` and `smiles` also tell the overlap."""
        label = label_of(answer.value)
        rule = self._rules[instance.dataset]
        correct = CORRECT[rule](label, instance.expected)
        detail = {}
        if rule in ("set", "smiles"):
            detail["f1"] = round(overlap(_parts(rule, label), _parts(rule, instance.expected)), 4)
        return Score(1.0 if correct else 0.0, correct=correct, detail=detail)

    def masks(self) -> Sequence[str]:
        """Return the data folder."""
        return (str(self.path),)

    def rule(self) -> Any:
        """Return the correctness rule of every data set."""
        return self._rules

    def hygiene(self, *, test: bool = False) -> Hygiene:
        """Return which inputs stand twice in train and val, and in test if that may be opened."""
        splits: dict[Split, Sequence[Instance]] = {split: self.instances(split) for split in ("train", "val")}
        if test:
            splits["test"] = self.instances("test")
        return inspect_splits(splits)

    # -- loading ---------------------------------------------------------------------------------

    def _datasets(self) -> dict[str, Path]:
        if not self.path.is_dir():
            raise DomainError(f"the data folder {self.path} does not exist or is no folder; set 'path' of the domain.")
        if has_splits(self.path):
            found = {"main": self.path}
        else:
            found = {p.name: p for p in sorted(self.path.iterdir()) if p.is_dir() and has_splits(p)}
        if not found:
            raise DomainError(
                f"the data folder {self.path} holds neither train.jsonl, val.jsonl and test.jsonl nor subfolders with "
                "them."
            )
        for folder in found.values():
            for split in ("train", "val", "test"):
                split_file(folder, split)
        return found

    def _check_rules(self, correct: Any) -> dict[str, str]:
        if not isinstance(correct, Mapping):
            rule = choice(self.name, "correct", correct, RULES)
            return dict.fromkeys(self._folders, rule)
        for dataset in correct:
            if dataset != "*" and dataset not in self._folders:
                raise DomainError(
                    f"the option 'correct' of {self.name!r} names the data set {dataset!r}"
                    f"{nearest(dataset, self._folders)}; there are {', '.join(self._folders)}."
                )
        default = correct.get("*", "normal")
        return {
            dataset: choice(self.name, f"correct.{dataset}", correct.get(dataset, default), RULES)
            for dataset in self._folders
        }

    def _load(self, dataset: str, path: Path, split: Split) -> list[Instance]:
        rows = read_rows(path)
        rows = rows[: self._limit.get(split, len(rows))]
        prefix = "" if dataset == "main" else f"{dataset}/"
        out: list[Instance] = []
        inputs, extra, expected = self._layout(path, rows[0][1])
        for number, (line, row) in enumerate(rows):
            where = f"{path}, line {line}"
            given: dict[str, Any] = {}
            for name in (*inputs, *extra):
                if name in row:
                    given[name] = row[name]
                elif name in inputs:
                    raise DomainError(f"{where}: no field {name!r}, which the input is read from{_has(row)}.")
            if expected not in row:
                raise DomainError(f"{where}: no field {expected!r}, which the label is read from{_has(row)}.")
            value = given[inputs[0]] if len(given) == 1 else given
            gold = _label(row[expected], where, expected)
            out.append(Instance(f"{prefix}{split}-{number:04d}", split, value, gold, dataset))
        return out

    def _layout(self, path: Path, row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        if self._inputs:
            return self._inputs, (), self._expected
        for expected, inputs, extra in _LAYOUTS:
            if expected in row and all(name in row for name in inputs):
                return inputs, tuple(name for name in extra if name in row), expected
        raise DomainError(
            f"{path}: the fields {', '.join(sorted(row)) or '(none)'} follow no known layout. Name them with the options "
            "'input' and 'expected', or use text/label, question/answer, question/target or prompt/prompt_label."
        )


def _has(row: Mapping[str, Any]) -> str:
    return f"; it has {', '.join(sorted(row)) or 'none'}"


def _label(value: Any, where: str, name: str) -> str:
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return "; ".join(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise DomainError(f"{where}: {name!r} is {value!r}; write the label as a text, a number, or a list of texts.")
    return value


# -- right and wrong -----------------------------------------------------------------------------


def normal(text: str) -> str:
    """Return a label without what does not count: case, spacing, underscores, quotes and punctuation at the ends.

    >>> normal("  Urinary_tract  infection. ")
    'urinary tract infection'
    """
    return " ".join(text.casefold().replace("_", " ").split()).strip(_END)


def _parts(rule: str, text: str) -> frozenset[str]:
    if rule == "smiles":
        return frozenset(part.strip() for part in text.split(".") if part.strip())
    return frozenset(part for raw in _SEPARATORS.split(text) if (part := normal(raw)))


def overlap(given: frozenset[str], expected: frozenset[str]) -> float:
    """Return the F1 of two sets; two empty ones agree.

    >>> overlap(frozenset("ab"), frozenset("bc"))
    0.5
    """
    return 2 * len(given & expected) / (len(given) + len(expected)) if given or expected else 1.0


CORRECT: Mapping[str, Callable[[str, str], bool]] = {
    "exact": lambda given, expected: given == expected,
    "normal": lambda given, expected: normal(given) == normal(expected),
    "set": lambda given, expected: _parts("set", given) == _parts("set", expected),
    "smiles": lambda given, expected: _parts("smiles", given) == _parts("smiles", expected),
}
"""Rule name -> whether an answer is right."""
