"""The archive and the plans in flight, rebuilt from the store: how a run goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leadscrew.core.archive import Archive
from leadscrew.core.proposal import Candidate
from leadscrew.core.task import Objective
from leadscrew.ports import Store, StoredPlan


@dataclass(frozen=True, slots=True)
class Restored:
    """`in_flight` holds the plans that were decided but not judged, each with the archive as it was at its decision and
    with its number among the method's own plans."""

    archive: Archive
    in_flight: tuple[tuple[StoredPlan, Archive, int], ...]
    next_number: int
    method_plans: int
    notes: tuple[str, ...]


def restore(store: Store, objectives: Sequence[Objective]) -> Restored:
    """Replay the judgements in the order in which they were applied."""
    plans = list(store.plans())
    judgements = list(store.judgements())
    judged = {number for number, _, _ in judgements}
    ordinals: dict[int, int] = {}
    own = 0
    for stored in plans:
        ordinals[stored.number] = own
        own += stored.origin == "method"
    waiting = [p for p in plans if p.number not in judged]
    views: dict[int, Archive] = {}
    archive = Archive(objectives)
    by_plan: dict[int, list[Candidate]] = {}
    for candidate in store.candidates():
        by_plan.setdefault(candidate.plan, []).append(candidate)

    def keep_views() -> None:
        for stored in waiting:
            if stored.after == archive.plans_applied:
                views[stored.number] = archive.snapshot()

    keep_views()
    for number, verdicts, records in judgements:
        for candidate in by_plan.pop(number, []):
            archive.add(candidate)
        for verdict in verdicts:
            archive.judge(verdict)
        for record in records:
            archive.remember(record)
        archive.plan_applied()
        keep_views()
    return Restored(
        archive,
        tuple((p, views[p.number], ordinals[p.number]) for p in waiting),
        next_number=max((p.number for p in plans), default=-1) + 1,
        method_plans=own,
        notes=tuple(str(data.get("text", "")) for _, _, data in store.events("note")),
    )


def load_archive(store: Store, objectives: Sequence[Objective]) -> Archive:
    """Return the archive that a store holds."""
    return restore(store, objectives).archive
