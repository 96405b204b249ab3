"""Every operation through the whole engine: boxes, scorer process, grading boxes, learners, environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from leadscrew import runs
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Instance, Interface, Limits, Objective, Score, Split
from leadscrew.core.trial import Trial
from leadscrew.errors import UsageError
from leadscrew.operators.scripted import Scripted, Step
from leadscrew.ports import BadAnswer, BoxReply, Domain, Grading

QUICK = Limits(cpu_s=5, wall_s=20, load_s=10)


def founded(folder: Path, domain: Domain, better: dict[str, str] | None = None) -> dict[str, list[Trial]]:
    """Run the founding plan and, if given, one scripted improvement; return val trials by candidate."""
    script = {1: [Step(change=better, base="0.0")]} if better else {}
    config = {
        "run": {"out": str(folder), "workers": 2},
        "domain": {"name": "own"},
        "proposer": {"name": "scripted"},
        "harness": {"iterations": len(script), "candidates": 1, "promotion": "published", "dataset_names": "off"},
    }
    runs.run(config, domain=domain, proposer=Scripted(script))
    store = SQLiteStore.open(folder, readonly=True)
    try:
        return {c.id: list(store.trials(c.program)) for c in store.candidates()}
    finally:
        store.close()


class Guess:
    """The host's side of a guessing game; the program only ever hears whether it was too high or too low."""

    def __init__(self, secret: int) -> None:
        self.secret, self.turns, self.found = secret, 0, False

    def reset(self) -> Any:
        return "start"

    def step(self, action: Any) -> tuple[Any, bool]:
        if not isinstance(action, int):
            raise BadAnswer("a guess is a whole number")
        self.turns += 1
        self.found = action == self.secret
        return ("low" if action < self.secret else "high"), self.found or self.turns >= 12

    def result(self) -> Any:
        return {"found": self.found, "turns": self.turns}


class Guessing(Domain):
    name = "guessing"
    interface = Interface("act")
    objectives = (Objective("found"),)
    limits = QUICK

    def instances(self, split: Split) -> Sequence[Instance]:
        start = {"train": 0, "val": 100, "test": 200}[split]
        return [Instance(f"{split}-{i}", split, {"range": 1000}, start + 7 * i) for i in range(4)]

    def seed(self) -> Program:
        return Program.of({"main.py": "class Agent:\n    def act(self, observation):\n        return 107\n"})

    def host(self, instance: Instance) -> Guess:
        return Guess(instance.expected)

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        return Score(float(answer.value["found"]), detail={"turns": answer.value["turns"]})


BISECT = """
class Agent:
    def __init__(self):
        self.low, self.high = 0, 1000
    def act(self, observation):
        if observation == "low":
            self.low = self.last + 1
        elif observation == "high":
            self.high = self.last - 1
        self.last = (self.low + self.high) // 2
        return self.last
"""


def test_act_keeps_the_environment_on_the_host(tmp_path: Path) -> None:
    found = founded(tmp_path / "run", Guessing(), {"main.py": BISECT})
    assert [t.score for t in found["0.0"]] == [0.0, 1.0, 0.0, 0.0], "one instance is found by the constant guess"
    assert [t.score for t in found["1.0"]] == [1.0] * 4
    assert all(t.detail["turns"] <= 11 for t in found["1.0"])
    certificate = runs.finalize(tmp_path / "run", domain=Guessing())
    assert certificate["recheck"] == {"checked": 8, "mismatches": []}
    assert certificate["test"]["best"] == 1.0


class Writing(Domain):
    name = "writing"
    interface = Interface("workspace")
    objectives = (Objective("right"),)
    limits = QUICK

    def instances(self, split: Split) -> Sequence[Instance]:
        return [Instance(f"{split}-{w}", split, {"word": w}, w.upper()) for w in ("ab", "cd")]

    def seed(self) -> Program:
        source = (
            "import os\n\ndef work(input, folder):\n    os.makedirs(folder + '/out')\n"
            "    open(folder + '/out/word.txt', 'w').write(input['word'].upper())\n"
        )
        return Program.of({"main.py": source})

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        assert answer.files is not None
        return Score(float(answer.files.text("out/word.txt") == instance.expected))


