"""Group commit: everything written within a short while becomes durable together."""

from __future__ import annotations

import asyncio

from leadscrew.ports import Store

PATIENCE_S = 0.05


class Committer:
    """Lets many tasks wait for durability while the store commits once for all of them.

    A commit blocks the event loop for as long as the disk takes, and boxes idle meanwhile. Trials that stream in are
    therefore patient: they wait up to 50 ms for others to share their commit, or for anybody who is not patient.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: asyncio.Future[None] | None = None
        self._handle: asyncio.Handle | None = None
        self._patient = False

    async def durable(self, *, patient: bool = False) -> None:
        """Return once everything written before this call is on disk; raises what the commit raises."""
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            self._patient = patient
            self._handle = loop.call_later(PATIENCE_S, self._commit) if patient else loop.call_soon(self._commit)
        elif not patient:
            self.hurry()
        # Shielded: one waiter that is cancelled must not take the commit away from the others.
        await asyncio.shield(self._waiting)

    def hurry(self) -> None:
        """Commit at the end of the current turn what patient tasks wait for."""
        if self._waiting is not None and self._patient and self._handle is not None:
            self._handle.cancel()
            self._patient = False
            self._handle = asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        waiting, self._waiting, self._handle = self._waiting, None, None
        assert waiting is not None
        try:
            self._store.commit()
        except Exception as error:
            waiting.set_exception(error)
            waiting.exception()
        else:
            waiting.set_result(None)
