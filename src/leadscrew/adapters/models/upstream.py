"""The way to a provider: one HTTP client with time limits, retries, and a circuit breaker for each provider."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leadscrew.adapters.models.breaker import Breaker
from leadscrew.adapters.models.dialects import DIALECTS, sse
from leadscrew.adapters.models.providers import Provider
from leadscrew.adapters.models.proxies import proxy_for
from leadscrew.adapters.models.redact import SHORTEST, Redactor
from leadscrew.adapters.models.trouble import Trouble, in_body, no_object, of_status

if TYPE_CHECKING:
    import aiohttp

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
"""Pauses between attempts double from the first to the longest; no provider can ask for a longer one either."""
BREAK_AFTER = 5
BREAK_S = 30.0
AT_ONCE = 64
"""Calls to one provider at the same time; others wait for their turn."""
CONNECT_S = 15.0
STALL_S = 60.0
"""How long a stream that has begun may be silent."""
IDLE_S = 4.0
"""How long an unused connection is kept: less than the 5 s after which many servers close it, so that no call runs into that."""
REPLY_BYTES = 64 << 20


class UpstreamFailed(Exception):
    """A call got no usable reply. `attempts` were made, `uncertain` of them may have been billed; `status` is the last HTTP
    status, None if there was none. `retryable`: the same call may succeed later."""

    def __init__(
        self,
        message: str,
        *,
        attempts: int = 1,
        uncertain: int = 0,
        status: int | None = None,
        retryable: bool = True,
    ) -> None:
        super().__init__(message)
        self.attempts, self.uncertain, self.status, self.retryable = attempts, uncertain, status, retryable


@dataclass(frozen=True, slots=True)
class UpstreamReply:
    """A whole reply in the provider's dialect, after so many attempts, of which `uncertain` failed ones may be billed."""

    body: Mapping[str, Any]
    attempts: int
    uncertain: int


OnEvent = Callable[[bytes], Awaitable[None] | None]


@dataclass(slots=True)
class _Line:
    """What belongs to one provider: its breaker, why its last failed call failed, and the bound on calls at the same time."""

    breaker: Breaker = field(default_factory=lambda: Breaker(BREAK_AFTER, BREAK_S))
    why: str = ""
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


