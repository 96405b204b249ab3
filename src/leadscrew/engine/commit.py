"""Group commit: everything written within a short while becomes durable together."""

from __future__ import annotations

import asyncio
import time

from leadscrew.ports import Store

FAST_S = 0.001
"""A commit that takes less than this is made at the end of the current turn of the event loop."""
SHARE = 4
MOST_S = 0.05


class Committer:
    """Lets many tasks wait for durability while the store commits once for all of them.

    Where the disk is slow, a commit waits for `SHARE` times as long as the last one took (50 ms at most), so that more work
    shares it and boxes are not kept idle by it. Nothing is acted on before it is durable either way.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: asyncio.Future[None] | None = None
        self._took = 0.0

    async def durable(self) -> None:
        """Return once everything written before this call is on disk; raises what the commit raises."""
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            if self._took < FAST_S:
                loop.call_soon(self._commit)
            else:
                loop.call_later(min(MOST_S, SHARE * self._took), self._commit)
        # Shielded: one waiter that is cancelled must not take the commit away from the others.
        await asyncio.shield(self._waiting)

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        began = time.monotonic()
        try:
            self._store.commit()
        except Exception as error:
            waiting.set_exception(error)
            waiting.exception()
        else:
            # Smoothed, so that one slow write does not slow down the next ones.
            self._took = (self._took + time.monotonic() - began) / 2
            waiting.set_result(None)
