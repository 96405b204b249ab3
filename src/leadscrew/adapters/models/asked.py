"""One call on its way through the gateway: what was asked, what is held for it, and how it can be turned down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from leadscrew.adapters.models.dialects import Dialect
from leadscrew.adapters.models.metering import Priced, RoleModel
from leadscrew.adapters.models.visits import OpenVisit
from leadscrew.adapters.models.waiting import Bound, Turnstile
from leadscrew.core.budget import Account, Spend
from leadscrew.core.call import Call
from leadscrew.core.canonical import digest_of
from leadscrew.ports import Visit

Kind = Literal["invalid_request", "not_found", "too_large", "permission", "allowance", "unavailable"]
"""Why a call is turned down, for the error form of a dialect."""

CUT = "cut off: the visit ended while the call was running"
"""How the message of a call begins that was still running when its visit ended."""


class Refusal(Exception):
    """The answer to a call is an error: its HTTP status, its kind, and a text for the program."""

    def __init__(self, status: int, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Live(Protocol):
    """Where the events of a streamed reply go while they arrive."""

    def put(self, event: bytes) -> None:
        """Pass one event on; never waits for the client."""


@dataclass(slots=True)
class Asked:
    """A call with everything that is known before it is answered. `body` is pinned and in the backend's `dialect`.

    `used` is what the program used of its allowance, whoever pays; it grows from nothing to what the reply took.
    """

    visit: OpenVisit
    model: RoleModel
    dialect: Dialect
    body: Mapping[str, Any]
    call: Call
    bound: Bound
    prompt: str
    entry: dict[str, Any]
    price: Priced | None
    used: Spend = field(default_factory=Spend)

    @property
    def names(self) -> list[tuple[str, ...]]:
        """Under which names only one such call may be in flight."""
        call = self.call
        names: list[tuple[str, ...]] = [("call", call.scope, call.request, str(call.occurrence))]
        if call.share:
            names.append(("share", call.share, call.request, str(call.occurrence)))
        return names

    def costing(self, tokens_in: int, tokens_out: int) -> Spend:
        """Return one call of so many tokens at the price of the role."""
        price = self.price
        money = None if price is None else price.micro_usd(tokens_in, tokens_out)
        return Spend(calls=1, tokens_in=tokens_in, tokens_out=tokens_out, micro_usd=money)


class Stake:
    """What is held on the paying account for one call: the bound of each attempt that may have to be paid."""

    def __init__(self, turnstile: Turnstile, account: Account, bound: Bound) -> None:
        self._turnstile = turnstile
        self._account = account
        self._bound = bound
        self.holds = 1
        self.sent = False

    def again(self) -> bool:
        """Hold room for one more attempt, since the last one may have been billed; False if there is none."""
        if self._turnstile.try_enter(self._account, self._bound, calls=0) is not None:
            return False
        self.holds += 1
        return True

    def settle(self, actual: Spend) -> None:
        """Give everything back that was held, and book what was used."""
        self._turnstile.leave(self._account, self._bound, actual, holds=self.holds)


def share_of(model: RoleModel, visit: Visit) -> str:
    """Return the partition of the cache: role, pin, instance and repeat. Empty: this call shares its reply with nobody.

    Nothing that a program says is in it. A visit without an instance, such as a proposer's, never shares.
    """
    if not model.cache or not visit.instance:
        return ""
    return digest_of([model.pin.role, model.pin.digest, visit.instance, visit.repeat])


class Desk(Protocol):
    """What a door needs of the gateway."""

    async def answer(
        self, visit: OpenVisit, client: Dialect, body: Mapping[str, Any], live: Live | None = None
    ) -> Mapping[str, Any]:
        """Answer a call in the client's dialect; raises `Refusal`."""

    def estimate(self, visit: OpenVisit, client: Dialect, body: Mapping[str, Any]) -> int:
        """Return the most input tokens of a request; raises `Refusal`."""

    def model_of(self, visit: Visit) -> RoleModel:
        """Return the model behind a visit."""

    async def durable(self) -> None:
        """Return once all that was written so far is on disk."""

    def forget(self, door: Any) -> None:
        """Take note that a door is closed."""