class Upstream:
    """Sends requests to providers, over one pool of connections.

    The proxies of the environment are used (`proxies.proxy_for`), nothing else of it: no `.netrc`, no base addresses.
    Redirects are never followed, since they would carry the key elsewhere. `environ` holds the keys and the proxies. `sleep`,
    `clock` (seconds from anywhere) and `rng` (spreads the pauses) are there for tests.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        stall_s: float = STALL_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._stall_s = stall_s
        self._sleep, self._clock = sleep, clock
        self._rng = rng or random.Random()
        self._session: aiohttp.ClientSession | None = None
        self._lines: dict[Provider, _Line] = {}

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
        """Return the whole reply to a request in the provider's dialect; raises `UpstreamFailed`, whose text has no key.

        An attempt has `timeout_s` seconds. With `on_event` the reply is asked for as a stream and each event block is handed
        on while it arrives (and awaited, if there is something to await); after the first one nothing is tried again. Before
        another attempt that may be billed beside the last, `again` is asked whether there is money for it.
        """
        key = self._key(provider)
        line = self._lines.setdefault(provider, _Line())
        async with line.room:
            # Asked only now: who waited for room must not go to a provider that has failed in the meantime.
            way = line.breaker.way(self._clock())
            if way == "wait":
                raise UpstreamFailed(
                    f"{provider.name} failed {line.breaker.failed} calls in a row and is left alone; it is tried again in "
                    f"{line.breaker.left_s(self._clock()):.0f} s. The last failure: {line.why}",
                    attempts=0,
                )
            ok: bool | None = None
            try:
                reply = await self._attempts(provider, key, body, timeout_s, retries, on_event, again)
                ok = True
                return reply
            except UpstreamFailed as error:
                # Whoever turns a request down for what it says is up.
                ok = error.status is not None and not error.retryable
                line.why = str(error)
                raise
            finally:
                line.breaker.ended(way, ok, self._clock())

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- attempts ------------------------------------------------------------------------------

    async def _attempts(
        self,
        provider: Provider,
        key: str,
        body: Mapping[str, Any],
        timeout_s: float,
        retries: int,
        on_event: OnEvent | None,
        again: Callable[[], bool],
    ) -> UpstreamReply:
        uncertain = 0
        told = False

        async def tell(event: bytes) -> None:
            nonlocal told
            told = True
            assert on_event is not None
            waiting = on_event(event)
            if inspect.isawaitable(waiting):
                await waiting

        for attempt in range(1, retries + 2):
            try:
                reply = await self._once(provider, key, body, timeout_s, None if on_event is None else tell)
                return UpstreamReply(reply, attempt, uncertain)
            except Trouble as trouble:
                last = trouble
            uncertain += last.sent
            if told or not last.again or attempt > retries:
                break
            if last.sent and not again():
                last = Trouble(f"{last}; no other attempt can be paid for", **last.facts)
                break
            await self._sleep(self._pause(attempt, last.pause_s))
        message = f"{provider.name} at {provider.base_url}: {last}"
        if attempt > 1:
            message += f" ({attempt} attempts)"
        raise UpstreamFailed(
            _without(key, provider.key_env, message),
            attempts=attempt,
            uncertain=uncertain,
            status=last.status,
            retryable=last.again,
        )

    def _pause(self, attempt: int, asked_s: float | None) -> float:
        """Return the seconds until the next attempt: twice as long each time, from half to one and a half times of it so that
        many callers do not come back together, and what the provider asked for before that."""
        own = min(FIRST_PAUSE_S * 2.0 ** min(attempt - 1, 30), LONGEST_PAUSE_S) * (0.5 + self._rng.random())
        return own if asked_s is None else min(asked_s, LONGEST_PAUSE_S) + FIRST_PAUSE_S * self._rng.random()

    async def _once(
        self, provider: Provider, key: str, body: Mapping[str, Any], timeout_s: float, on_event: OnEvent | None
    ) -> Mapping[str, Any]:
        import aiohttp

        if on_event is not None:
            more = {"stream_options": {"include_usage": True}} if provider.dialect == "openai" else {}
            body = {**body, "stream": True, **more}
        headers = {"User-Agent": "leadscrew", **provider.headers(key)}
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_S, timeout_s))
        begun = False
        try:
            proxy, proxy_headers = proxy_for(provider.endpoint, self._environ)
            async with self._client().post(
                provider.endpoint,
                json=body,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
                proxy=proxy,
                proxy_headers=proxy_headers,
            ) as response:
                begun = True
                if response.status != 200:
                    raise of_status(response.status, response.headers, await _start_of(response), provider.key_env)
                if on_event is None or "json" in response.content_type:
                    # A server that does not stream answers in one piece.
                    return await _whole(response)
                return await self._streamed(response, provider, on_event)
        except aiohttp.ClientSSLError as error:
            may_pass = not isinstance(error, aiohttp.ClientConnectorCertificateError)
            raise Trouble(f"no trusted connection ({_reason(error)})", sent=False, again=may_pass) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Trouble(f"no connection ({_reason(error)})", sent=False, again=True) from error
        except TimeoutError as error:
            raise Trouble(f"no whole reply within {timeout_s:g} s", sent=True, again=True) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            said = "the reply broke off" if begun else "the connection broke"
            raise Trouble(f"{said} ({_reason(error)})", sent=True, again=True) from error

    async def _streamed(
        self, response: aiohttp.ClientResponse, provider: Provider, on_event: OnEvent
    ) -> Mapping[str, Any]:
        splitter, gatherer = sse.Splitter(), DIALECTS[provider.dialect].gather()
        size = 0
        more = True
        while more:
            chunk = await self._chunk(response, stalls=size > 0)
            more = bool(chunk)
            size = _grown(size, chunk)
            for event in splitter.feed(chunk) if more else splitter.close():
                if b'"error"' in event:
                    trouble = in_body(sse.payload(event) or {})
                    if trouble is not None:
                        raise trouble
                gatherer.feed(event)
                waiting = on_event(event)
                if inspect.isawaitable(waiting):
                    await waiting
        if not gatherer.ended:
            raise Trouble("the stream ended before its end marker", sent=True, again=True)
        return gatherer.reply()

    async def _chunk(self, response: aiohttp.ClientResponse, *, stalls: bool) -> bytes:
        scope = asyncio.timeout(self._stall_s if stalls else None)
        try:
            async with scope:
                return await response.content.readany()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise Trouble(f"the stream was silent for {self._stall_s:g} s", sent=True, again=True) from error

    # -- what a request needs ------------------------------------------------------------------

    def _key(self, provider: Provider) -> str:
        if not provider.key_env:
            return ""
        key = self._environ.get(provider.key_env, "").strip()
        if not key:
            why = "is not set"
        elif not (key.isascii() and key.isprintable()):
            why = "holds characters that no key has"
        else:
            return key
        raise UpstreamFailed(
            f"{provider.name}: the environment variable {provider.key_env} {why}; set it to the key.",
            attempts=0,
            retryable=False,
        )

    def _client(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None or self._session.closed:
            # `trust_env` would also read .netrc, whose entry for the host takes the place of the key.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=IDLE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


async def _whole(response: aiohttp.ClientResponse) -> Mapping[str, Any]:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        _grown(len(data), b"")
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise Trouble(f"the reply is no whole JSON ({error})", sent=True, again=True) from error
    if not isinstance(value, dict):
        raise no_object()
    trouble = in_body(value)
    if trouble is not None:
        raise trouble
    return value


async def _start_of(response: aiohttp.ClientResponse) -> str:
    """Return the beginning of the body of an error, as far as it comes: its status alone says enough."""
    import aiohttp

    data = bytearray()
    try:
        async with asyncio.timeout(2.0):
            while len(data) < 4096 and (chunk := await response.content.read(4096 - len(data))):
                data += chunk
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        data += f" ({type(error).__name__})".encode()
    return data.decode("utf-8", "replace")


def _grown(size: int, chunk: bytes) -> int:
    size += len(chunk)
    if size > REPLY_BYTES:
        raise Trouble(f"the reply is longer than {REPLY_BYTES >> 20} MiB", sent=True, again=False)
    return size


def _without(key: str, name: str, message: str) -> str:
    message = Redactor({name: key}).text(message)
    # A key too short for the redactor is one of a local server, and yet nobody's business.
    return message.replace(key, f"[redacted:{name}]") if key and len(key) < SHORTEST else message


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", None) or error.__cause__ or error
    return str(inner) or type(error).__name__
