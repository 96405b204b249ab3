"""The gateway: every model call of a run goes through here, where it is pinned, capped, metered, recorded and shared.

Who calls is never said by the caller: each box has a door of its own, and the host says what a visit belongs to. Replies
are shared only between equal calls of one role, one pin, one instance and one repeat (`asked.share_of`). That partition is
the defence against smuggling: what a proposer, or a program on another instance, was told can never come out of the cache
for a program that is being scored, and a visit without an instance (a proposer's) neither fills nor reads the cache.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from leadscrew.adapters.models.asked import CUT, Asked, Live, Refusal, Stake, share_of
from leadscrew.adapters.models.dialects import (
    DIALECTS,
    OPENAI,
    BadRequest,
    Dialect,
    translate_reply,
    translate_request,
)
from leadscrew.adapters.models.doors import UnixDoor
from leadscrew.adapters.models.metering import RoleModel, bound_of, price_for, usage_of
from leadscrew.adapters.models.providers import Provider
from leadscrew.adapters.models.redact import Redactor
from leadscrew.adapters.models.replay import Replay, ReplayMiss
from leadscrew.adapters.models.screen import Screen
from leadscrew.adapters.models.upstream import Upstream, UpstreamFailed
from leadscrew.adapters.models.visits import OpenVisit
from leadscrew.adapters.models.waiting import Flights, Turnstile
from leadscrew.core.budget import Account, Spend
from leadscrew.core.call import Call, CallReply
from leadscrew.core.canonical import digest_of
from leadscrew.engine.commit import Committer
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Event, Model, Observer, Store, Visit

EXTENSIONS = ("labels", "grammar")
"""Fields that only models in this process understand."""
UNSENT = frozenset({"stream", "stream_options"})
"""A streamed and an unstreamed call are the same request."""
MAX_REFUSALS = 100
"""After so many refused calls a visit gets no more hearing: each leaves an entry in memory."""


class ModelGateway:
    """The gateway port over models in this process and providers behind `upstream`.

    `accounts(role, plan)` is the account that pays for calls. `committer` makes calls durable before they are sent and
    replies before they are seen. With `replay` nothing is asked of anybody, and the first call that the recorded run did
    not make becomes `fatal`. Failures of ours go to `observe` as `infra` events.
    """

    def __init__(
        self,
        *,
        roles: Mapping[str, RoleModel],
        store: Store,
        committer: Committer,
        accounts: Callable[[str, int], Account],
        upstream: Upstream | None,
        redact: Redactor,
        replay: Replay | None = None,
        observe: Observer = lambda event: None,
    ) -> None:
        self.fatal: InfrastructureError | None = None
        self._roles = dict(roles)
        self._store = store
        self._committer = committer
        self._accounts = accounts
        self._upstream = upstream
        self._redact = redact
        self._replay = replay
        self._observe = observe
        self._turnstile = Turnstile()
        self._flights = Flights()
        self._doors: set[UnixDoor] = set()
        self._accepted: set[str] = set()
        self._turns: dict[int, asyncio.Lock] = {}

    async def door(self, path: Path) -> UnixDoor:
        """Open a door at a new socket `path`, which may be longer than a socket address."""
        door = UnixDoor(path, self)
        await door.open()
        self._doors.add(door)
        return door

    async def close(self) -> None:
        """Close all doors, then the models in this process, the connections to providers, and the run that is replayed."""
        await asyncio.gather(*(door.close() for door in tuple(self._doors)))
        backends = {id(m.backend): m.backend for m in self._roles.values() if isinstance(m.backend, Model)}
        for backend in backends.values():
            await backend.close()
        if self._upstream is not None:
            await self._upstream.close()
        if self._replay is not None:
            self._replay.close()

    def model_of(self, visit: Visit) -> RoleModel:
        """Return the model behind a visit; raises `InfrastructureError` if its role has none."""
        model = self._roles.get(visit.access.role)
        if model is None:
            raise InfrastructureError(
                f"no model is set for the role {visit.access.role!r}; give it one with [models.{visit.access.role}]."
            )
        return model

    def redacted(self, text: str) -> str:
        """Return a text without secrets, fit for a box."""
        return self._redact.text(text)

    def forget(self, door: UnixDoor) -> None:
        """Take note that a door is closed."""
        self._doors.discard(door)

    async def durable(self) -> None:
        """Return once all that was written so far is on disk."""
        await self._committer.durable()

    def estimate(self, visit: OpenVisit, client: Dialect, body: Mapping[str, Any]) -> int:
        """Return the most input tokens that a request can take. Free: nothing is asked of anybody."""
        _, _, pinned = self._pinned(visit, client, {"max_tokens": 1, **body})
        return bound_of(pinned, 0, None).tokens_in

    async def answer(
        self, visit: OpenVisit, client: Dialect, body: Mapping[str, Any], live: Live | None = None
    ) -> Mapping[str, Any]:
        """Answer one call with a whole reply in the client's dialect, durable before this returns.

        A reply that streams from a provider of the same dialect goes to `live` event by event while it arrives.
        Raises `Refusal`; the visit knows by then whether it is void or exhausted.
        """
        asked = self._prepare(visit, client, body)
        forward = live if live is not None and client.name == asked.dialect.name else None
        with visit.pending():
            try:
                async with self._flights.alone(*asked.names):
                    reply = await self._allowed(asked, forward)
            except Refusal as refusal:
                visit.failed(asked.entry, str(refusal))
                raise
            except asyncio.CancelledError:
                visit.failed(asked.entry, CUT)
                raise
            except Exception as error:
                # The store or our own code failed: the program must not be scored on it, and the run must hear of it.
                message = self.redacted(f"the gateway failed: {type(error).__name__}: {error}")
                visit.failed(asked.entry, message)
                raise self._fault(visit, message) from error
        visit.answered(asked.entry, asked.dialect.text(reply.body), asked.dialect.finish(reply.body))
        if client.name == asked.dialect.name:
            return reply.body
        try:
            return translate_reply(reply.body, asked.dialect, client)
        except BadRequest as error:
            raise Refusal(400, "invalid_request", self.redacted(str(error))) from error

    def _pinned(
        self, visit: OpenVisit, client: Dialect, body: Mapping[str, Any]
    ) -> tuple[RoleModel, Dialect, dict[str, Any]]:
        try:
            model = self.model_of(visit.visit)
        except InfrastructureError as error:
            raise self._fault(visit, str(error)) from error
        dialect = OPENAI if isinstance(model.backend, Model) else DIALECTS[model.backend.dialect]
        try:
            if client.name != dialect.name:
                body = translate_request(body, client, dialect)
            pinned = dialect.pinned(body, model.pin)
            if isinstance(model.backend, Provider):
                # Our own extensions: a provider would turn the whole request down.
                pinned = {key: value for key, value in pinned.items() if key not in EXTENSIONS}
        except BadRequest as error:
            raise Refusal(400, "invalid_request", self.redacted(str(error))) from error
        return model, dialect, {key: value for key, value in pinned.items() if key not in UNSENT}

    def _prepare(self, visit: OpenVisit, client: Dialect, body: Mapping[str, Any]) -> Asked:
        if visit.refusals >= MAX_REFUSALS:
            raise Refusal(403, "allowance", "too many calls of this visit were refused; no more are looked at.")
        model, dialect, pinned = self._pinned(visit, client, body)
        access = visit.visit.access
        price = price_for(model, pinned)
        bound = bound_of(pinned, dialect.max_tokens(pinned), price)
        request = digest_of([dialect.name, pinned])
        call = Call(
            role=access.role,
            plan=access.plan,
            candidate=access.candidate,
            scope=visit.visit.scope,
            request=request,
            occurrence=visit.occurrence(request),
            model=model.pin.model,
            body=self._redact.value(pinned),
            instance=visit.visit.instance,
            share=share_of(model, visit.visit),
            bound=bound.tokens,
            bound_micro_usd=bound.micro_usd,
        )
        prompt = dialect.prompt(pinned)
        entry = visit.started(access.role, model.pin.model, self.redacted(prompt))
        return Asked(visit, model, dialect, pinned, call, bound, prompt, entry, price)

    async def _allowed(self, asked: Asked, live: Live | None) -> CallReply:
        visit = asked.visit
        self._passable(visit)
        short = await self._turnstile.enter(visit.own, asked.bound)
        if short is not None:
            message = (
                f"the allowance of {short} does not cover this call"
                + (f", which may take up to {asked.bound.tokens} tokens" if short == "tokens" else "")
                + f": it is models.{asked.call.role}.{short}_per_trial = {getattr(visit.own.caps, short)}. "
                "Ask less, or less often"
            )
            visit.exhaust(message)
            raise Refusal(403, "allowance", message)
        try:
            self._passable(visit)
            reply = await self._reply(asked, live)
            asked.used = asked.costing(reply.tokens_in, reply.tokens_out)
        except asyncio.CancelledError:
            # How far it had come is a matter of time; what it counts for must not be.
            asked.used = asked.bound.spend
            raise
        finally:
            self._turnstile.leave(visit.own, asked.bound, asked.used)
            if asked.used.calls:
                visit.used(asked.entry, len(asked.prompt), asked.used)
        return reply

    def _passable(self, visit: OpenVisit) -> None:
        """Turn a call down that could change nothing any more."""
        if self.fatal is not None:
            visit.spoil(str(self.fatal))
        if visit.void:
            raise Refusal(503, "unavailable", f"an earlier call of this visit failed: {visit.void}")

    async def _reply(self, asked: Asked, live: Live | None) -> CallReply:
        call = asked.call
        known = self._store.find_reply(call.scope, call.request, call.occurrence)
        if known is not None:
            return known
        if self._replay is not None:
            return self._replayed(self._replay, asked)
        if call.share:
            shared = self._store.find_shared(call.share, call.request, call.occurrence)
            if shared is not None:
                return self._noted(call, replace(shared, source="cache"))
        return await self._paid(asked, live)

    def _replayed(self, replay: Replay, asked: Asked) -> CallReply:
        try:
            found = replay.find(asked.call)
        except ReplayMiss as miss:
            if self.fatal is None:
                self.fatal = miss
            raise self._fault(asked.visit, str(miss)) from miss
        reply = self._noted(asked.call, replace(found, source="record"))
        if reply.status == "refused":
            raise Refusal(400, "invalid_request", reply.message)
        if reply.status == "failed" and reply.message.startswith(CUT):
            asked.used = asked.bound.spend
            raise Refusal(503, "unavailable", reply.message)
        if reply.status == "failed":
            raise self._fault(asked.visit, f"the recorded call had failed: {reply.message}")
        return reply

    def _noted(self, call: Call, reply: CallReply) -> CallReply:
        """Record a reply that nobody pays for again; it becomes durable with the end of the visit."""
        free = replace(reply, spend=Spend(), attempts=0, uncertain=0, wall_ms=0)
        self._store.add_reply(self._store.add_call(call), free)
        return free

    async def _paid(self, asked: Asked, live: Live | None) -> CallReply:
        account = self._accounts(asked.call.role, asked.call.plan)
        short = await self._turnstile.enter(account, asked.bound)
        if short is not None:
            message = f"the cap of {short} is reached: " + (
                f"no call of the role {asked.call.role!r} is left."
                if short == "calls"
                else f"the next call of the role {asked.call.role!r} may take up to {asked.bound.tokens} tokens, and less "
                "is left."
            )
            asked.visit.spoil(message, short)
            raise Refusal(503, "unavailable", message)
        stake = Stake(self._turnstile, account, asked.bound)
        number: int | None = None
        reply = CallReply("failed", attempts=0, message="the call could not be made")
        began = time.monotonic()
        try:
            self._passable(asked.visit)
            number = self._store.add_call(asked.call)
            await self._committer.durable()
            stake.sent = True
            reply = await self._ask(asked, stake, live)
        except asyncio.CancelledError:
            lost = stake.holds if stake.sent else 0
            reply = CallReply("failed", spend=_if_billed(lost), attempts=lost, uncertain=lost, message=CUT)
            raise
        finally:
            reply = replace(reply, wall_ms=round((time.monotonic() - began) * 1000))
            try:
                if number is not None:
                    self._store.add_reply(number, reply)
            finally:
                stake.settle(asked.call.cost(reply))
        await self._committer.durable()
        if reply.status == "refused":
            raise Refusal(400, "invalid_request", reply.message)
        if reply.status == "failed":
            raise self._fault(asked.visit, reply.message)
        return reply

    async def _ask(self, asked: Asked, stake: Stake, live: Live | None) -> CallReply:
        """Ask the backend and return what is to be recorded, whatever it is."""
        dialect, name = asked.dialect, asked.call.model
        attempts = uncertain = 1
        try:
            backend = asked.model.backend
            if isinstance(backend, Model):
                # The time of those before it in the queue is not a model's slowness.
                async with (
                    self._turns.setdefault(id(backend), asyncio.Lock())
                    if getattr(backend, "serial", False)
                    else nullcontext()
                ):
                    body = await asyncio.wait_for(backend.complete(asked.body), asked.model.timeout_s)
                uncertain = 0
            else:
                body, attempts, uncertain = await self._send(backend, asked, stake, live)
            fault = dialect.fault(body)
            if not fault:
                return self._counted(asked, body, attempts, uncertain)
            message = f"{name} gave a reply that cannot be used: {fault}"
            uncertain += 1
        except UpstreamFailed as error:
            if self._malformed(asked, error):
                return CallReply(
                    "refused",
                    spend=_if_billed(error.uncertain),
                    attempts=error.attempts,
                    uncertain=error.uncertain,
                    message=self.redacted(str(error)),
                )
            message, attempts, uncertain = str(error), error.attempts, error.uncertain
        except TimeoutError:
            message = f"{name} gave no reply within {asked.model.timeout_s:g} s"
        except InfrastructureError as error:
            message, uncertain = f"{name}: {error}", 0
        except Exception as error:
            # A model in this process may raise anything; that is an outage, never the program's doing.
            message = f"{name}: {type(error).__name__}: {error}"
        return CallReply(
            "failed",
            spend=_if_billed(uncertain),
            attempts=attempts,
            uncertain=uncertain,
            message=self.redacted(message),
        )

    async def _send(
        self, provider: Provider, asked: Asked, stake: Stake, live: Live | None
    ) -> tuple[Mapping[str, Any], int, int]:
        if self._upstream is None:
            raise InfrastructureError(f"there is no way to the provider {provider.name}")

        screen = None if live is None else Screen(self._redact, live.put)
        reply = await self._upstream.send(
            provider,
            asked.body,
            timeout_s=asked.model.timeout_s,
            retries=asked.model.retries,
            on_event=None if screen is None else screen.put,
            again=stake.again,
        )
        return reply.body, reply.attempts, reply.uncertain

    def _counted(self, asked: Asked, body: Mapping[str, Any], attempts: int, uncertain: int) -> CallReply:
        dialect = asked.dialect
        self._accepted.add(asked.call.role)
        usage = usage_of(dialect.usage(body), asked.bound, asked.prompt, dialect.text(body))
        return CallReply(
            "ok",
            body=self._redact.value(body),
            tokens_in=usage.tokens_in,
            tokens_out=usage.tokens_out,
            spend=asked.costing(usage.tokens_in, usage.tokens_out),
            usage=usage.source,
            attempts=attempts,
            uncertain=uncertain,
        )

    def _malformed(self, asked: Asked, error: UpstreamFailed) -> bool:
        """Say whether the upstream turned down what the program wrote, rather than what we pinned.

        It did if it has answered other calls of this role: then model, key and pinned parameters are right. A model in this
        process without pinned extras is given nothing of ours that could be wrong.
        """
        if error.status not in (400, 413, 422):
            return False
        if isinstance(asked.model.backend, Model) and not asked.model.pin.extra:
            return True
        role = asked.call.role
        if role not in self._accepted:
            calls = self._store.calls()
            if any(c.role == role and c.model == asked.call.model and r and r.status == "ok" for _, c, r in calls):
                self._accepted.add(role)
        return role in self._accepted

    def _fault(self, visit: OpenVisit, message: str) -> Refusal:
        """Make the visit void, tell the observers, and return the refusal for the program."""
        visit.spoil(message)
        access = visit.visit.access
        data = {"message": message, "role": access.role, "plan": access.plan, "candidate": access.candidate}
        self._observe(Event("infra", data))
        return Refusal(503, "unavailable", message)


def _if_billed(uncertain: int) -> Spend:
    """Count a call without a reply if it may have been billed; `Call.cost` adds the tokens and the money."""
    return Spend(calls=1 if uncertain else 0)
