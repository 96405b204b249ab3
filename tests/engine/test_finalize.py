"""The end of a run without boxes: what the certificate says in each case, and in which order things happen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from leadscrew.core.budget import Caps
from leadscrew.core.proposal import Edge, Edit, Proposal
from leadscrew.core.task import Instance, Split
from leadscrew.engine.finalize import Finals, check_evolvable, closed, finalize, opened
from leadscrew.engine.ledger import Ledger
from leadscrew.errors import BudgetReached, RefusedError, SealedError
from leadscrew.methods.harness import HarnessSettings
from leadscrew.ports import Bench
from support.toy import Digits, Parts, digits


class Offers:
    """Proposes one given text."""

    name = "offers"

    def __init__(self, text: str) -> None:
        self.text = text

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        return [Proposal(digits(self.text), (Edge("base", "0.0"),))]


class Shifted(Digits):
    """On test the digits are the same for the first half only, so that val promises more than test keeps."""

    def instances(self, split: Split) -> Sequence[Instance]:
        known = super().instances(split)
        if split != "test":
            return known
        return [i if n < self.size // 2 else Instance(i.id, split, i.input, "x") for n, i in enumerate(known)]


def ended(folder: Path, text: str, domain: Digits, **more: Any) -> tuple[Parts, dict[str, Any] | None]:
    """Search with one proposal, then finalize with the same parts."""
    parts = Parts(
        folder,
        Offers(text),
        domain=domain,
        settings=HarnessSettings(iterations=1, candidates=1, promotion="published"),
        **more,
    )
    finals = Finals("run-1", 0, "2026-01-01T00:00:00Z", f"digest-{type(domain).__name__}", {"seed": 0})

    async def load() -> Sequence[Instance]:
        assert opened(parts.store), "the opening is on record before test is loaded"
        return domain.instances("test")

    async def both() -> dict[str, Any]:
        await parts.engine.run()
        return await finalize(
            finals,
            store=parts.store,
            archive=parts.engine.archive,
            method=parts.method,
            domain=domain,
            evaluator=parts.evaluator,
            committer=parts.committer,
            meter=parts.meter,
            ledger=Ledger(folder / "openings.jsonl"),
            load_test=load,
        )

    return parts, asyncio.run(both())


def test_a_gain_beyond_chance_is_improved(tmp_path: Path) -> None:
    parts, certificate = ended(tmp_path, "012345678901", Digits())
    assert certificate is not None
    assert certificate["improved"] is True
    test = certificate["test"]
    assert (test["best"], test["instances"], test["baseline_name"]) == (1.0, 12, "first")
    assert test["difference"] == pytest.approx(11 / 12)
    assert test["p_value"] == pytest.approx(2 * 0.5**11)
    assert test["interval"][0] <= test["difference"] <= test["interval"][1]
    assert [row["id"] for row in test["rows"]] == ["1.0", "0.0", "0.1"]
    assert closed(parts.store)
    with pytest.raises(SealedError, match="search is over"):
        check_evolvable(parts.store)
    parts.store.close()


def test_a_gain_within_chance_says_so(tmp_path: Path) -> None:
    parts, certificate = ended(tmp_path, "012---------", Digits())
    parts.store.close()
    assert certificate is not None
    assert certificate["improved"] is False
    assert certificate["test"]["difference"] > 0
    assert "which chance explains" in certificate["verdict"]


def test_val_promises_and_test_decides(tmp_path: Path) -> None:
    parts, certificate = ended(tmp_path, "------678901", Shifted())
    parts.store.close()
    assert certificate is not None
    assert certificate["champion"]["val"] == 0.5
    assert certificate["test"]["best"] == 0.0
    assert certificate["improved"] is False
    assert "not ahead" in certificate["verdict"]


def test_a_founding_champion_is_no_improvement(tmp_path: Path) -> None:
    parts, certificate = ended(tmp_path, "x" * 12, Digits())
    parts.store.close()
    assert certificate is not None
    assert certificate["improved"] is False
    assert certificate["verdict"].startswith("nothing improved")


def test_without_a_champion_nothing_is_opened(tmp_path: Path) -> None:
    parts = Parts(tmp_path, Offers(""), caps=Caps(trials=0))

    async def both() -> None:
        with pytest.raises(BudgetReached):
            await parts.engine.run()
        await finalize(
            Finals("run", 0, "now", "digest", {}),
            store=parts.store,
            archive=parts.engine.archive,
            method=parts.method,
            domain=parts.domain,
            evaluator=parts.evaluator,
            committer=parts.committer,
            meter=parts.meter,
            ledger=Ledger(tmp_path / "openings.jsonl"),
            load_test=lambda: pytest.fail("test was loaded"),
        )

    with pytest.raises(RefusedError, match="nothing to certify"):
        asyncio.run(both())
    assert not opened(parts.store)
    parts.store.close()
