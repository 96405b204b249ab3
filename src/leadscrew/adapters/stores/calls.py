"""Model calls in the store: recorded before they are made, found again by what they are, and what everything has cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leadscrew.adapters.stores import codec
from leadscrew.adapters.stores.content import Content
from leadscrew.adapters.stores.database import Database
from leadscrew.adapters.stores.reader import Reader
from leadscrew.core.budget import Spend
from leadscrew.core.call import Call, CallReply

_CALL = """call.id, role, plan, candidate, scope, request, occurrence, model, call.body, instance, share, bound,
  bound_micro_usd"""
_REPLY = """status, source, reply.body, logical_in, logical_out, trials, cpu_ms, wall_ms, calls, tokens_in, tokens_out,
  micro_usd, usage, attempts, uncertain, took_ms, message"""
# In the order of the calls, so that the walk along an index ends at the first ok reply however many calls are equal.
_FIND = f"""SELECT {_REPLY} FROM call JOIN reply ON reply.call = call.id AND status = 'ok'
  WHERE %s = ? AND request = ? AND occurrence = ? ORDER BY call.id LIMIT 1"""
_TRIALS = "SELECT coalesce(sum(trials), 0), coalesce(sum(cpu_ms), 0), coalesce(sum(wall_ms), 0) FROM trial"
# `Call.cost` in SQL: what was paid, and the bound for every attempt that may have been billed without an answer.
_COSTS = """SELECT role, plan, sum(coalesce(trials, 0)), sum(coalesce(cpu_ms, 0)), sum(coalesce(wall_ms, 0)),
  sum(coalesce(calls, 1)), sum(coalesce(tokens_in, 0)), sum(coalesce(tokens_out + uncertain * bound, bound)),
  sum(usd), count(*) - count(usd)
  FROM (SELECT *, CASE WHEN status IS NULL THEN bound_micro_usd WHEN uncertain = 0 THEN micro_usd
    ELSE micro_usd + uncertain * bound_micro_usd END AS usd
    FROM (SELECT call.id, role, plan, bound, bound_micro_usd FROM call) AS asked %s JOIN reply ON reply.call = asked.id)
  GROUP BY role, plan ORDER BY role, plan"""


class Calls(Reader):
    """The model calls of a run, and the sums of all spend."""

    readonly: bool

    def __init__(self, db: Database, content: Content) -> None:
        super().__init__(db, content)
        # The writer's running sums: trials and settled calls, and beside them the calls that have no reply yet.
        self._settled = Spend()
        self._waiting: dict[int, Call] = {}

    def add_call(self, call: Call) -> int:
        """Record a model call that is about to be made; return its number. It must be durable before it is sent."""
        content = self._content
        number = self._db.append(
            "call",
            call.role,
            call.plan,
            content.text_in(call.candidate),
            codec.digest_in(call.scope),
            codec.digest_in(call.request),
            call.occurrence,
            content.text_in(call.model),
            content.text_in(call.instance),
            codec.digest_in(call.share),
            call.bound,
            call.bound_micro_usd,
            content.json_in(call.body),
        )
        self._waiting[number] = call
        return number

    def add_reply(self, number: int, reply: CallReply) -> None:
        """Record what became of a call; raises `ValueError` for a call that is not stored or has its reply already."""
        call = self._waiting.get(number)
        if call is None and not self.readonly:
            raise ValueError(f"call {number} is not stored or has its reply already: a call gets one reply")
        content, spend = self._content, reply.spend
        self._db.append(
            "reply",
            number,
            reply.status,
            reply.source,
            reply.usage,
            reply.attempts,
            reply.uncertain,
            reply.tokens_in,
            reply.tokens_out,
            reply.wall_ms,
            content.text_in(reply.message),
            spend.trials,
            spend.cpu_ms,
            spend.wall_ms,
            spend.calls,
            spend.tokens_in,
            spend.tokens_out,
            spend.micro_usd,
            content.json_in(reply.body),
        )
        del self._waiting[number]
        assert call is not None
        self._settled = self._settled + call.cost(reply)

    def find_reply(self, scope: str, request: str, occurrence: int) -> CallReply | None:
        """Return the ok reply recorded for this very call, that of the first call if there are several."""
        return self._find("scope", scope, request, occurrence)

    def find_shared(self, share: str, request: str, occurrence: int) -> CallReply | None:
        """Return an ok reply that an equal call with the same `share` got, that of the first call if there are several.

        An empty `share` names no calls: nothing is found.
        """
        return self._find("share <> '' AND share", share, request, occurrence) if share else None

    def calls(self, scope: str | None = None) -> Iterator[tuple[int, Call, CallReply | None]]:
        """Yield `(number, call, reply)` in the order of the calls; the reply is None for one that never got any."""
        if not self._has_calls():
            return
        sql = f"SELECT {_CALL}, {_REPLY} FROM call LEFT JOIN reply ON reply.call = call.id"
        where, values = ("", ()) if scope is None else (" WHERE scope = ?", (codec.digest_in(scope),))
        for row in self._db.stream(f"{sql}{where} ORDER BY call.id", values):
            yield row[0], self._call(row[1:13]), None if row[13] is None else self._reply(row[13:])

    def call_spend(self) -> Mapping[tuple[str, int], Spend]:
        """Return what calls have cost by role and plan, in this order; see `Call.cost`."""
        return self._costs("LEFT")

    def spend(self) -> Spend:
        """Return trials and time of all trials, and what the model calls cost.

        A call without a reply counts as one call of its whole bound, also while it is under way. What a trial says of
        calls and tokens is not counted: the same calls are.
        """
        if self.readonly:
            return sum(self.call_spend().values(), self._trial_spend())
        return sum((call.cost(None) for call in self._waiting.values()), self._settled)

    # -- inside --------------------------------------------------------------------------------

    def _start_counting(self) -> None:
        """Let the writer go on from the sums of what is stored."""
        if self._has_calls():
            unanswered = f"SELECT {_CALL} FROM call LEFT JOIN reply ON reply.call = call.id WHERE reply.id IS NULL"
            self._waiting = {row[0]: self._call(row[1:]) for row in self._db.stream(unanswered)}
        self._settled = sum(self._costs("INNER").values(), self._trial_spend())

    def _count_trial(self, spend: Spend) -> None:
        self._settled = self._settled + Spend(spend.trials, spend.cpu_ms, spend.wall_ms)

    def _trial_spend(self) -> Spend:
        return Spend(*self._db.one(_TRIALS))

    def _costs(self, join: str) -> dict[tuple[str, int], Spend]:
        found: dict[tuple[str, int], Spend] = {}
        if self._has_calls():
            for role, plan, *sums, usd, unknown in self._db.stream(_COSTS % join):
                found[role, plan] = Spend(*(*sums, None if unknown else usd))
        return found

    def _has_calls(self) -> bool:
        # A run of the first schema, opened for reading, has no tables of calls.
        return self._db.version >= 2

    def _find(self, column: str, value: str, request: str, occurrence: int) -> CallReply | None:
        if not self._has_calls():
            return None
        row = self._db.one(_FIND % column, (codec.digest_in(value), codec.digest_in(request), occurrence))
        return self._reply(row) if row else None

    def _call(self, row: Any) -> Call:
        role, plan, candidate, scope, request, occurrence, model, body, instance, share, bound, money = row
        content = self._content
        return Call(
            role=role,
            plan=plan,
            candidate=content.text_out(candidate),
            scope=codec.digest_out(scope),
            request=codec.digest_out(request),
            occurrence=occurrence,
            model=content.text_out(model),
            body=content.json_out(body, {}),
            instance=content.text_out(instance),
            share=codec.digest_out(share),
            bound=bound,
            bound_micro_usd=money,
        )

    def _reply(self, row: Any) -> CallReply:
        status, source, body, tokens_in, tokens_out, *spend, usage, attempts, uncertain, took_ms, message = row
        return CallReply(
            status=status,
            source=source,
            body=self._content.json_out(body, {}),
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            spend=Spend(*spend),
            usage=usage,
            attempts=attempts,
            uncertain=uncertain,
            wall_ms=took_ms,
            message=self._content.text_out(message),
        )
