"""A circuit breaker: who fails again and again is left alone for a while, and then tried by one call."""

from __future__ import annotations

from typing import Literal

Way = Literal["go", "probe", "wait"]
"""`probe`: go, and be the one call that shows whether the provider is back."""


class Breaker:
    """Counts failed calls in a row; after `limit` of them nobody goes for `rest_s` seconds, and then one call at a time.

    >>> breaker = Breaker(limit=1, rest_s=30.0)
    >>> way = breaker.way(0.0)
    >>> breaker.ended(way, False, 0.0)
    >>> breaker.way(10.0), breaker.way(30.0), breaker.way(30.0)
    ('wait', 'probe', 'wait')
    >>> breaker.ended("probe", True, 31.0)
    >>> breaker.way(31.0)
    'go'
    """

    def __init__(self, limit: int, rest_s: float) -> None:
        self.failed = 0
        """Failed calls in a row."""
        self._limit, self._rest_s = limit, rest_s
        self._until: float | None = None
        self._probing = False

    def way(self, now: float) -> Way:
        """Say what a call may do that comes now. Whoever goes must tell with `ended` how it went."""
        if self._until is None:
            return "go"
        if self._probing or now < self._until:
            return "wait"
        self._probing = True
        return "probe"

    def left_s(self, now: float) -> float:
        """Return the seconds until the next probe may go."""
        return 0.0 if self._until is None else max(self._until - now, 0.0)

    def ended(self, way: Way, ok: bool | None, now: float) -> None:
        """Take note of how a call ended that went this `way`; None if it was cut off before anybody could know."""
        if way == "probe":
            self._probing = False
        if ok:
            self.failed, self._until = 0, None
        elif ok is not None:
            self.failed += 1
            # A call that had started before the others failed does not make the rest longer.
            if way == "probe" or (self._until is None and self.failed >= self._limit):
                self._until = now + self._rest_s
