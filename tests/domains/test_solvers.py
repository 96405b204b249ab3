"""The classifiers that ask a model: run through the guest's own loader, with a model that is a function."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import leadscrew
from leadscrew.core.program import Program
from leadscrew.domains.templates import SOLVERS, solvers
from leadscrew.operators.genetic import mutate

GUEST = Path(leadscrew.__file__).parent / "guest"

# The model answers by the digest of the prompt, each time in another of the ways in which models answer.
RUNNER = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
import leadscrew_guest, leadscrew_loader
folder, replies, batches, texts = json.load(sys.stdin)
asked = []
def llm(prompt, **options):
    asked.append([prompt, options])
    if replies:
        return replies[len(asked) - 1]
    number = int(hashlib.sha256(prompt.encode()).hexdigest(), 16)
    label = ["fruit", "tree", "sea animal"][number % 3]
    ways = ["%s", " %s.\\n", "Label: %s", "I think it is a %s, not a stone.", "**%s**", "stone"]
    way = ways[number // 3 % 6]
    return way % label.upper() if "%" in way else way
leadscrew_guest.llm = llm
program = leadscrew_loader.PythonProgram({"program": folder, "entry": "main.py", "operation": "predict"})
program.load()
program.smoke(texts[0])
before = len(asked)
for batch in batches:
    program.learn(batch)
answers = [program.predict(text)[0] for text in texts]
learned = len(asked) - len(texts)
program.smoke(texts[0])
json.dump([before, learned, answers, asked[: len(texts)]], sys.stdout)
"""

TRAIN = [
    ("A red and round one, with seeds inside.", "fruit"),
    ("It is tall, and its leaves fall in autumn.", "tree"),
    ("It swims, and has eight arms.", "sea animal"),
    ("Yellow and bent; monkeys like it.", "fruit"),
    ("It bears   cones\nand stays green.", "tree"),
]
TEXTS = ["It is sweet.", "It has needles.", "It has a shell.", "It is green and sour.", "It lives on a reef.", "Oak."]
GOLDEN = {
    "no_memory": ["sea animal", "sea animal", "sea animal", "tree", "fruit", "tree"],
    "fewshot_all": ["tree", "stone", "tree", "tree", "stone", "fruit"],
}


def items(pairs: list[tuple[Any, str]]) -> list[dict[str, Any]]:
    return [
        {"input": text, "prediction": None, "ground_truth": label, "was_correct": None, "metadata": {}}
        for text, label in pairs
    ]


def run(
    program: Program,
    folder: Path,
    *,
    train: list[tuple[Any, str]] = TRAIN,
    texts: list[Any] = TEXTS,
    replies: list[str] | None = None,
    hash_seed: str = "0",
    one_by_one: bool = False,
) -> tuple[list[str], list[tuple[str, dict[str, Any]]]]:
    """Return the answers to `texts` and what the model was asked for them."""
    folder.mkdir(exist_ok=True)
    for path, file in program.items():
        (folder / path).write_bytes(file.data)
    batches = [[item] for item in items(train)] if one_by_one else [items(train)]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(GUEST)],
        input=json.dumps([str(folder), replies or [], batches, texts]),
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, learned, answers, asked = json.loads(done.stdout)
    assert before == 0, "nothing is asked before anything was learned"
    assert learned == 0, "one call a prediction, none for learning"
    return answers, [(prompt, options) for prompt, options in asked]


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("hash_seed", ["0", "1", "4294967295"])
def test_golden_predictions_whatever_the_hash_seed(name: str, hash_seed: str, tmp_path: Path) -> None:
    answers, asked = run(solvers()[name], tmp_path, hash_seed=hash_seed)
    assert answers == GOLDEN[name]
    assert all(options == {"labels": ["fruit", "sea animal", "tree"], "max_tokens": 24} for _, options in asked)


def test_what_no_memory_asks(tmp_path: Path) -> None:
    _, asked = run(solvers()["no_memory"], tmp_path)
    assert asked[0][0] == (
        "Which label fits the text best?\n"
        "Answer with exactly one label of the list.\n"
        "Write the label and nothing else.\n"
        "\n"
        "Labels: fruit, sea animal, tree\n"
        "\n"
        "Text: It is sweet.\n"
        "Label:"
    )


