"""What a proposer may see: the archive of its plan's moment, permitted splits, and files only when it asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from leadscrew.core.proposal import Edge, Edit, Proposal
from leadscrew.engine.bench import RunBench, Submissions, derived_rng
from leadscrew.engine.loop import LoopSettings
from leadscrew.errors import SealedError
from leadscrew.methods.harness import HarnessSettings
from leadscrew.ports import Bench, Evidence, Message
from support.toy import Parts, digits


def test_randomness_belongs_to_seed_plan_and_purpose() -> None:
    draws = {(s, n, p): derived_rng(s, n, p).random() for s in (0, 1) for n in (0, 1) for p in ("plan", "propose")}
    assert len(set(draws.values())) == 8
    assert draws[0, 1, "plan"] == derived_rng(0, 1, "plan").random()


def test_a_bench_shows_the_archive_of_its_moment_and_no_test(tmp_path: Path) -> None:
    seen: dict[int, int] = {}
    splits: list[str] = []

    class Looking:
        name = "looking"

        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            seen[bench.number] = len(bench.archive)
            await asyncio.sleep(0.01)
            assert len(bench.archive) == seen[bench.number], "others were judged meanwhile"
            assert bench.trials("0.0", "val"), "harness shows val"
            with pytest.raises(SealedError):
                bench.trials("0.0", "test")
            splits.extend(t.split for t in bench.trials("0.0", "val"))
            return [Proposal(digits(f"{bench.number:012d}"), (Edge("base", "0.0"),))]

    settings = HarnessSettings(iterations=6, candidates=1, promotion="published")
    Parts(tmp_path, Looking(), settings=settings, loop=LoopSettings(plans_in_flight=3)).run()
    assert seen == {1: 2, 2: 2, 3: 2, 4: 3, 5: 4, 6: 5}
    assert set(splits) == {"val"}
    assert not (tmp_path / "benches").exists(), "no files unless a proposer asks for them"


def test_val_is_shut_where_the_method_says_so_and_folders_are_laid_out_once(tmp_path: Path) -> None:
    parts = Parts(tmp_path, type("Idle", (), {"name": "idle"})(), settings=HarnessSettings(iterations=0))
    asyncio.run(parts.engine.run())
    laid: list[Path] = []
    bench = RunBench(
        number=7,
        plan=Edit("idle", parents=("0.1",)),
        archive=parts.engine.archive.snapshot(),
        domain=parts.domain,
        evidence=Evidence(val_traces=False),
        notes=["look at the first digit"],
        store=parts.store,
        seed=0,
        submissions=Submissions(),
        unseal=lambda message, bench: [],
        layout=lambda bench, folder: laid.append(folder),
    )
    with pytest.raises(SealedError, match="val"):
        bench.trials("0.0", "val")
    assert bench.trials("0.0", "train") == []
    assert bench.folder() == bench.folder() == tmp_path / "benches" / "7"
    assert laid == [tmp_path / "benches" / "7"]
    assert (tmp_path / "benches" / "7" / "programs" / "0.1" / "digits.txt").read_text().startswith("0-")
    parts.store.close()


async def test_submissions_are_taken_oldest_first() -> None:
    submissions = Submissions()
    for n in range(3):
        submissions.put(Message(str(n), "submit", {}))
    assert [(await submissions.take(approvals=False)).id for _ in range(3)] == ["0", "1", "2"]
    assert submissions.count(approvals=True) == 0


async def test_approvals_are_left_for_plans_that_can_see_what_they_are_about() -> None:
    submissions = Submissions()
    submissions.put(Message("a", "approve", {}))
    waiting = asyncio.create_task(submissions.take(approvals=False))
    await asyncio.sleep(0)
    submissions.put(Message("b", "submit", {}))
    assert (await waiting).id == "b"
    assert (await submissions.take(approvals=True)).id == "a"


def test_a_proposer_cannot_reach_sealed_splits_through_the_domain(tmp_path: Path) -> None:
    asked: list[str] = []

    class Curious:
        name = "curious"

        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            assert bench.domain.instances("train")
            for reach in (lambda: bench.domain.instances("test"), lambda: bench.domain.split_digest("test")):
                with pytest.raises(SealedError):
                    reach()
                asked.append("refused")
            return [Proposal(digits("0"), (Edge("base", "0.0"),))]

    Parts(tmp_path, Curious(), settings=HarnessSettings(iterations=1, candidates=1)).run()
    assert asked == ["refused"] * 2
