"""What went wrong with one attempt at a call: whether it may have been billed, whether to try again, and what to do."""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Mapping
from typing import Any

AGAIN = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which the same request may succeed."""
UNREAD = frozenset({408, 409, 425, 429, 503, 529})
"""Statuses that say the request was not worked on, so that nothing was billed."""
UNPAID = ("insufficient_quota", "billing_not_active", "billing_error", "spend_limit_reached", "insufficient_balance")
"""What providers call an account that cannot pay, under the status 429 too: waiting does not help."""
SAID = 300
"""Characters of a provider's own text that are passed on."""
_REDIRECT = (
    "It sends callers to another address, which is never followed with a key; write the final address as base_url."
)
_HINTS = {
    400: "The request was not accepted: look at the model's pinned parameters.",
    401: "The key was not accepted: look at the variable {key}.",
    402: "The account cannot pay: look at its billing page.",
    403: "The key in {key} may not use this model.",
    404: "The model, or the address, is not known there: look at its name and at base_url.",
    413: "The request is too long.",
    422: "The request was not accepted: look at the model's pinned parameters.",
}


class Trouble(Exception):
    """One attempt that failed. `sent`: it may have been worked on, and billed. `again`: another attempt may succeed.
    `pause_s`: what the provider asked to wait."""

    def __init__(
        self, message: str, *, sent: bool, again: bool, status: int | None = None, pause_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.sent, self.again, self.status, self.pause_s = sent, again, status, pause_s

    @property
    def facts(self) -> dict[str, Any]:
        """Everything but the message."""
        return {"sent": self.sent, "again": self.again, "status": self.status, "pause_s": self.pause_s}


def of_status(status: int, headers: Mapping[str, str], text: str, key_env: str) -> Trouble:
    """Return what a reply with another status than 200 means. `text` is the beginning of its body.

    >>> print(of_status(401, {}, '{"error": {"message": "no such key"}}', "MY_KEY"))
    status 401: no such key. The key was not accepted: look at the variable MY_KEY.
    """
    unpaid = status == 402 or (status == 429 and any(mark in text.lower() for mark in UNPAID))
    hint = _REDIRECT if 300 <= status < 400 else _HINTS.get(402 if unpaid else status, "")
    hint = hint.format(key=key_env or "(none is named in the configuration)")
    told = message_in(text).rstrip(". ")
    return Trouble(
        " ".join(f"status {status}{': ' + told if told else ''}. {hint}".split()),
        sent=status in AGAIN and status not in UNREAD,
        again=status in AGAIN and not unpaid and headers.get("x-should-retry", "").lower() != "false",
        status=status,
        pause_s=retry_after(headers.get("Retry-After")),
    )


def in_body(value: Mapping[str, Any]) -> Trouble | None:
    """Return the error that a reply or an event with the status 200 is, or None if it is none.

    >>> str(in_body({"error": {"message": "overloaded", "code": 529}})), in_body({"choices": []})
    ('an error in place of a reply: overloaded', None)
    """
    error = value.get("error")
    if not error:
        return None
    code = error.get("code") if isinstance(error, Mapping) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else None
    text = json.dumps(value, default=str)
    unpaid = status == 402 or any(mark in text.lower() for mark in UNPAID)
    again = not unpaid and (status is None or status in AGAIN)
    return Trouble(f"an error in place of a reply: {message_in(text)}", sent=True, again=again, status=status)


def no_object() -> Trouble:
    """Return the trouble with JSON that is no object."""
    return Trouble("the reply is no JSON object", sent=True, again=True)


def message_in(text: str) -> str:
    """Return what an error body says, in one of the forms that providers use, in one short line.

    >>> message_in('{"type": "error", "error": {"type": "x", "message": "too long"}}'), message_in("<p>no</p>")
    ('too long', '<p>no</p>')
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())[:SAID]
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        error = error.get("message") or error
    return " ".join(str(error).split())[:SAID]


def retry_after(value: str | None, now: float | None = None) -> float | None:
    """Return the seconds of a Retry-After header, which holds seconds or a date; never less than 0.

    >>> retry_after("3"), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", now=0.0), retry_after("soon")
    (3.0, 60.0, None)
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
        except (TypeError, ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if not math.isnan(seconds) else None
