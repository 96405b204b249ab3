"""Two ways in which model calls wait for one another: for room under a cap, and for an equal call in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from leadscrew.core.budget import Account, Resource, Spend


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one attempt of a call can use. `micro_usd` is None when the price is unknown.

    >>> Bound(10, 5).tokens
    15
    """

    tokens_in: int
    tokens_out: int
    micro_usd: int | None = 0

    @property
    def tokens(self) -> int:
        """Tokens in and out together."""
        return self.tokens_in + self.tokens_out

    @property
    def spend(self) -> Spend:
        """One call of the whole bound."""
        return Spend(calls=1, tokens_in=self.tokens_in, tokens_out=self.tokens_out, micro_usd=self.micro_usd)


class Turnstile:
    """Reservations that wait until others are settled, so that a cap is never passed and can yet be reached.

    A call that would fit if nothing were held waits; one that would not is refused at once. Everybody who waits is asked
    again, in order, at every settlement.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def enter(self, account: Account, bound: Bound) -> Resource | None:
        """Hold `bound` on `account` and all above, waiting as long as others hold the room; or name what is short."""
        while True:
            short = self.try_enter(account, bound)
            if short is None or hopeless(account, bound) is not None:
                return short
            settled = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await settled

    def try_enter(self, account: Account, bound: Bound, *, calls: int = 1) -> Resource | None:
        """Hold `bound` if there is room now; or name what is short. Waits for nobody."""
        if bound.micro_usd is None and _has_money_cap(account):
            return "usd"
        return account.reserve(calls=calls, tokens=bound.tokens, micro_usd=bound.micro_usd or 0)

    def leave(self, account: Account, bound: Bound, actual: Spend, *, holds: int = 1) -> None:
        """Replace what is held for one call (`holds` times its bound) by what was used; those who wait try again."""
        account.settle(actual, calls=1, tokens=holds * bound.tokens, micro_usd=holds * (bound.micro_usd or 0))
        waiting, self._waiting = self._waiting, []
        for settled in waiting:
            if not settled.done():
                settled.set_result(None)


def hopeless(account: Account, bound: Bound) -> Resource | None:
    """Name what is short even if nobody held anything, or return None if waiting helps.

    >>> from leadscrew.core.budget import Caps
    >>> hopeless(Account(Caps(tokens=10)), Bound(8, 3)), hopeless(Account(Caps(tokens=10)), Bound(8, 2))
    ('tokens', None)
    """
    if bound.micro_usd is None and _has_money_cap(account):
        return "usd"
    scope: Account | None = account
    while scope is not None:
        alone = Account(scope.caps)
        alone.spent = scope.spent
        short = alone.reserve(calls=1, tokens=bound.tokens, micro_usd=bound.micro_usd or 0)
        if short is not None:
            return short
        scope = scope.parent
    return None


def _has_money_cap(account: Account) -> bool:
    scope: Account | None = account
    while scope is not None:
        if scope.caps.usd is not None:
            return True
        scope = scope.parent
    return False


class Flights:
    """Locks by name: of equal calls one is in flight, the others wait and then find its reply.

    Whoever wants several names takes them in one fixed order of kinds; so nobody waits in a circle.
    """

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def alone(self, *names: Hashable) -> AsyncIterator[None]:
        """Be the only one under each of `names` for the length of the block."""
        taken: list[Hashable] = []
        known: list[Hashable] = []
        try:
            for name in names:
                lock, users = self._locks.get(name, (None, 0))
                lock = lock or asyncio.Lock()
                self._locks[name] = (lock, users + 1)
                known.append(name)
                await lock.acquire()
                taken.append(name)
            yield
        finally:
            for name in taken:
                self._locks[name][0].release()
            for name in known:
                lock, users = self._locks[name]
                if users == 1:
                    del self._locks[name]
                else:
                    self._locks[name] = (lock, users - 1)
