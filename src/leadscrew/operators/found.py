"""The founding proposer: the seed program first, then the domain's baselines."""

from __future__ import annotations

from collections.abc import Sequence

from leadscrew.core.program import Program
from leadscrew.core.proposal import Claim, Edit, Proposal
from leadscrew.errors import DomainError
from leadscrew.ports import Bench


class Found:
    """Proposes what the run starts from. `seed` is the user's program; None takes the domain's own.

    A seed that equals a baseline is proposed once, under the baseline's name. `claim.extra["roles"]` says what each is.
    """

    name = "found"

    def __init__(self, seed: Program | None = None) -> None:
        self.seed = seed

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Return all founders whatever `plan.count` is; raises `DomainError` if there is none."""
        baselines = dict(bench.domain.baselines())
        seed = self.seed if self.seed is not None else bench.domain.seed()
        found: dict[str, Proposal] = {}
        if seed is not None:
            same = next((name for name, program in baselines.items() if program == seed), None)
            roles = ["seed", "baseline"] if same else ["seed"]
            found[seed.digest] = _founder(seed, same or "seed", roles)
        for name, program in baselines.items():
            found.setdefault(program.digest, _founder(program, name, ["baseline"]))
        if not found:
            raise DomainError(
                f"the domain {bench.domain.name!r} has neither a seed nor baselines, so the run has nothing to start "
                "from. Name one in [program] path, or give the domain a `seed` or `baselines`."
            )
        return tuple(found.values())


def _founder(program: Program, name: str, roles: list[str]) -> Proposal:
    return Proposal(program, claim=Claim(hypothesis="a founding program", extra={"roles": roles}), name=name)
