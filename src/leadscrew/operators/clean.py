"""Keeps a proposer to its rules: wraps any proposer and flags or rejects what breaks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leadscrew.core.proposal import Edit, Proposal
from leadscrew.core.trial import Outcome
from leadscrew.policies.hygiene import DataNames, Rule, check
from leadscrew.ports import Bench, Proposer


class Clean:
    """A proposer whose proposals pass the rules of `policies.hygiene`.

    A flagged proposal carries `claim.extra["flags"]`, which the verdict repeats. A rejected one keeps its tree, for
    whoever reads the history, and fails with the reason. What a plan's options say of a rule wins over the defaults.
    """

    def __init__(
        self,
        inner: Proposer,
        names: DataNames,
        *,
        constants_only: Rule = "flag",
        dataset_names: Rule = "reject",
    ) -> None:
        self.inner, self.name = inner, inner.name
        self._names = names
        self._rules: dict[str, Rule] = {"constants_only": constants_only, "dataset_names": dataset_names}

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Return the inner proposer's proposals, checked against the tree that each started from."""
        rules = {rule: plan.options.get(rule, default) for rule, default in self._rules.items()}
        # The rules are for this wrapper: a proposer that checks its own options does not know them.
        own = {name: value for name, value in plan.options.items() if name not in self._rules}
        return [self._checked(p, bench, rules) for p in await self.inner.propose(replace(plan, options=own), bench)]

    def _checked(self, proposal: Proposal, bench: Bench, rules: dict[str, Rule]) -> Proposal:
        if proposal.program is None or proposal.failure:
            return proposal
        base = next((e.source for e in proposal.edges if e.kind in ("base", "parent")), None)
        known = base is not None and base in bench.archive and bool(bench.archive[base].program)
        tree = bench.program(base) if known and base is not None else None
        found = check(tree, proposal.program, self._names, **rules)
        rejected = [f.text for f in found if f.action == "reject"]
        flags = [f"{f.rule}: {f.text}" for f in found]
        extra = {k: v for k, v in proposal.claim.extra.items() if k != "flags"}
        claim = replace(proposal.claim, extra={**extra, "flags": flags} if flags else extra)
        if rejected:
            return replace(proposal, claim=claim, failure="; ".join(rejected), outcome=Outcome.INVALID)
        return replace(proposal, claim=claim)
