"""The two rules: constants-only copies and planted names are caught, honest changes are not, hostile source is survived."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.core.program import Program
from leadscrew.policies.hygiene import DataNames, check, only_constants

BASE = '''
"""A classifier."""
K = 5
WEIGHTS = [0.1, 0.9]
MODE = "cosine"
PROMPT = "Answer with one label."

def predict(text, k=3, flip=False):
    # take the nearest
    if len(text) > 10 * 2 and not flip:
        return text[:K]
    return {"a": 1, "b": -2}.get(text, 0)
'''


def program(text: str, **more: str) -> Program:
    return Program.of({"main.py": text, **{k.replace("__", "."): v for k, v in more.items()}})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("K = 5", "K = 7"),
        ("K = 5", "K = -5"),
        ("[0.1, 0.9]", "[0.1, 0.2, 0.7]"),
        ('"cosine"', '"dot"'),
        ("flip=False", "flip=True"),
        ("10 * 2", "30"),
        ('{"a": 1, "b": -2}', '{"a": 3}'),
        ("# take the nearest", "# take the furthest"),
        ('"""A classifier."""', '"""Another one."""'),
    ],
)
def test_a_change_of_constants_alone_is_caught(old: str, new: str) -> None:
    assert old in BASE
    assert only_constants(program(BASE), program(BASE.replace(old, new))) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("text[:K]", "text[K:]"),
        ("len(text) > 10", "len(text) < 10"),
        ("not flip", "flip"),
        ("K = 5", "K = len('five')"),
        ('"Answer with one label."', '"Think first, then answer with one label."'),
        ("return text[:K]", "text = text.lower()\n        return text[:K]"),
    ],
)
def test_a_change_of_mechanism_or_prompt_passes(old: str, new: str) -> None:
    assert old in BASE
    assert only_constants(program(BASE), program(BASE.replace(old, new))) is None


def test_other_files_count_too() -> None:
    base = program(BASE, config__toml="k = 5\n")
    assert only_constants(base, program(BASE, config__toml="k = 6.5e-3\n")) == "changes only constants in config.toml"
    assert only_constants(base, program(BASE, config__toml="m = 5\n")) is None
    assert only_constants(base, program(BASE, config__toml="k = 5\n", more__py="x = 1\n")) is None
    assert only_constants(base, program(BASE)) is None, "a deleted file is more than a constant"
    assert only_constants(base, base) is None


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_any_numbers_may_stand_in_for_any_others(a: int, b: float, c: bool) -> None:
    old, new = (
        "def f(x, y=1, z=2.5, w=True):\n    return x + 3\n",
        f"def f(x, y={a}, z={b}, w={c}):\n    return x + {a}\n",
    )
    assert only_constants(program(old), program(new)) is not None or old == new


HOSTILE = {
    "nested": "x = " + "(" * 5000 + ")" * 5000,
    "minus": "x = " + "-" * 100_000 + "1",
    "chain": "x = " + "+".join(["1"] * 60_000),
    "attributes": "x = a" + ".b" * 50_000,
    "null": "x = '\0'",
    "digits": "x = " + "9" * 20_000,
    "huge": "x = 1\n" * 200_000,
    "broken": "def f(:",
    "lists": "x = " + "[" * 150 + "]" * 150,
    "escape": "x = '\\d'",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_source_is_survived(name: str) -> None:
    base, child = program("x = 1\n"), program(HOSTILE[name])
    names = DataNames(["LawBench"])
    found = check(base, child, names)
    assert all(f.rule == "constants_only" for f in found)
    assert [f.rule for f in check(base, program(HOSTILE[name][:1000] + "\n# lawbench"), names)][-1:] == [
        "dataset_names"
    ]


def test_binary_files_are_neither_constants_nor_names() -> None:
    base, child = Program.of({"w.bin": b"\xff\x00\x01"}), Program.of({"w.bin": b"\xff\x00\x02"})
    assert check(base, child, DataNames(["LawBench"])) == ()


@pytest.mark.parametrize(
    "planted",
    [
        "if 'LawBench' in text: pass",
        "def solve_lawbench(): pass",
        "LAW_BENCH = 1",
        "isLawBench = True",
        "# tuned for law-bench",
        "name = 'Law' + 'Bench'",
        "path = 'data/Symptom2Disease/train.jsonl'",
        "symptom_2_disease = {}",
        "seen = {'val-0042-xyz': 'flu'}",
    ],
)
def test_planted_names_are_caught_in_any_spelling(planted: str) -> None:
    names = DataNames(["LawBench", "Symptom2Disease", "val-0042-xyz"])
    found = check(program("x = 1"), program(planted), names)
    assert [(f.rule, f.action) for f in found if f.rule == "dataset_names"] == [("dataset_names", "reject")]


@pytest.mark.parametrize(
    "honest", ["flawbenchmark = 1", "the law, and the bench", "main = test = train", "x = 12 + 345", "lawn = bench"]
)
def test_honest_words_are_not(honest: str) -> None:
    names = DataNames(["LawBench", "main", "test", "12", "345", "a"])
    assert names.planted(program(honest)) == ()


def test_paths_count_and_what_the_base_already_says_does_not() -> None:
    names = DataNames(["LawBench"])
    assert names.planted(Program.of({"lawbench.py": "x = 1"})) == ("lawbench (lawbench.py)",)
    base = program("# for LawBench")
    assert names.planted(program("# for LawBench, better"), base) == ()


def test_rules_can_flag_reject_or_rest() -> None:
    names, base = DataNames(["LawBench"]), program("k = 1")
    child = program("k = 2  # LawBench")
    assert [f.action for f in check(base, child, names)] == ["flag", "reject"]
    assert [f.action for f in check(base, child, names, constants_only="reject", dataset_names="flag")] == [
        "reject",
        "flag",
    ]
    assert check(base, child, names, constants_only="off", dataset_names="off") == ()
    assert [f.rule for f in check(None, child, names)] == ["dataset_names"]