def test_what_fewshot_all_asks(tmp_path: Path) -> None:
    """The instructions stand once, every text of train with its label, in the order of learning, the question last."""
    for one_by_one in (False, True):
        _, asked = run(solvers()["fewshot_all"], tmp_path, one_by_one=one_by_one)
        assert asked[1][0] == (
            "Which label fits the last text best?\n"
            "Texts that have their right label already stand before it.\n"
            "Answer with exactly one label of the list.\n"
            "Write the label and nothing else.\n"
            "\n"
            "Labels: fruit, sea animal, tree\n"
            "\n"
            "Text: A red and round one, with seeds inside.\n"
            "Label: fruit\n"
            "\n"
            "Text: It is tall, and its leaves fall in autumn.\n"
            "Label: tree\n"
            "\n"
            "Text: It swims, and has eight arms.\n"
            "Label: sea animal\n"
            "\n"
            "Text: Yellow and bent; monkeys like it.\n"
            "Label: fruit\n"
            "\n"
            "Text: It bears cones and stays green.\n"
            "Label: tree\n"
            "\n"
            "Text: It has needles.\n"
            "Label:"
        )


def test_a_small_window_holds_what_fewshot_all_shows(tmp_path: Path) -> None:
    """Every label is shown, equally often but for the last round, and prompts share all but their end."""
    rng = random.Random(4)
    train = [
        (" ".join(rng.choice(["one", "two", "three"]) for _ in range(rng.randrange(3, 200))), f"label {i % 12:02}")
        for i in range(300)
    ]
    _, asked = run(solvers()["fewshot_all"], tmp_path, train=train, texts=["first " * 1000, "second"])
    long, short = (prompt for prompt, _ in asked)
    assert 5000 < len(short) < 5600
    assert len(long) < 7200
    shown = [short.count(f"Label: label {number:02}\n") for number in range(12)]
    assert sum(shown) >= 20
    assert max(shown) - min(shown) <= 1
    same = short.rindex("Text: second")
    assert same > 5000
    assert long[:same] == short[:same]


def test_labels_are_found_in_what_a_model_says(tmp_path: Path) -> None:
    said = {
        "re": "re",
        "  json\n": "json",
        '"JSON".': "json",
        "Label: xml": "xml",
        "It is xml.dom, I am sure": "xml.dom",
        "either JSON or re": "json",
        "there is no such thing": "there is no such thing",
        "": "",
        "the jsonify module": "the jsonify module",
        "Es ist Größe!": "größe",
        "x" * 5000: "x" * 200,
    }
    train = [("a text", label) for label in ("re", "json", "xml", "xml.dom", "größe")]
    for name in SOLVERS:
        program = solvers()[name]
        replies = [*said, "re", "re"]  # the last ones for the smoke test
        answers, _ = run(program, tmp_path / name, train=train, texts=["?"] * len(said), replies=replies)
        assert answers == list(said.values())


def test_inputs_of_several_fields(tmp_path: Path) -> None:
    train: list[tuple[Any, str]] = [({"q": "red", "n": 3}, "fruit"), (["tall", None], "tree")]
    _, asked = run(solvers()["fewshot_all"], tmp_path, train=train, texts=[{"q": ["sweet", {"x": "round"}]}])
    assert "Text: red 3\nLabel: fruit\n\nText: tall\nLabel: tree\n" in asked[0][0]
    assert asked[0][0].endswith("Text: sweet round\nLabel:")


def test_both_define_the_same_things_under_one_name() -> None:
    """A part can move from one to the other; only the instructions and the list of parts are each one's own."""
    seen: dict[str, str] = {}
    for name in SOLVERS:
        for node in ast.parse(solvers()[name].text("main.py")).body:
            names = [getattr(node, "name", "")]
            if isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            for defined in filter(None, names):
                if defined not in ("INSTRUCTIONS", "PARTS"):
                    assert seen.setdefault(defined, ast.unparse(node)) == ast.unparse(node), defined
    assert "Solver" in seen


def test_the_genetic_proposer_can_edit_them(tmp_path: Path) -> None:
    """Prompt lines, constants and parts are changed, and what comes out can be run."""
    programs = list(solvers().values())
    moves: dict[str, Program] = {}
    for seed in range(60):
        done = mutate(programs[seed % 2], [programs[1 - seed % 2]], random.Random(seed))
        if done is not None and len(done.moves) == 1:
            moves.setdefault(done.moves[0], done.program)
    assert {"graft", "lines", "constant", "drop"} <= set(moves)
    assert "Demonstrations()" in moves["graft"].text("main.py")
    for move in ("graft", "lines"):
        run(moves[move], tmp_path / move)
