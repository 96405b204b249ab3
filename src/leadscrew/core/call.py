"""Model calls as the gateway records them: who asked, what was asked, what came back, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from leadscrew.core.budget import Spend
from leadscrew.core.canonical import digest_of

CallStatus = Literal["ok", "failed", "refused"]
"""`failed`: the upstream could not answer. `refused`: the gateway did not ask it (a cap, an allowance, a bad request)."""
CallSource = Literal["upstream", "cache", "record"]
"""Where a reply came from: paid for now, shared by an equal call of another program, or recorded for this very call."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The model of a role and the parameters that no program can change.

    `model` is `provider/name`. None leaves a parameter to the program, `max_tokens` apart, which bounds it.

    >>> Pin("solver", "local/smollm2").digest == Pin("solver", "local/smollm2", temperature=0.0).digest
    False
    """

    role: str
    model: str
    temperature: float | None = None
    max_tokens: int = 1024
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that can change a reply; part of the key of a trial."""
        return digest_of([self.model, self.temperature, self.max_tokens, dict(self.extra)])


@dataclass(frozen=True, slots=True)
class Call:
    """One model call that is about to be made.

    `scope` is what it belongs to: the key of a trial, `learn:<digest>`, or `plan:<number>:<what>`. Within a scope the n-th
    call with the same `request` (digest of the canonical body) has `occurrence` n, from 0: by these three a reply is
    found again. `share` names the calls that may have one reply in common (role, pin, instance, repeat); empty: none.
    `bound` is the most tokens, in and out together, that it can use, and `bound_micro_usd` the most that it can cost, None
    where the price is unknown; a model that costs nothing has 0.
    """

    role: str
    plan: int
    candidate: str
    scope: str
    request: str
    occurrence: int
    model: str
    body: Mapping[str, Any] = field(default_factory=dict)
    instance: str = ""
    share: str = ""
    bound: int = 0
    bound_micro_usd: int | None = None

    def cost(self, reply: CallReply | None) -> Spend:
        """Return what the call counts for in budgets: what was paid, and the bound for every attempt without an answer.

        Without a reply that is one call of its whole bound: it was in flight when the process died.

        >>> Call("solver", 0, "", "s", "r", 0, "local/m", bound=100).cost(None)
        Spend(trials=0, cpu_ms=0, wall_ms=0, calls=1, tokens_in=0, tokens_out=100, micro_usd=None)
        """
        if reply is None:
            return Spend(calls=1, tokens_out=self.bound, micro_usd=self.bound_micro_usd)
        if not reply.uncertain:
            return reply.spend
        money = None if self.bound_micro_usd is None else reply.uncertain * self.bound_micro_usd
        return reply.spend + Spend(tokens_out=reply.uncertain * self.bound, micro_usd=money)


@dataclass(frozen=True, slots=True)
class CallReply:
    """What became of a call. `body` is the upstream's whole reply in the OpenAI or Anthropic form, secrets removed.

    `spend` is what was paid: nothing for a reply from the record or the cache. `tokens_in` and `tokens_out` are logical:
    what the reply took whoever paid for it. `usage` says how far the upstream's figures could be believed. `uncertain`
    counts attempts that may have been billed without an answer.
    """

    status: CallStatus
    source: CallSource = "upstream"
    body: Mapping[str, Any] = field(default_factory=dict)
    tokens_in: int = 0
    tokens_out: int = 0
    spend: Spend = field(default_factory=Spend)
    usage: Literal["reported", "missing", "implausible"] = "reported"
    attempts: int = 1
    uncertain: int = 0
    wall_ms: int = 0
    message: str = ""
