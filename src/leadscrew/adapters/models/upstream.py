"""The way to a provider: one HTTP client with time limits, retries, and a circuit breaker for each provider."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leadscrew.adapters.models.dialects import ANTHROPIC, OPENAI, Dialect
from leadscrew.adapters.models.dialects.sse import Splitter
from leadscrew.adapters.models.providers import Provider

if TYPE_CHECKING:
    import aiohttp

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""Statuses after which the same request may succeed."""
REFUSED_UNREAD = frozenset({408, 409, 425, 429, 503, 529})
"""Statuses that say the request was not worked on, so that nothing was billed."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
BREAK_AFTER = 5
BREAK_S = 30.0
AT_ONCE = 64
CONNECT_S = 15.0
REPLY_BYTES = 64 << 20
_HINTS = {
    401: "The key was not accepted: look at the variable {key}.",
    403: "The key in {key} may not use this model.",
    404: "The model, or the address, is not known there.",
    400: "The request was not accepted.",
    413: "The request is too long.",
    422: "The request was not accepted.",
}


class UpstreamFailed(Exception):
    """A call got no usable reply. `attempts` were made, `uncertain` of them may have been billed; `status` is the last HTTP
    status, None if there was none."""

    def __init__(self, message: str, *, attempts: int = 1, uncertain: int = 0, status: int | None = None) -> None:
        super().__init__(message)
        self.attempts, self.uncertain, self.status = attempts, uncertain, status


@dataclass(frozen=True, slots=True)
class UpstreamReply:
    """A whole reply in the provider's dialect, after so many attempts, of which `uncertain` failed ones may be billed."""

    body: Mapping[str, Any]
    attempts: int
    uncertain: int


