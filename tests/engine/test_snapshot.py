"""A snapshot of the history is that of its view: neither later candidates nor later writing show in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from leadscrew.core.proposal import Edge, Edit, Proposal
from leadscrew.engine.history import History
from leadscrew.engine.loop import LoopSettings
from leadscrew.methods.harness import HarnessSettings
from leadscrew.ports import Bench, Evidence
from support.toy import Parts, digits


def rows(folder: Path) -> list[str]:
    text = (folder / "evolution_summary.jsonl").read_text()
    return [json.loads(line)["id"] for line in text.splitlines()]


@pytest.mark.parametrize("link", [True, False])
def test_a_snapshot_shows_what_its_plan_may_know(tmp_path: Path, link: bool) -> None:
    parts: list[Parts] = []
    seen: dict[int, tuple[list[str], set[str]]] = {}

    class Looking:
        name = "looking"

        async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
            await asyncio.sleep(0.02 * (6 - bench.number))
            history = History(parts[0].store, parts[0].domain, bench.evidence)
            place = history.snapshot(bench.archive, tmp_path / "seen" / str(bench.number), link=link)
            before = (place / "frontier_val.json").read_bytes()
            shown = {path.name.split("-")[0] for path in (place / "candidates").iterdir()}
            seen[bench.number] = rows(place), shown
            assert shown == {c.id for c in bench.archive}
            assert (place / "frontier_val.json").read_bytes() == before
            return [Proposal(digits(f"{bench.number:012d}"), (Edge("base", "0.0"),))]

    settings = HarnessSettings(iterations=5, candidates=1, promotion="published")
    parts.append(Parts(tmp_path / "run", Looking(), settings=settings, loop=LoopSettings(plans_in_flight=3)))
    parts[0].run()
    known = [["0.0", "0.1"]] * 3 + [["0.0", "0.1", "1.0"], ["0.0", "0.1", "1.0", "2.0"]]
    assert [sorted(seen[n][0]) for n in range(1, 6)] == known
    assert all(rows(tmp_path / "seen" / str(n)) == seen[n][0] for n in range(1, 6)), "nothing was added later"


def test_a_snapshot_keeps_to_the_evidence(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "run", type("Idle", (), {"name": "idle"})(), settings=HarnessSettings(iterations=0))
    asyncio.run(parts.engine.run())
    archive = parts.engine.archive.snapshot()
    for level, files in (("scores", {"program", "proposal.json", "val.json"}), ("full", {"summary.md", "log.jsonl"})):
        evidence = Evidence(level, val_traces=False)  # type: ignore[arg-type]
        history = History(parts.store, parts.domain, evidence, folder=tmp_path / level)
        place = history.snapshot(archive, tmp_path / f"{level}-seen", link=True)
        there = {path.name for path in next((place / "candidates").iterdir()).iterdir()}
        assert files <= there
        if level == "scores":
            assert there == files
        assert "val-0" not in "".join(p.read_text() for p in place.rglob("*") if p.is_file())
    parts.store.close()
