"""Methods, proposers, and the bench between them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program
from leadscrew.core.proposal import Edit, Judgement, Plan, Proposal, Results
from leadscrew.core.task import Split
from leadscrew.core.trial import Trace, Trial
from leadscrew.ports.domains import Domain
from leadscrew.ports.errands import Errand, ErrandResult


@dataclass(frozen=True, slots=True)
class Evidence:
    """What proposers may see. `level` is what of a candidate is shown, `extent` of which candidates.

    `val_traces` tells whether val instances with their answers are shown (it stands in the certificate).
    """

    level: Literal["scores", "summary", "full"] = "full"
    extent: Literal["last", "window", "summary", "full"] = "full"
    window: int = 5
    val_traces: bool = False


class Bench(Protocol):
    """What a proposer sees and may use for one plan. All its input and output goes through here."""

    @property
    def archive(self) -> Archive:
        """The archive as it was when the plan was decided."""

    @property
    def number(self) -> int:
        """The plan's number in the run."""

    @property
    def rng(self) -> random.Random:
        """Randomness of this plan alone."""

    @property
    def domain(self) -> Domain:
        """The domain; its test split is sealed."""

    @property
    def evidence(self) -> Evidence:
        """What the method lets proposers see."""

    @property
    def notes(self) -> Sequence[str]:
        """What people wrote to the proposers, oldest first: data, not orders."""

    def program(self, candidate: str) -> Program:
        """Return the tree of a recorded candidate."""

    def trials(self, candidate: str, split: Split = "train") -> Sequence[Trial]:
        """Return a candidate's trials on a permitted split; raises `SealedError` for any other."""

    def trace(self, digest: str) -> Trace:
        """Return a stored trace."""

    def folder(self) -> Path:
        """Lay the bench out as files (history, base programs, instructions) and return the folder."""

    def keep(self, name: str) -> Path:
        """Return a new, empty folder for records of this plan that people may read, and may delete."""

    async def errand(self, errand: Errand) -> ErrandResult:
        """Run a command in a proposer's box on this bench. Raises `InfrastructureError` if the box, or the model behind it,
        fails, and `BudgetReached` at a cap; a command that fails is a result."""

    async def submission(self) -> Sequence[Proposal]:
        """Wait until somebody submits a folder for this plan and return what it holds."""


@runtime_checkable
class Proposer(Protocol):
    """A way to make proposals. `propose` may raise only `InfrastructureError`; a bad reply is a failed proposal."""

    name: str

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Return up to `plan.count` proposals."""


@runtime_checkable
class Method(Protocol):
    """An algorithm: what to ask for next and what to make of the result. Pure and synchronous; all state is in the archive."""

    name: str
    evidence: Evidence
    record_kinds: Mapping[str, Mapping[str, str]]
    """Kinds of `Record` this method writes: field name -> type name (`str`, `int`, `float`, `bool`, `list`, `dict`)."""

    def plan(self, archive: Archive, number: int, rng: random.Random) -> Plan | None:
        """Return plan `number` (0 is the founding plan), or None when the method is done."""

    def judge(self, archive: Archive, number: int, plan: Plan, results: Results) -> Judgement:
        """Judge everything that came back for a plan; the archive does not hold its candidates yet."""

    def finalists(self, archive: Archive) -> Sequence[str]:
        """Return the candidates to open the test split for, the champion first."""