class _Attempt(Exception):
    """One attempt that failed. `sent`: it may have been worked on. `pause_s`: what the provider asked to wait."""

    def __init__(
        self, message: str, *, sent: bool, again: bool, status: int | None = None, pause_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.sent, self.again, self.status, self.pause_s = sent, again, status, pause_s


@dataclass(slots=True)
class _Breaker:
    """Failed calls in a row of one provider; once open, nothing is sent until it is time to try one call."""

    failed: int = 0
    open_until: float = 0.0
    probing: bool = False
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def closed(self, now: float) -> bool:
        """Whether a call may go out now; of several that come when the time is up, one."""
        if self.failed < BREAK_AFTER:
            return True
        if now < self.open_until or self.probing:
            return False
        self.probing = True
        return True

    def ended(self, ok: bool, now: float) -> None:
        """Take note of how a call ended."""
        self.probing = False
        self.failed = 0 if ok else self.failed + 1
        if self.failed >= BREAK_AFTER:
            self.open_until = now + BREAK_S


OnEvent = Callable[[bytes], None]


class Upstream:
    """Sends requests to providers. Proxies of the environment are used as by every client; redirects are never followed,
    since they would carry the key elsewhere.

    `environ` holds the keys. `sleep`, `clock` and `rng` are there for tests.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._sleep, self._clock = sleep, clock
        self._rng = rng or random.Random()
        self._session: aiohttp.ClientSession | None = None
        self._breakers: dict[str, _Breaker] = {}

    async def send(
        self,
        provider: Provider,
        body: Mapping[str, Any],
        *,
        timeout_s: float,
        retries: int,
        on_event: OnEvent | None = None,
        again: Callable[[], bool] = lambda: True,
    ) -> UpstreamReply:
        """Return the whole reply to a request in the provider's dialect; raises `UpstreamFailed`.

        An attempt has `timeout_s` seconds. With `on_event` the reply is asked for as a stream and each event block is handed
        on while it arrives; after the first one nothing is tried again. Before another attempt that may be billed beside
        the last, `again` is asked whether there is money for it.
        """
        breaker = self._breakers.setdefault(provider.base_url, _Breaker())
        if not breaker.closed(self._clock()):
            raise UpstreamFailed(
                f"{provider.name} failed {breaker.failed} calls in a row and is left alone for "
                f"{max(breaker.open_until - self._clock(), 0):.0f} s.",
                attempts=0,
            )
        ended = False
        try:
            async with breaker.room:
                reply = await self._attempts(provider, body, timeout_s, retries, on_event, again)
            ended = True
            breaker.ended(True, self._clock())
            return reply
        except UpstreamFailed as error:
            ended = True
            # A request that was turned down says that the provider is up.
            breaker.ended(error.status is not None and error.status not in AGAIN, self._clock())
            raise
        finally:
            if not ended:
                breaker.probing = False

    async def _attempts(
        self,
        provider: Provider,
        body: Mapping[str, Any],
        timeout_s: float,
        retries: int,
        on_event: OnEvent | None,
        again: Callable[[], bool],
    ) -> UpstreamReply:
        uncertain = 0
        told = False

        def tell(event: bytes) -> None:
            nonlocal told
            told = True
            assert on_event is not None
            on_event(event)

        for attempt in range(1, retries + 2):
            try:
                reply = await self._once(provider, body, timeout_s, tell if on_event is not None else None)
                return UpstreamReply(reply, attempt, uncertain)
            except _Attempt as error:
                uncertain += error.sent
                last = error
                if told or not error.again or attempt > retries or (error.sent and not again()):
                    break
                await self._sleep(self._pause(attempt, error.pause_s))
        message = f"{provider.name} at {provider.base_url}: {last}"
        if attempt > 1:
            message += f" ({attempt} attempts)"
        raise UpstreamFailed(message, attempts=attempt, uncertain=uncertain, status=last.status)

    def _pause(self, attempt: int, asked: float | None) -> float:
        """Return the seconds until the next attempt: what the provider asked for, else twice as long each time, from half to
        one and a half times of it, so that many callers do not come back together."""
        if asked is not None:
            return min(max(asked, 0.0), LONGEST_PAUSE_S)
        longest = min(FIRST_PAUSE_S * 2.0 ** (attempt - 1), LONGEST_PAUSE_S)
        return longest * (0.5 + self._rng.random())

    async def _once(
        self, provider: Provider, body: Mapping[str, Any], timeout_s: float, on_event: OnEvent | None
    ) -> Mapping[str, Any]:
        import aiohttp

        dialect = ANTHROPIC if provider.dialect == "anthropic" else OPENAI
        url = f"{provider.base_url}/{'messages' if dialect is ANTHROPIC else 'chat/completions'}"
        if on_event is not None:
            body = {**body, "stream": True}
            if dialect is OPENAI:
                body["stream_options"] = {"include_usage": True}
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_S, timeout_s))
        connected = False
        try:
            async with self._client().post(
                url, json=body, headers=self._headers(provider), timeout=limits, allow_redirects=False
            ) as response:
                connected = True
                if response.status != 200:
                    raise await self._refused(provider, response)
                if on_event is None:
                    return await _whole(response)
                return await _streamed(response, dialect, on_event)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _Attempt(f"no connection ({_reason(error)})", sent=False, again=True) from error
        except TimeoutError as error:
            raise _Attempt(f"no whole reply within {timeout_s:g} s", sent=True, again=True) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            said = "the reply broke off" if connected else "the connection broke"
            raise _Attempt(f"{said} ({_reason(error)})", sent=True, again=True) from error

    async def _refused(self, provider: Provider, response: aiohttp.ClientResponse) -> _Attempt:
        status = response.status
        text = ""
        with contextlib.suppress(Exception):  # the status alone says enough
            text = (await response.content.read(4096)).decode("utf-8", "replace")
        key = self._environ.get(provider.key_env, "") if provider.key_env else ""
        if key:
            text = text.replace(key, f"[redacted:{provider.key_env}]")
        hint = _HINTS.get(status, "").format(key=provider.key_env or "(none is configured)")
        said = " ".join(f"status {status}: {_message_in(text)} {hint}".split())
        return _Attempt(
            said,
            sent=status in AGAIN and status not in REFUSED_UNREAD,
            again=status in AGAIN,
            status=status,
            pause_s=_retry_after(response.headers.get("Retry-After")),
        )

    def _headers(self, provider: Provider) -> dict[str, str]:
        headers = {"User-Agent": "leadscrew"}
        key = self._environ.get(provider.key_env, "") if provider.key_env else ""
        if provider.dialect == "anthropic":
            headers["anthropic-version"] = "2023-06-01"
            if key:
                headers["x-api-key"] = key
        elif key:
            headers["Authorization"] = f"Bearer {key}"
        return headers

    def _client(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _whole(response: aiohttp.ClientResponse) -> Mapping[str, Any]:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > REPLY_BYTES:
            raise _Attempt(f"the reply is longer than {REPLY_BYTES >> 20} MiB", sent=True, again=False)
    try:
        value = json.loads(bytes(data))
    except ValueError as error:
        raise _Attempt(f"the reply is no whole JSON: {error}", sent=True, again=True) from error
    if not isinstance(value, dict):
        raise _Attempt("the reply is no JSON object", sent=True, again=True)
    return value


async def _streamed(response: aiohttp.ClientResponse, dialect: Dialect, on_event: OnEvent) -> Mapping[str, Any]:
    if "json" in response.content_type:
        # A server that does not stream answers in one piece.
        return await _whole(response)
    splitter, gatherer = Splitter(), dialect.gather()
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > REPLY_BYTES:
            raise _Attempt(f"the reply is longer than {REPLY_BYTES >> 20} MiB", sent=True, again=False)
        for event in splitter.feed(chunk):
            gatherer.feed(event)
            on_event(event)
    for event in splitter.close():
        gatherer.feed(event)
        on_event(event)
    if not gatherer.ended:
        raise _Attempt("the stream ended before its end marker", sent=True, again=True)
    return gatherer.reply()


def _message_in(text: str) -> str:
    """Return what an error body says, in one of the forms that providers use."""
    try:
        value = json.loads(text)
    except ValueError:
        return text[:300]
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:300]


def _retry_after(value: str | None) -> float | None:
    """Return seconds from a Retry-After header, which holds seconds or a date."""
    if not value:
        return None
    with contextlib.suppress(ValueError):
        return float(value)
    with contextlib.suppress(TypeError, ValueError):
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    return None


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", None) or error.__cause__ or error
    return str(inner) or type(error).__name__
