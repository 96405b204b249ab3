"""Group commit: everything written in one turn of the event loop becomes durable together."""

from __future__ import annotations

import asyncio

from leadscrew.ports import Store


class Committer:
    """Lets many tasks wait for durability while the store commits once for all of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: asyncio.Future[None] | None = None

    async def durable(self) -> None:
        """Return once everything written before this call is on disk; raises what the commit raises."""
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            loop.call_soon(self._commit)
        # Shielded: one waiter that is cancelled must not take the commit away from the others.
        await asyncio.shield(self._waiting)

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        try:
            self._store.commit()
        except Exception as error:
            waiting.set_exception(error)
            waiting.exception()
        else:
            waiting.set_result(None)
