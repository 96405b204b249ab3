"""A whole harness run: real boxes, real scorer process, real store; only the proposer is scripted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from leadscrew import runs
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.program import Program
from leadscrew.core.proposal import Proposal
from leadscrew.core.task import Answer, Instance, Interface, Limits, Objective, Score, Split
from leadscrew.errors import RefusedError, SealedError
from leadscrew.operators.scripted import Scripted, Step
from leadscrew.ports import BoxReply, Domain, Event

SEED = "def solve(input):\n    return input['x']\n"


class Affine(Domain):
    """Find y = 3 x + 1 (mod 11). The gold of an instance is a canary that no box may ever see."""

    name = "affine"
    interface = Interface("solve")
    objectives = (Objective("hits", ceiling=1.0),)
    limits = Limits(cpu_s=5, wall_s=20)

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def instances(self, split: Split) -> Sequence[Instance]:
        start = {"train": 0, "val": 1000, "test": 2000}[split] + self.shift
        return [Instance(f"{split}-{i}", split, {"x": start + i}, (3 * (start + i) + 1) % 11) for i in range(24)]

    def seed(self) -> Program:
        return Program.of({"main.py": SEED})

    def baselines(self) -> dict[str, Program]:
        return {"same": self.seed(), "zero": Program.of({"main.py": "def solve(input):\n    return 0\n"})}

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        hit = answer.value == instance.expected
        return Score(float(hit), correct=hit)


def solving(expression: str) -> dict[str, str]:
    return {"main.py": f"def solve(input):\n    x = input['x']\n    return {expression}\n"}


SCRIPT: dict[int, list[Any]] = {
    1: [
        Step(change=solving("x % 11"), base="0.0", name="modulus", hypothesis="answers are remainders"),
        Step(change=solving("1 / 0"), base="0.0", name="crash"),
        Proposal(None, failure="the reply was cut off"),
    ],
    2: [
        Step(change=solving("(3 * x) % 11"), base="0.0", name="slope"),
        Step(change={"main.py": "def solve(input:\n"}, base="0.0", name="broken"),
    ],
    3: [Step(change=solving("(3 * x + 1) % 11"), base="1.1", name="whole", hypothesis="a fix built on a failure")],
    4: [Step(change=solving("[float('nan')]"), base="0.1", name="nan")],
}


def go(
    folder: Path, *, in_flight: int, workers: int, events: list[Event] | None = None, domain: Domain | None = None
) -> runs.RunResult:
    config = {
        "run": {"out": str(folder), "plans_in_flight": in_flight, "workers": workers, "seed": 3},
        "domain": {"name": "own"},
        "proposer": {"name": "scripted", "options": {}},
        "harness": {"iterations": 4, "candidates": 3},
    }
    observers = (events.append,) if events is not None else ()
    return runs.run(config, domain=domain or Affine(), proposer=Scripted(SCRIPT), observers=observers)


def digest(folder: Path) -> str:
    store = SQLiteStore.open(folder, readonly=True)
    try:
        return store.archive_digest()
    finally:
        store.close()


def test_a_run_from_baselines_to_certificate(tmp_path: Path) -> None:
    events: list[Event] = []
    result = go(tmp_path / "run", in_flight=1, workers=2, events=events)
    assert (result.champion, result.value, result.stopped) == ("3.0", 1.0, "")
    certificate = runs.finalize(tmp_path / "run", domain=Affine())
    assert certificate["improved"] is True
    assert certificate["test"]["best"] == 1.0
    assert certificate["test"]["difference"] == pytest.approx(1.0 - certificate["test"]["baseline"])
    assert certificate["test"]["interval"][0] > 0
    assert certificate["test"]["p_value"] < 0.001
    assert certificate["val_visible"] is True
    assert certificate["openings"] == 1
    assert certificate["recheck"] == {"checked": 8, "mismatches": []}
    assert certificate["sandbox"]["isolated"] is True
    assert json.loads((tmp_path / "run" / "certificate.json").read_text())["chain_head"] == certificate["chain_head"]
    found = runs.verify(tmp_path / "run")
    assert found["chain_head"] == certificate["chain_head"]
    kinds = [e.kind for e in events]
    assert kinds.index("plan") < kinds.index("trial") < kinds.index("candidate") < kinds.index("done")

    store = SQLiteStore.open(tmp_path / "run", readonly=True)
    rows = {c.id: c for c in store.candidates()}
    verdicts = {v.candidate: v for _, given, _ in store.judgements() for v in given}
    assert sorted(rows) == ["0.0", "0.1", "1.0", "1.1", "1.2", "2.0", "2.1", "3.0", "4.0"]
    assert rows["1.1"].outcome == "crash"
    assert rows["1.2"].reason == "the reply was cut off"
    assert rows["2.1"].outcome == "invalid"
    assert rows["4.0"].outcome == "bad_output"
    assert rows["3.0"].sources("base") == ("1.1",), "a failed candidate may be a base"
    assert verdicts["3.0"].champion
    assert verdicts["3.0"].facts["delta"] > 0
    assert verdicts["0.0"].facts["delta"] is None
    crash = store.trials(rows["1.1"].program, "val")[0]
    assert "ZeroDivisionError" in crash.message + store.trace(crash.trace).stderr
    store.close()


def test_the_test_split_stays_shut_until_finalize_and_the_run_afterwards(tmp_path: Path) -> None:
    class Watching(Affine):
        asked: list[str] = []

        def instances(self, split: Split) -> Sequence[Instance]:
            self.asked.append(split)
            return super().instances(split)

    folder = tmp_path / "run"
    config = {
        "run": {"out": str(folder)},
        "domain": {"name": "own"},
        "harness": {"iterations": 1, "candidates": 1},
        "proposer": {"name": "scripted"},
    }
    runs.run(config, domain=Watching(), proposer=Scripted({1: [Step(change=solving("x + 1"))]}))
    assert "test" not in Watching.asked, "only the preparing process reads it, and that is another one"
    store = SQLiteStore.open(folder, readonly=True)
    assert {t.split for c in store.candidates() for t in store.trials(c.program)} == {"val"}
    store.close()
    runs.finalize(folder, domain=Watching())
    assert "test" in Watching.asked
    with pytest.raises(SealedError, match="closed"):
        runs.finalize(folder, domain=Watching())
    with pytest.raises(SealedError, match="search is over"):
        runs.resume(folder, domain=Watching(), proposer=Scripted({}))
    with pytest.raises(RefusedError, match="already"):
        runs.run(config, domain=Watching())


@pytest.mark.parametrize("in_flight", [1, 4])
def test_workers_change_nothing_but_speed(tmp_path: Path, in_flight: int) -> None:
    digests = set()
    for workers in (1, 2):
        go(tmp_path / str(workers), in_flight=in_flight, workers=workers)
        digests.add(digest(tmp_path / str(workers)))
    assert len(digests) == 1


def test_a_killed_finalize_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(folder, in_flight=1, workers=2, domain=Affine(7))

    class Died(Exception):
        pass

    def die(event: Event) -> None:
        if event.kind == "final" and event.data["state"] == "tested":
            raise Died

    with pytest.raises(Died):
        runs.finalize(folder, domain=Affine(7), observers=(die,))
    result = runs.resume(folder, domain=Affine(7), proposer=Scripted({}))
    assert result.certificate is not None
    assert result.certificate["openings"] == 1, "one run counts once, however often its finalize is begun"


def test_a_certificate_that_was_never_written_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(folder, in_flight=1, workers=2, domain=Affine(11))
    certificate = runs.finalize(folder, domain=Affine(11))
    for name in ("certificate.json", "certificate.txt"):
        (folder / name).unlink()
    assert runs.finalize(folder, domain=Affine(11)) == certificate
    assert runs.verify(folder)["certificate"] == "matches"
