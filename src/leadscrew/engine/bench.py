"""The bench: what a proposer sees and may use for one plan, in memory or laid out as files."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from leadscrew.core.archive import Archive
from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program
from leadscrew.core.proposal import Edit, Proposal
from leadscrew.core.task import Instance, Split
from leadscrew.core.trial import Purpose, Trace, Trial
from leadscrew.engine.folders import write_folder
from leadscrew.errors import InfrastructureError, SealedError
from leadscrew.ports import Domain, Errand, ErrandResult, Evidence, Message, Store

Layout = Callable[["RunBench", Path], None]
"""Writes history and instructions into a bench folder; given by whoever knows the method."""
Errands = Callable[[Errand, "RunBench"], Awaitable[ErrandResult]]
"""Runs an errand in a box on a bench; given by whoever knows the sandbox."""


class Submissions:
    """What people or agents handed in or approved, each kept until a plan takes it."""

    def __init__(self) -> None:
        self._waiting: list[Message] = []
        self._arrived = asyncio.Event()

    def count(self, *, approvals: bool) -> int:
        """Count what waits: submissions, and approvals too if asked for."""
        return sum(approvals or m.kind != "approve" for m in self._waiting)

    def put(self, message: Message) -> None:
        """Add a message of kind `submit` or `approve`."""
        self._waiting.append(message)
        self._arrived.set()

    async def take(self, *, approvals: bool) -> Message:
        """Wait for the oldest message that may be taken, and take it."""
        while True:
            for message in self._waiting:
                if approvals or message.kind != "approve":
                    self._waiting.remove(message)
                    return message
            self._arrived.clear()
            await self._arrived.wait()


class SealedDomain:
    """A domain as a proposer may use it: everything of it but the instances of test, and those of val unless shown."""

    def __init__(self, domain: Domain, evidence: Evidence) -> None:
        self._domain, self._evidence = domain, evidence

    def instances(self, split: Split) -> Sequence[Instance]:
        """Return the instances of a permitted split; raises `SealedError` for any other."""
        if split == "test" or (split == "val" and not self._evidence.val_traces):
            raise SealedError(f"the {split!r} split is sealed for proposers")
        return self._domain.instances(split)

    def __getattr__(self, name: str) -> Any:
        if name in ("probes", "split_digest"):
            raise SealedError(f"{name} of a domain would tell of its sealed splits")
        return getattr(self._domain, name)


class RunBench:
    """A bench over the run's store. It shows the archive as it was when the plan was decided.

    `unseal` turns a message from the inbox into proposals; `taken` collects the messages used, which the engine marks as
    done together with the proposals made from them.
    """

    def __init__(
        self,
        *,
        number: int,
        plan: Edit,
        archive: Archive,
        domain: Domain,
        evidence: Evidence,
        notes: Sequence[str],
        store: Store,
        seed: int,
        submissions: Submissions,
        unseal: Callable[[Message, RunBench], Sequence[Proposal]],
        layout: Layout | None = None,
        errands: Errands | None = None,
    ) -> None:
        self.number, self.plan, self.archive = number, plan, archive
        self.domain = cast(Domain, SealedDomain(domain, evidence))
        self.evidence: Evidence = evidence
        self.notes: Sequence[str] = tuple(notes)
        self.rng = derived_rng(seed, number, "propose")
        self.taken: list[Message] = []
        self._store, self._submissions, self._unseal, self._layout = store, submissions, unseal, layout
        self._errands = errands
        self._folder: Path | None = None

    def program(self, candidate: str) -> Program:
        """Return the tree of a recorded candidate; raises `NotFoundError` for an unknown one."""
        return self._store.program(self.archive[candidate].program)

    def trials(self, candidate: str, split: Split = "train") -> Sequence[Trial]:
        """Return a candidate's search trials on a permitted split; raises `SealedError` for any other."""
        if split == "test" or (split == "val" and not self.evidence.val_traces):
            raise SealedError(f"this method does not show trials on {split!r} to proposers")
        digest = self.archive[candidate].program
        exposed = self._store.program(digest).part(self.domain.interface.region).digest
        return [t for t in self._store.trials(exposed, split) if t.purpose in (Purpose.SEARCH, Purpose.CONFIRM)]

    def trace(self, digest: str) -> Trace:
        """Return a stored trace."""
        return self._store.trace(digest)

    def folder(self, place: Path | None = None) -> Path:
        """Lay the bench out once, in `place` or under the run folder, and return where."""
        if self._folder is None:
            folder = place or self._store.path / "benches" / str(self.number)
            folder.mkdir(parents=True, exist_ok=True)
            for parent in self.plan.parents or _default_bases(self.archive):
                write_folder(self.program(parent), folder / "programs" / parent)
            if self._layout is not None:
                self._layout(self, folder)
            self._folder = folder
        return self._folder

    def keep(self, name: str) -> Path:
        """Return a new, empty folder below `RUN/sessions/`; one of the same name from an earlier try is replaced."""
        folder = self._store.path / "sessions" / f"{self.number}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    async def errand(self, errand: Errand) -> ErrandResult:
        """Run a command in a proposer's box on this bench; see the port for what is raised."""
        if self._errands is None:
            raise InfrastructureError("this run was put together without boxes for proposers, so no command can be run")
        return await self._errands(errand, self)

    async def submission(self) -> Sequence[Proposal]:
        """Wait for the next submitted folder and return the proposals in it."""
        # A held candidate may be younger than what a waiting plan can see: approvals are for plans made for them.
        message = await self._submissions.take(approvals=self.plan.operator == "submitted")
        self.taken.append(message)
        return self._unseal(message, self)


Proposing = Callable[[Edit, RunBench], Awaitable[Sequence[Proposal]]]


def derived_rng(seed: int, number: int, purpose: str) -> random.Random:
    """Return the random generator of one purpose of one plan: never a shared one, so order cannot matter."""
    return random.Random(int(digest_of([seed, number, purpose])[:16], 16))


def _default_bases(archive: Archive) -> tuple[str, ...]:
    bases = [c.id for c in archive.frontier()[:5]]
    champion = archive.champion
    if champion is not None and champion.id not in bases:
        bases.insert(0, champion.id)
    return tuple(bases)
