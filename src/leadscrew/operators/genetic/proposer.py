"""The proposer `genetic`: it draws bases and donors from the archive and mutates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leadscrew.core.proposal import Claim, Edge, Edit, Proposal
from leadscrew.core.trial import Outcome
from leadscrew.operators.genetic.memory import SHORT, Memory
from leadscrew.operators.genetic.mutate import Mutation, mutate
from leadscrew.operators.genetic.names import tree_digest
from leadscrew.operators.genetic.options import Options
from leadscrew.ports import Bench

EXPLORING = frozenset({"graft", "exchange", "drop", "lines"})
NOTHING_NEW = "no new program found"


class GeneticProposer:
    """Proposes without a model, from what the archive holds.

    Parents named by the plan are the bases, in turn; without any the proposer draws one per proposal (see `Options`).
    A program that is already recorded, also one that was rejected or only looks different, is not proposed again.
    What it returns depends on the archive, the plan and `bench.rng` alone. It looks at trees, values on
    val and claims, never at traces. Options of a plan win over those given here.
    """

    name = "genetic"

    def __init__(
        self,
        *,
        weights: Mapping[str, float] | None = None,
        tries: int | None = None,
        donors: int | None = None,
        tournament: int | None = None,
        frontier: float | None = None,
        any: float | None = None,
        founders: float | None = None,
        line: Sequence[str] | None = None,
        max_bytes: int | None = None,
        credit: bool | None = None,
    ) -> None:
        """Take the fields of `Options`; raises `ConfigError` for a value that cannot be used."""
        given: dict[str, Any] = {
            "weights": weights,
            "tries": tries,
            "donors": donors,
            "tournament": tournament,
            "frontier": frontier,
            "any": any,
            "founders": founders,
            "line": line,
            "max_bytes": max_bytes,
            "credit": credit,
        }
        self._given = {key: value for key, value in given.items() if value is not None}
        Options.of(self._given)
        self._memory = Memory()

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Return `plan.count` proposals; one that could not be made is a failed proposal with the reason."""
        options = Options.of({**self._given, **plan.options})
        if not self._memory.fits(bench.archive):
            self._memory = Memory()
        memory = self._memory
        memory.follow(bench.archive, bench.program)
        # Nothing is awaited from here on: the archive must be the same for all proposals of a plan.
        made: list[Proposal] = []
        fresh: set[str] = set()
        for index in range(plan.count):
            proposal = self._one(plan, bench, memory, options, index, fresh)
            if proposal.program is not None:
                fresh.add(tree_digest(proposal.program))
            made.append(proposal)
        return made

    def _one(self, plan: Edit, bench: Bench, memory: Memory, options: Options, index: int, fresh: set[str]) -> Proposal:
        archive, rng = bench.archive, bench.rng
        weights = memory.weights(archive, options)

        def known(digest: str) -> bool:
            return memory.knows(archive, digest) or digest in fresh

        base = ""
        # A base whose neighbourhood is exhausted must not end the search: each round draws anew.
        for _ in range(3):
            drawn = plan.parents[index % len(plan.parents)] if plan.parents else memory.base(archive, options, rng)
            if drawn is None:
                return Proposal(None, failure=f"{NOTHING_NEW}: no recorded candidate is valid", outcome=Outcome.INVALID)
            base = drawn
            donors = memory.donors(archive, base, options, rng)
            done = mutate(
                bench.program(base),
                [bench.program(donor) for donor in donors],
                rng,
                options,
                region=plan.region,
                labels=[f"candidate {base}", *(f"candidate {donor}" for donor in donors)],
                known=known,
                weights=weights,
            )
            if done is not None and archive.first_with(done.program.digest) is None:
                return _proposal(base, donors, done)
        edges = (Edge("base", base), Edge("parent", base))
        return Proposal(None, edges, failure=NOTHING_NEW, outcome=Outcome.INVALID)


def _proposal(base: str, donors: Sequence[str], done: Mutation) -> Proposal:
    used = [donors[i] for i in done.used_donors]
    exploring = any(move in EXPLORING for move in done.moves)
    claim = Claim(
        hypothesis=done.text,
        tags=done.moves,
        expected=f"a better value on val than candidate {base}",
        extra={
            "axis": "exploration" if exploring else "exploitation",
            "base_system": base,
            "components": list(done.components),
            "tree": tree_digest(done.program)[:SHORT],
        },
    )
    edges = (Edge("base", base), Edge("parent", base), *(Edge("donor", donor) for donor in used))
    return Proposal(done.program, edges, claim, name=_name(done))


def _name(done: Mutation) -> str:
    parts = [part.split("(")[0] for part in done.components[:3]]
    return " ".join([done.moves[0] if done.moves[0] != "compose" else "+".join(done.moves[1:]), *parts])[:80]
