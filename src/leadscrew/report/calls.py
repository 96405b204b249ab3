"""The recorded model calls of a run: each as one row, one in full, and all of them summed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leadscrew.core.budget import Spend
from leadscrew.core.call import Call, CallReply
from leadscrew.engine.meter import FINAL_PLAN
from leadscrew.errors import NotFoundError
from leadscrew.report.reading import Reading, reading
from leadscrew.roles import caps_in_force, prompt_and_response


def calls(run: str | Path, candidate: str = "", *, failed: bool = False) -> list[dict[str, Any]]:
    """Return every recorded call in order; with `candidate` those that its program made, with `failed` those without a reply.

    `tokens_in` and `tokens_out` are logical: what the reply took, whoever paid. `micro_usd` is what was paid, in millionths
    of a US dollar, None where the price is unknown. `plan` is None for the calls of the final test. `status` is `ok`,
    `failed`, `refused`, or `unanswered` where the process died, or is still at work, before there was a reply.
    """
    with reading(run) as r:
        programs = _programs(r, candidate) if candidate else None
        owners = _owners(r)
        return [
            _row(number, call, reply, owners)
            for number, call, reply in r.store.calls()
            if (programs is None or call.candidate in programs) and not (failed and reply and reply.status == "ok")
        ]


def call(run: str | Path, number: int) -> dict[str, Any]:
    """Return one call with its whole request and reply, as they were sent and as text; raises `NotFoundError`."""
    with reading(run) as r:
        for found, asked, reply in r.store.calls():
            if found == number:
                prompt, response = prompt_and_response(r.config, asked, reply)
                return {
                    **_row(number, asked, reply, _owners(r)),
                    "scope": asked.scope,
                    "occurrence": asked.occurrence,
                    "usage": reply.usage if reply else None,
                    "uncertain": reply.uncertain if reply else 1,
                    "prompt": prompt,
                    "response": response,
                    "request_body": dict(asked.body),
                    "reply_body": dict(reply.body) if reply else {},
                }
        raise NotFoundError(
            f"the run has no model call {number}. `leadscrew calls RUN` lists those it has.", name=str(number)
        )


def summary(r: Reading) -> dict[str, Any]:
    """Return what all calls of a run used: in the search and by role there, in the final test, those without an answer, and
    the caps that hold.

    Tokens and money are what was paid; an attempt without an answer counts at its bound.
    """
    by_role: dict[str, Spend] = {}
    search = final = Spend()
    for (role, plan), spend in r.store.call_spend().items():
        if plan == FINAL_PLAN:
            final = final + spend
        else:
            search = search + spend
            by_role[role] = by_role.get(role, Spend()) + spend
    unanswered = uncertain = 0
    if by_role or final.calls:
        for _, _, reply in r.store.calls():
            unanswered += reply is None
            uncertain += reply.uncertain if reply else 0
    in_force = caps_in_force(r.config, (data for _, _, data in r.store.events("caps")))
    caps = {role: _set(c) for role, c in in_force.roles.items()}
    return {
        "search": _paid(search),
        "final": _paid(final),
        "by_role": {role: _paid(spend) for role, spend in sorted(by_role.items())},
        "unanswered": unanswered,
        "uncertain": uncertain,
        "caps_by_role": {role: c for role, c in caps.items() if c},
        "caps_of_final": _set(in_force.final),
    }


def _paid(spend: Spend) -> dict[str, int | None]:
    return {
        "calls": spend.calls,
        "tokens_in": spend.tokens_in,
        "tokens_out": spend.tokens_out,
        "micro_usd": spend.micro_usd,
    }


def _set(caps: Any) -> dict[str, float]:
    return {name: value for name, value in dataclasses.asdict(caps).items() if value is not None}


def _programs(r: Reading, candidate: str) -> set[str]:
    c = r.candidate(candidate)
    return {e.program for e in c.evaluations.values()} | ({c.program} if c.program else set())


def _owners(r: Reading) -> dict[str, str]:
    """The first candidate of each program, by the digest that calls are made under."""
    owners: dict[str, str] = {}
    for c in r.archive:
        for program in ({e.program for e in c.evaluations.values()} | {c.program}) - {""}:
            owners.setdefault(program, c.id)
    return owners


def _row(number: int, asked: Call, reply: CallReply | None, owners: Mapping[str, str]) -> dict[str, Any]:
    return {
        "number": number,
        "role": asked.role,
        "plan": None if asked.plan == FINAL_PLAN else asked.plan,
        "candidate": owners.get(asked.candidate, asked.candidate[:12]),
        "instance": asked.instance,
        "model": asked.model,
        "source": reply.source if reply else None,
        "status": reply.status if reply else "unanswered",
        "tokens_in": reply.tokens_in if reply else 0,
        "tokens_out": reply.tokens_out if reply else 0,
        "micro_usd": asked.cost(reply).micro_usd,
        "attempts": reply.attempts if reply else 0,
        "seconds": reply.wall_ms / 1000 if reply else None,
        "message": reply.message if reply else "no reply was recorded; it counts at its bound",
    }