def test_workspace_answers_with_regular_files(tmp_path: Path) -> None:
    linked = "import os\n\ndef work(input, folder):\n    os.symlink('/etc/passwd', folder + '/link')\n"
    trials = founded(tmp_path / "run", Writing(), {"main.py": linked})
    assert [t.score for t in trials["0.0"]] == [1.0, 1.0]
    assert [t.outcome.value for t in trials["1.0"]] == ["bad_output"] * 2
    assert "link" in trials["1.0"][0].message


class Coding(Domain):
    """The answer is code. It is executed in a grading box; the expected values never leave the host."""

    name = "coding"
    interface = Interface("solve")
    objectives = (Objective("passed"),)
    limits = QUICK

    def instances(self, split: Split) -> Sequence[Instance]:
        return [
            Instance(f"{split}-{k}", split, {"ask": f"multiply by {k}"}, [k * n for n in (1, 2, 5)]) for k in (2, 3)
        ]

    def seed(self) -> Program:
        source = (
            "def solve(input):\n    k = input['ask'].split()[-1]\n"
            "    return 'def solve(n):\\n    return n * ' + k + ' if n < 5 else 1 // 0\\n'\n"
        )
        return Program.of({"main.py": source})

    def grade(self, instance: Instance, answer: Answer) -> Grading | None:
        if not isinstance(answer.value, str):
            return None
        return Grading(Program.of({"main.py": answer.value}), (1, 2, 5), Interface("solve"), QUICK)

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        hits = [r.outcome.value == "ok" and r.answer.value == e for r, e in zip(graded, instance.expected, strict=True)]
        return Score(sum(hits) / 3, detail={"outcomes": [r.outcome.value for r in graded]})


def test_an_answer_that_is_code_runs_in_a_grading_box(tmp_path: Path) -> None:
    trials = founded(tmp_path / "run", Coding())["0.0"]
    assert [t.score for t in trials] == [pytest.approx(2 / 3)] * 2
    assert trials[0].detail["outcomes"] == ["ok", "ok", "crash"]


class Counting(Domain):
    """A learner that counts what it was shown, per data set."""

    name = "counting"
    objectives = (Objective("right"),)
    limits = QUICK

    def __init__(self, mode: Any) -> None:
        self.interface = Interface("predict", mode=mode)

    def instances(self, split: Split) -> Sequence[Instance]:
        sizes = {"train": 3, "val": 2, "test": 2}
        return [
            Instance(f"{split}-{d}-{i}", split, i, 3, dataset=d) for d in ("blue", "red") for i in range(sizes[split])
        ]

    def seed(self) -> Program:
        source = (
            "class Counter:\n    def __init__(self):\n        self.seen = 0\n"
            "    def predict(self, input):\n        self.seen += 100\n        return self.seen % 100, {'prompt': 'how many?'}\n"
            "    def learn_from_batch(self, batch):\n        self.seen += len(batch)\n"
            "    def get_state(self):\n        return str(self.seen)\n"
            "    def set_state(self, state):\n        self.seen = int(state)\n"
        )
        return Program.of({"main.py": source})

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        return Score(float(answer.value == instance.expected), correct=answer.value == instance.expected)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_learners_see_train_in_order_per_data_set_and_never_val(tmp_path: Path, mode: str) -> None:
    trials = founded(tmp_path / "run", Counting(mode))["0.0"]
    val = [t for t in trials if t.split == "val"]
    assert [t.detail["prediction"] for t in val] == [3] * 4, "three labels of its own data set, none of val"
    train = [t.detail["prediction"] for t in trials if t.split == "train"]
    assert train == ([0, 1, 2, 0, 1, 2] if mode == "online" else [])
    assert sum(t.spend.trials for t in trials) == 4, "what is predicted on train costs no trial"


STATEFUL = """
import mmap

shared = mmap.mmap(-1, 8)


def solve(input):
    count = int.from_bytes(shared[:8], 'little') + 1
    shared[:8] = count.to_bytes(8, 'little')
    return input['x'] if count % 2 else -1
"""


