"""What a candidate costs: the same work and about the same space however many there are (no clock is asked)."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Spend
from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate, Claim, Edge, Edit, Judgement, Proposal, Verdict
from leadscrew.core.task import Aggregate
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trace, Trial
from leadscrew.ports import StoredPlan
from leadscrew.testing.samples import sample_call, sample_reply


class Growing:
    """A run that grows by one candidate at a time, each with a changed file, a trial with a trace, and a verdict."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store, self.number, self.compressed = store, 0, 0
        self.rng = random.Random(1)
        self.lines = [f"def f{i}(x):\n    return x * {i} + {i * i}  # line {i}\n" for i in range(60)]

    def grow(self, count: int) -> None:
        for _ in range(count):
            self._one()
            if self.number % 20 == 0:
                self.store.commit()
        self.store.commit()

    def _one(self) -> None:
        store, number, rng = self.store, self.number, self.rng
        self.lines[rng.randrange(60)] = f"def f(x):\n    return x * {rng.random()}\n"
        source = "".join(self.lines)
        self.compressed += len(zlib.compress(source.encode()))
        program = Program.of({"main.py": source})
        edges = (Edge("parent", f"{rng.randrange(number)}.0"),) if number else ()
        claim = Claim("exchange two functions of the donor", ("exchange",), "a better value")
        key = digest_of([program.digest, "packing"])
        score = rng.random()
        evaluation = Evaluation(
            program.digest, "val", 0, 1, ("packing",), array("d", [score]), Aggregate(score, {}, {"main": score})
        )
        store.add_plan(StoredPlan(number, Edit("genetic", options={"rate": 0.5}), max(0, number - 4)))
        store.add_proposal(number, 0, Proposal(program, edges, claim, f"exchange {number}"))
        assert store.find_trial(key) is None
        trace = store.put_trace(Trace(answer=[rng.random() for _ in range(3)], stdout="hello\n"))
        store.add_trial(
            Trial(
                key, program.digest, "packing", "val", "main", 0, Purpose.SEARCH, Outcome.OK, score,
                output_digest=digest_of(number), spend=Spend(1, 12, 13), trace=trace,
            )
        )  # fmt: skip
        store.add_candidate(
            Candidate(
                f"{number}.0", number, 0, program.digest, f"exchange {number}", "genetic", "evaluated", Outcome.OK,
                "", edges, claim, {"val": evaluation},
            )
        )  # fmt: skip
        store.add_judgement(number, Judgement((Verdict(f"{number}.0", "kept", "below the best", facts={"d": -0.1}),)))
        store.add_event("candidate", {"id": f"{number}.0"})
        self.number += 1


def steps(store: SQLiteStore, work: Callable[[], None]) -> int:
    """The instructions of SQLite's machine that a piece of work takes, in tens."""
    ticks = [0]

    def tick() -> int:
        ticks[0] += 1
        return 0

    store._db._db.set_progress_handler(tick, 10)
    work()
    store._db._db.set_progress_handler(None, 10)
    return ticks[0]


def test_the_work_per_candidate_is_flat(tmp_path: Path) -> None:
    with SQLiteStore.create(tmp_path, config={}, seed=1) as store:
        growing = Growing(store)
        growing.grow(20)
        early = steps(store, lambda: growing.grow(100))
        growing.grow(1500)
        late = steps(store, lambda: growing.grow(100))
        assert early > 100
        assert late < 1.05 * early


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_space_per_candidate_is_small(tmp_path: Path, count: int) -> None:
    with SQLiteStore.create(tmp_path, config={}, seed=1) as store:
        growing = Growing(store)
        growing.grow(count)
    allocated = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*"))
    assert allocated / count <= 4096 + 2 * growing.compressed / count
    assert len(list(tmp_path.rglob("*"))) < 8, "no files per candidate"


def test_a_call_costs_the_same_however_many_were_equal(tmp_path: Path) -> None:
    """A popular prompt is found as fast as a rare one, and is stored once, as is the answer that all share."""
    question = "what is asked again and again " * 100
    with SQLiteStore.create(tmp_path, config={}, seed=1) as store:

        def call(number: int) -> None:
            asked = replace(sample_call(1), scope=digest_of(["trial", number]), body={"prompt": question})
            assert store.find_reply(asked.scope, asked.request, 0) is None
            shared = store.find_shared(asked.share, asked.request, 0)
            assert (shared is not None) == bool(number)
            source = "cache" if shared else "upstream"
            store.add_reply(store.add_call(asked), replace(sample_reply("an answer " * 100), source=source))
            store.commit()
            store.spend()

        def calls(first: int, end: int) -> None:
            for number in range(first, end):
                call(number)

        calls(0, 100)
        early = steps(store, lambda: calls(100, 200))
        calls(200, 2000)
        late = steps(store, lambda: calls(2000, 2100))
        assert early > 100
        assert late < 1.1 * early
        assert store._db.one("SELECT count(*) FROM blob")[0] == 2
        assert sum(1 for _ in store.calls()) == 2100


def test_reading_everything_holds_one_thing_at_a_time(tmp_path: Path) -> None:
    with SQLiteStore.create(tmp_path, config={}, seed=1) as store:
        Growing(store).grow(400)
        store.archive_digest()
        tracemalloc.start()
        try:
            store.archive_digest()
            store.verify()
            assert sum(1 for _ in store.candidates()) == 400
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 1_000_000


def test_a_tree_of_many_files_costs_what_changed(tmp_path: Path) -> None:
    rng = random.Random(2)
    files = {f"package/module_{i:03}.py": "".join(f"a{rng.random()}\n" for _ in range(20)) for i in range(200)}
    with SQLiteStore.create(tmp_path, config={}, seed=1) as store:
        tree = Program.of(files)
        store.put_program(tree)
        store.commit()
        before = store._db.one("SELECT sum(length(manifest)) FROM program")[0]
        trees = [tree]
        for number in range(50):
            change = {f"package/module_{rng.randrange(200):03}.py": f"x = {number}\n"}
            if number % 10 == 0:
                change |= {f"package/new_{number}.py": "new\n", sorted(trees[-1])[rng.randrange(190)]: None}
            trees.append(trees[-1].with_files(change))
            store.put_program(trees[-1])
        store.commit()
        after = store._db.one("SELECT sum(length(manifest)) FROM program")[0]
        assert (after - before) / 50 < before / 2
    with SQLiteStore.open(tmp_path) as store:
        assert [store.program(t.digest) for t in trees] == trees
        last = trees[-1].with_files({"package/module_000.py": "the last\n"})
        store.put_program(last)
        assert store.program(last.digest) == last


def test_the_rows_of_a_pruned_trace_stay(tmp_path: Path) -> None:
    large = Trace(stdout="".join(str(i * i) for i in range(40_000)))
    with SQLiteStore.create(tmp_path, config={}, seed=1) as store:
        kept, small, big = (store.put_trace(t) for t in (Trace(stdout="kept"), Trace(stdout="small"), large))
        store.commit()
        gone = store.prune_traces({kept})
        assert gone > 200_000
        assert store.trace(kept).stdout == "kept"
        for digest in (small, big):
            assert "pruned" in store.trace(digest).stderr
        assert not [p for p in (tmp_path / "traces").rglob("*") if p.is_file()]
        assert store.prune_traces({kept}) == 0
        assert store.put_trace(large) == big
        store.commit()
        store.verify()
