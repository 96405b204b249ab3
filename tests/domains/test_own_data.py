"""The user's own task: a scoring function, a folder with data and scorer, JSON lines for classification."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Score
from leadscrew.domains.classify_jsonl import CORRECT, ClassifyJsonl
from leadscrew.domains.folder import FolderDomain
from leadscrew.domains.function import FunctionDomain
from leadscrew.domains.tables import inspect_splits
from leadscrew.errors import DomainError
from leadscrew.ports import BadAnswer, Domain
from leadscrew.testing.domain import DomainConformance

SCORER = "def score(input, expected, answer):\n    return 1 - abs(answer - expected) / 10\n"


def lines(path: Path, rows: list[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def task(root: Path, scorer: str = SCORER) -> Path:
    for k, split in enumerate(("train", "val", "test")):
        lines(root / "data" / f"{split}.jsonl", [{"input": 10 * k + i, "expected": i} for i in range(4)])
    (root / "score.py").write_text(scorer, encoding="utf-8")
    return root


def labelled(root: Path, text: str = "text", label: str = "label", start: int = 0) -> Path:
    for k, split in enumerate(("train", "val", "test")):
        rows = [{text: f"Sentence number {start + 10 * k + i} says it.", label: f"L{i % 2}"} for i in range(4)]
        lines(root / f"{split}.jsonl", rows)
    return root


# -- conformance -----------------------------------------------------------------------------------


class TestFunction(DomainConformance):
    def domain(self) -> Domain:
        rows = {split: [(f"{split} {i}", i) for i in range(5)] for split in ("train", "val", "test")}
        return FunctionDomain(lambda answer, expected: answer == expected, **rows)


class TestFolder(DomainConformance):
    nonsense = (None, "\0", [], {}, 10**400)

    @pytest.fixture(autouse=True)
    def _task(self, tmp_path: Path) -> None:
        self.root = task(tmp_path)

    def domain(self) -> Domain:
        return FolderDomain(path=str(self.root))


class TestJsonl(DomainConformance):
    @pytest.fixture(autouse=True)
    def _data(self, tmp_path: Path) -> None:
        self.root = tmp_path
        labelled(tmp_path / "a")
        labelled(tmp_path / "b", "question", "answer", start=500)

    def domain(self) -> Domain:
        return ClassifyJsonl(path=str(self.root), correct={"b": "exact"})


# -- functions -------------------------------------------------------------------------------------


def value(domain: Domain, answer: Any) -> Score:
    return domain.score(domain.instances("val")[0], Answer(answer))


def test_parameters_are_given_by_name() -> None:
    seen = []

    def score(answer: Any, input: Any, *, expected: Any, weight: float = 2.0) -> float:
        seen.append((input, answer, expected))
        return weight

    assert value(FunctionDomain(score, val=[("in", "gold")]), "out").value == 2.0
    assert seen == [("in", "out", "gold")]
    assert value(FunctionDomain(lambda a, e: a - e, val=[("in", 3)]), 5).value == 2
    assert value(FunctionDomain(lambda answer: len(answer), val=[("ab", None)]), "xyz").value == 3
    for wrong in (lambda: 0, lambda a: 0, lambda a, b, c: 0, lambda a, b, c, d: 0):
        with pytest.raises(DomainError, match="input, answer and expected"):
            FunctionDomain(wrong)
    with pytest.raises(DomainError, match="give a function"):
        FunctionDomain("score")  # type: ignore[arg-type]


def test_what_a_scorer_may_return() -> None:
    def domain(result: Any) -> FunctionDomain:
        return FunctionDomain(lambda answer, expected: result, val=[(1, 1)], objective="f1", costs={"tokens": "min"})

    assert value(domain(True), 0) == Score(1.0, correct=True)
    assert value(domain(0.25), 0) == Score(0.25)
    assert value(domain({"f1": 0.5, "tokens": 7, "correct": False}), 0) == Score(0.5, {"tokens": 7.0}, False)
    assert value(domain(Score(3.0)), 0) == Score(3.0)
    for bad in (None, "0.5", {"tokens": 3}, {"f1": 1, "tokens": "many"}, [1]):
        with pytest.raises(DomainError, match="Return a number"):
            value(domain(bad), 0)
    for bad in (float("nan"), float("inf"), {"f1": 1.0, "tokens": float("inf")}):
        with pytest.raises(BadAnswer, match="no finite number"):
            value(domain(bad), 0)


def test_an_answer_can_be_at_fault_or_the_scorer() -> None:
    def score(answer: Any, expected: Any) -> float:
        if answer == "broken":
            raise OSError("the disk is gone")
        return float(answer["x"]) / expected

    domain = FunctionDomain(score, val=[("in", 0)])
    for answer in (3, {}, {"x": "no"}, {"x": 1}, None):
        with pytest.raises(BadAnswer):
            value(domain, answer)
    with pytest.raises(DomainError, match=r"failed on instance 'val-0000': OSError"):
        value(domain, "broken")


def test_a_score_to_be_kept_small_needs_a_floor() -> None:
    with pytest.raises(DomainError, match="0 would be the best"):
        FunctionDomain(lambda answer: 0.0, direction="min")
    domain = FunctionDomain(lambda answer: 0.0, direction="min", floor=1e6, objective="error")
    assert (domain.objectives[0].direction, domain.objectives[0].floor) == ("min", 1e6)
    with pytest.raises(DomainError, match="did you mean 'solve'"):
        FunctionDomain(lambda answer: 0.0, operation="solv")
    with pytest.raises(DomainError, match="'floor'"):
        FunctionDomain(lambda answer: 0.0, floor="low")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([3], "row 1 of val.*is a int"),
        ([{"inptu": 1}], "no 'input'; it has inptu"),
        ([{"input": 1, "id": "a"}, {"input": 2, "id": "a"}], "row 2.*'a', which an earlier row has"),
        ([(float("nan"), 1)], "row 1 of val.*is no JSON"),
        ([({1, 2}, 1)], "is no JSON"),
        ([{"input": 1, "dataset": 7}], "both must be texts"),
    ],
)
def test_wrong_rows(rows: list[Any], said: str) -> None:
    with pytest.raises(DomainError, match=said):
        FunctionDomain(lambda answer: 0.0, val=rows).instances("val")


def test_test_rows_are_read_late_and_may_not_repeat_others() -> None:
    opened = []

    def test_rows() -> list[Any]:
        opened.append(1)
        return [("A  text", 1)]

    domain = FunctionDomain(lambda answer: 0.0, train=[("a text", 2)], val=[("other", 1)], test=test_rows)
    assert domain.instances("train")
    assert opened == []
    with pytest.raises(DomainError, match=r"1 input of train also stands in test \(first: train-0000 = test-0000\)"):
        domain.instances("test")
    allowed = FunctionDomain(lambda answer: 0.0, train=[("a text", 2)], test=test_rows, allow_overlap=True)
    assert allowed.instances("test")
    assert list(allowed.hygiene(test=True).shared) == [("train", "test")]


def test_file_answers_reach_the_scorer_as_texts() -> None:
    domain = FunctionDomain(lambda answer: len(answer["a.txt"]) + len(answer["b"]), val=[1], operation="workspace")
    files = Program.of({"a.txt": "abc", "b": b"\xff\xfe"})
    instance = FunctionDomain(lambda answer: 0.0, val=[(1, 1)]).instances("val")[0]
    assert domain.score(instance, Answer(files=files)).value == 5


# -- folders ---------------------------------------------------------------------------------------


def test_a_scaffolded_task(tmp_path: Path) -> None:
    helper = "from helper import TENTH\n\ndef score(input, answer, expected):\n    return 1 - abs(answer - expected) * TENTH\n"
    root = task(tmp_path, helper)
    (root / "helper.py").write_text("TENTH = 0.1\n")
    domain = FolderDomain(path=str(root), cpu_s=2.0, memory_mb=256, limit=3, costs={"tokens": "min"})
    assert [len(domain.instances(split)) for split in ("train", "val", "test")] == [3, 3, 3]
    assert value(domain, 2).value == pytest.approx(0.8)
    assert (domain.limits.cpu_s, domain.limits.memory_mb) == (2.0, 256)
    assert {Path(mask).name for mask in domain.masks()} == {"data", "score.py"}
    before = domain.scorer_digest()
    (root / "helper.py").write_text("TENTH = 0.2\n")
    assert domain.scorer_digest() != before


def test_the_scorer_runs_only_where_it_scores(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    domain = FolderDomain(path=str(task(tmp_path, f"open({str(mark)!r}, 'w').close()\n{SCORER}")))
    assert domain.instances("test")
    assert not mark.exists()
    assert value(domain, 0).value == 1.0
    assert mark.exists()


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ("def scores(a): pass\n", "defines no 'score'.*it defines scores"),
        ("def score(:\n", r"score\.py, line 1: no Python"),
        ("def score(a, b, c): return 0\n", r"takes \(a, b, c\)"),
        ("import nowhere_to_be_found\n" + SCORER, "cannot be loaded: ModuleNotFoundError"),
        ("score = 3\n", "has no function 'score'"),
    ],
)
def test_broken_scorers(scorer: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=said):
        value(FolderDomain(path=str(task(tmp_path, scorer))), 0)


def test_another_scorer_by_name(tmp_path: Path) -> None:
    root = task(tmp_path)
    (root / "judge.py").write_text("def strict(answer, expected):\n    return answer == expected\n")
    assert value(FolderDomain(path=str(root), scorer="judge.py:strict"), 0).correct is True
    with pytest.raises(DomainError, match=r"none\.py cannot be read"):
        FolderDomain(path=str(root), scorer="none.py")


@pytest.mark.parametrize(
    ("split", "content", "said"),
    [
        ("train", '{"input": 1}\n{"input": 2', r"train\.jsonl, line 2: no JSON"),
        ("train", '{"input": 1}\n\n[2]\n', r"train\.jsonl, line 3: a list, not an object"),
        ("train", '{"inputs": 1}\n', r"train\.jsonl, line 1: no 'input'; it has inputs"),
        ("train", '{"input": NaN}\n', "NaN is no JSON value"),
        ("train", "\n", "holds no rows"),
        ("train", b'{"input": "\xff"}\n', r"train\.jsonl, line 1: no UTF-8"),
        ("val", None, r"has no val\.jsonl or valid\.jsonl"),
    ],
)
def test_broken_data(split: str, content: str | bytes | None, said: str, tmp_path: Path) -> None:
    file = task(tmp_path) / "data" / f"{split}.jsonl"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DomainError, match=said):
        FolderDomain(path=str(tmp_path))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="does not exist"):
        FolderDomain(path=str(tmp_path / "nowhere"))
    with pytest.raises(DomainError, match="does not exist"):
        ClassifyJsonl(path=str(tmp_path / "nowhere"))
    with pytest.raises(DomainError, match="nor subfolders"):
        ClassifyJsonl(path=str(tmp_path))


# -- classification --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "input", "expected"),
    [
        ({"text": "a", "label": 3}, "a", "3"),
        ({"question": "q", "answer": "x"}, "q", "x"),
        ({"question": "q", "target": "x", "context": "c"}, {"question": "q", "context": "c"}, "x"),
        ({"instruction": "i", "question": "q", "answer": ["x", "y"]}, {"question": "q", "instruction": "i"}, "x; y"),
        ({"prompt": "p", "prompt_label": "unsafe", "id": 9}, "p", "unsafe"),
        ({"input": {"a": 1}, "expected": True}, {"a": 1}, "true"),
    ],
)
def test_layouts(row: dict[str, Any], input: Any, expected: str, tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        lines(tmp_path / f"{split}.jsonl", [row])
    instance = ClassifyJsonl(path=str(tmp_path)).instances("train")[0]
    assert (instance.input, instance.expected) == (input, expected)


def test_fields_by_name_and_their_faults(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        lines(tmp_path / f"{split}.jsonl", [{"body": f"{split} b", "head": "h", "kind": "k"}])
    domain = ClassifyJsonl(path=str(tmp_path), input=["head", "body"], expected="kind")
    assert domain.instances("val")[0].input == {"head": "h", "body": "val b"}
    with pytest.raises(DomainError, match="follow no known layout"):
        ClassifyJsonl(path=str(tmp_path))
    with pytest.raises(DomainError, match="name both fields"):
        ClassifyJsonl(path=str(tmp_path), input="body")
    with pytest.raises(DomainError, match=r"line 1: no field 'sort'.*it has body, head, kind"):
        ClassifyJsonl(path=str(tmp_path), input="body", expected="sort")
    lines(tmp_path / "train.jsonl", [{"text": "a", "label": None}])
    with pytest.raises(DomainError, match=r"line 1: 'label' is None"):
        ClassifyJsonl(path=str(tmp_path))


def test_data_sets_keep_apart(tmp_path: Path) -> None:
    labelled(tmp_path / "a")
    labelled(tmp_path / "b", "question", "answer", start=500)
    (tmp_path / "notes").mkdir()
    domain = ClassifyJsonl(path=str(tmp_path), limit={"train": 3})
    assert [i.id for i in domain.instances("train")] == [f"{d}/train-000{i}" for d in "ab" for i in range(3)]
    assert {i.dataset for i in domain.instances("val")} == {"a", "b"}
    (tmp_path / "b" / "test.jsonl").unlink()
    with pytest.raises(DomainError, match=r"b has no test\.jsonl"):
        ClassifyJsonl(path=str(tmp_path))
    with pytest.raises(DomainError, match="names the data set 'c'"):
        ClassifyJsonl(path=str(labelled(tmp_path / "b")), correct={"c": "exact"})


@pytest.mark.parametrize(
    ("rule", "given", "expected", "right"),
    [
        ("exact", "Flu", "flu", False),
        ("exact", "flu", "flu", True),
        ("normal", " FLU_like  illness. ", "flu like illness", True),
        ("normal", "flu", "cold", False),
        ("set", "b; A", "a, b", True),
        ("set", "a, b, b", "b|a", True),
        ("set", "a", "a, b", False),
        ("set", "\u76d7\u7a83\uff1b\u8bc8\u9a97", "\u8bc8\u9a97\u3001\u76d7\u7a83", True),
        ("smiles", "CCO.c1ccccc1", "c1ccccc1.CCO", True),
        ("smiles", "C1CCCCC1", "c1ccccc1", False),
    ],
)
def test_rules(rule: str, given: str, expected: str, right: bool) -> None:
    assert CORRECT[rule](given, expected) is right


def test_partly_right_sets_tell_their_overlap(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        lines(tmp_path / f"{split}.jsonl", [{"text": split, "label": "a, b"}])
    score = value(ClassifyJsonl(path=str(tmp_path), correct="set"), "b")
    assert (score.value, score.correct, score.detail) == (0.0, False, {"f1": 0.6667})


def test_hygiene(tmp_path: Path) -> None:
    labelled(tmp_path)
    lines(tmp_path / "train.jsonl", [{"text": t, "label": "x"} for t in ("one", "One ", "two")])
    lines(tmp_path / "val.jsonl", [{"text": t, "label": "x"} for t in ("two", "three")])
    domain = ClassifyJsonl(path=str(tmp_path))
    assert domain.instances("test")
    assert domain.hygiene().lines() == [
        "1 input of train also stands in val (first: train-0002 = val-0000)",
        "1 input of train repeats another (first: train-0000 = train-0001)",
    ]
    lines(tmp_path / "test.jsonl", [{"text": t, "label": "x"} for t in ("three", "four")])
    with pytest.raises(DomainError, match=r"1 input of val also stands in test.*allow_overlap = true"):
        ClassifyJsonl(path=str(tmp_path)).instances("test")
    assert ClassifyJsonl(path=str(tmp_path), allow_overlap=True).instances("test")
    assert inspect_splits({}).lines() == []