class Echo(Domain):
    name = "echo"
    interface = Interface("solve")
    objectives = (Objective("same"),)
    limits = QUICK

    def instances(self, split: Split) -> Sequence[Instance]:
        base = {"train": 0, "val": 50, "test": 90}[split]
        return [Instance(f"{split}-{i}", split, {"x": base + i}, base + i) for i in range(8)]

    def seed(self) -> Program:
        return Program.of({"main.py": "def solve(input):\n    return 0\n"})

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        return Score(float(answer.value == instance.expected))


def test_state_carried_over_through_shared_memory_does_not_pay(tmp_path: Path) -> None:
    """Either the trials are kept apart from the start, or the rerun in fresh boxes finds it out: it is never believed."""
    folder = tmp_path / "run"
    trials = founded(folder, Echo(), {"main.py": STATEFUL})["1.0"]
    certificate = runs.finalize(folder, domain=Echo())
    apart = all(t.score == 1.0 for t in trials)
    assert apart or (certificate["recheck"]["mismatches"] and not certificate["improved"])


class Coin(Domain):
    """The program's answer depends on the seed of the trial, so repeats differ."""

    name = "coin"
    interface = Interface("solve", deterministic=False)
    objectives = (Objective("heads"),)
    limits = QUICK

    def instances(self, split: Split) -> Sequence[Instance]:
        return [Instance(f"{split}-{i}", split, i, None) for i in range(6)]

    def seed(self) -> Program:
        return Program.of({"main.py": "def solve(input, seed):\n    return seed % 2\n"})

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        return Score(float(answer.value))


def test_repeats_give_the_noise_floor(tmp_path: Path) -> None:
    config = {
        "run": {"out": str(tmp_path / "run")},
        "domain": {"name": "own"},
        "evaluation": {"repeats": 4},
        "harness": {"iterations": 0},
        "proposer": {"name": "scripted"},
    }
    result = runs.run(config, domain=Coin(), proposer=Scripted({}))
    store = SQLiteStore.open(tmp_path / "run", readonly=True)
    trials = [t for c in store.candidates() for t in store.trials(c.program)]
    store.close()
    assert len(trials) == 24
    assert len({t.key for t in trials}) == 24, "repeats are never answered from the cache of one another"
    certificate = runs.finalize(result.folder, domain=Coin())
    assert certificate["noise"]["degrees"] == 18
    assert 0.3 < certificate["noise"]["within_sd"] < 0.7
    assert certificate["recheck"]["checked"] == 0
    assert certificate["improved"] is False


class Uneven(Echo):
    """Two data sets of very different size: the score is the mean of both, not of all instances."""

    name = "uneven"

    def instances(self, split: Split) -> Sequence[Instance]:
        return [
            Instance(f"{split}-{d}-{i}", split, {"x": i, "set": d}, i, dataset=d)
            for d, n in (("small", 6), ("large", 60))
            for i in range(n)
        ]

    def seed(self) -> Program:
        return Program.of({"main.py": "def solve(input):\n    return input['x'] if input['set'] == 'large' else -1\n"})


def test_p_and_interval_are_of_the_same_mean_as_the_score(tmp_path: Path) -> None:
    better = "def solve(input):\n    return input['x'] if input['set'] == 'small' or input['x'] > 9 else -1\n"
    founded(tmp_path / "run", Uneven(), {"main.py": better})
    test = runs.finalize(tmp_path / "run", domain=Uneven())["test"]
    assert test["difference"] == pytest.approx((1.0 - 10 / 60) / 2)
    assert test["interval"][0] <= test["difference"] <= test["interval"][1]


async def test_inside_an_event_loop_the_message_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="to_thread"):
        runs.run({"run": {"out": str(tmp_path / "run")}, "domain": {"name": "own"}}, domain=Echo())
    assert not (tmp_path / "run").exists()


def test_a_scorer_that_one_answer_breaks_does_not_stop_the_run(tmp_path: Path) -> None:
    class Fragile(Echo):
        def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
            if answer.value == "(":
                raise RuntimeError("unbalanced")
            return super().score(instance, answer, graded)

    trials = founded(tmp_path / "run", Fragile(), {"main.py": "def solve(input):\n    return '('\n"})["1.0"]
    assert {t.outcome.value for t in trials} == {"bad_output"}
    assert "though it works on others" in trials[0].message
