"""The way to the model: HTTP over a unix socket or TCP, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import stat
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from coder.dialects import PATHS
from coder.ends import ALLOWANCE_USED_UP, BAD_TASK, MODEL_FAILED, MODEL_REFUSED, SECONDS_USED_UP, End

SOCKET = "/run/leadscrew.sock"
BASES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
DELAYS = (1.0, 4.0)
"""Seconds before the second and third attempt. A gateway retries by itself; these bridge its restart."""
LONGEST_WAIT = 30.0
MOST_BYTES = 32_000_000
SPENT = ("allowance", "exhausted", "budget", "cap_reached", "insufficient_quota", "billing")
"""Words in the kind of an error that say that nothing is left to spend; `allowance` says so in its text too."""


class _Unix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Sends requests of one dialect to one endpoint. Raises `End` for everything that ends the session."""

    def __init__(self, dialect: str, endpoint: str = "", sleep: Callable[[float], object] = time.sleep) -> None:
        self._dialect = dialect
        self._endpoint = endpoint or _endpoint(dialect)
        self._sleep = sleep
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        key = os.environ.get(KEYS[dialect], "")
        if dialect == "anthropic":
            self._headers |= {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})
        elif key:
            self._headers["authorization"] = f"Bearer {key}"

    def complete(self, body: Mapping[str, Any], seconds: float) -> object:
        """Return the decoded reply to one request, which may take so long in all."""
        data = json.dumps(body).encode("ascii")
        until = time.monotonic() + seconds
        trouble = ""
        for delay in (*DELAYS, None):
            try:
                status, headers, answer = self._post(data, until)
            except TimeoutError:
                raise End(SECONDS_USED_UP, f"the model did not answer within {seconds:.0f} s") from None
            except (OSError, http.client.HTTPException) as error:
                trouble, wait, again = f"{type(error).__name__}: {error}", delay, True
            else:
                if status == 200:
                    return _decoded(answer)
                trouble, spent = _trouble(status, answer)
                if spent:
                    raise End(ALLOWANCE_USED_UP, trouble)
                again = _again(status, headers)
                if not again and status < 500:
                    raise End(MODEL_REFUSED, trouble)
                wait = _wait(headers, delay)
            if not again or wait is None or wait >= until - time.monotonic():
                break
            self._sleep(wait)
        raise End(MODEL_FAILED, trouble)

    def _post(self, data: bytes, until: float) -> tuple[int, Mapping[str, str], bytes]:
        """Send once; return status, headers and body. Raises `TimeoutError` at `until`, `OSError` for other faults."""
        connection, path = self._connection(max(0.1, until - time.monotonic()))
        try:
            connection.request("POST", path, data, self._headers)
            wire = connection.sock
            answer = connection.getresponse()
            pieces: list[bytes] = []
            size = 0
            while True:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                if wire is not None and wire.fileno() >= 0:
                    wire.settimeout(left)
                piece = answer.read1(65536)
                if not piece:
                    break
                size += len(piece)
                if size > MOST_BYTES:
                    raise http.client.HTTPException(f"the reply has more than {MOST_BYTES} bytes")
                pieces.append(piece)
            if answer.length:
                raise http.client.IncompleteRead(b"".join(pieces), answer.length)
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, b"".join(pieces)
        finally:
            connection.close()

    def _connection(self, seconds: float) -> tuple[http.client.HTTPConnection, str]:
        url = urllib.parse.urlsplit(self._endpoint)
        path = PATHS[self._dialect]
        if url.scheme == "unix":
            return _Unix(url.path, seconds), path
        base = url.path.rstrip("/")
        versioned = self._dialect == "openai" or base.endswith("/v1")
        path = base + (path.removeprefix("/v1") if versioned else path)
        if url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(url.hostname or "", url.port, timeout=seconds, context=context), path
        return http.client.HTTPConnection(url.hostname or "", url.port, timeout=seconds), path


def _endpoint(dialect: str) -> str:
    """Return where the model is, from what a box offers."""
    try:
        if stat.S_ISSOCK(os.stat(SOCKET).st_mode):
            return f"unix:{SOCKET}"
    except FileNotFoundError:  # no box, or one with a forwarder only
        return _from_environment(dialect)
    return _from_environment(dialect)


def _from_environment(dialect: str) -> str:
    base = os.environ.get(BASES[dialect], "")
    if not base.startswith(("http://", "https://")):
        raise End(
            BAD_TASK,
            f"there is no way to a model: neither {SOCKET} nor {BASES[dialect]}, and the task names no 'endpoint'",
        )
    return base


def _decoded(answer: bytes) -> object:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise End(MODEL_FAILED, f"the reply is no JSON: {error}") from None


def _again(status: int, headers: Mapping[str, str]) -> bool:
    """Whether another attempt makes sense. The other side's word (`x-should-retry`) counts most."""
    word = headers.get("x-should-retry", "").lower()
    if word in ("true", "false"):
        return word == "true"
    return status in (408, 409, 425, 429) or status >= 500


def _wait(headers: Mapping[str, str], delay: float | None) -> float | None:
    """Return the seconds to wait, None for no further attempt."""
    if delay is None:
        return None
    try:
        return min(LONGEST_WAIT, max(delay, float(headers.get("retry-after", delay))))
    except ValueError:  # a date instead of seconds
        return delay


def _trouble(status: int, answer: bytes) -> tuple[str, bool]:
    """Return what an error says, and whether it says that nothing is left to spend."""
    text = answer[:2000].decode("utf-8", "replace")
    kinds = ""
    try:
        found = json.loads(answer)
        error = found.get("error", found)
        if isinstance(error, dict):
            kinds = f"{error.get('type', '')} {error.get('code', '')}".lower()
            text = str(error.get("message", text))
        else:
            text = str(error)
    except (ValueError, AttributeError):  # an error page: its beginning says enough
        text = text[:300]
    spent = any(word in kinds for word in SPENT) or "the allowance of" in text
    kind = f" {kinds.strip()}" if kinds.strip() else ""
    return f"HTTP {status}{kind}: {text[:1000]}", spent
