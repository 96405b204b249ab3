"""How many tokens a call can take at most, and whether the upstream's own figures can be believed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from leadscrew.adapters.models.providers import Provider
from leadscrew.adapters.models.waiting import Bound
from leadscrew.core.call import Pin
from leadscrew.core.canonical import canonical_json
from leadscrew.ports import Model

FRAME_TOKENS = 256
"""What a chat template may add to a request, a system prompt of its own say, beyond one token per byte of its JSON."""
TOOLS_TOKENS = 1024
"""What a provider may add once to a request with tools."""
PICTURE_TOKENS = 4096
"""What a picture may take however few bytes it has."""
CHARS_PER_TOKEN = 100
"""No honest tokenizer packs more characters than this into the average token of a text."""

_PICTURES = frozenset({"image", "image_url", "input_image", "document", "input_audio", "file"})


class Priced(Protocol):
    """The price of a model."""

    def micro_usd(self, tokens_in: int, tokens_out: int) -> int:
        """Return what so many tokens cost, in millionths of a US dollar, rounded up."""

    @property
    def caching(self) -> Priced:
        """The price of requests that ask for the provider's cache."""


@dataclass(frozen=True, slots=True)
class RoleModel:
    """The model of a role, ready to be called. `backend` is a model in this process or a provider that `upstream` reaches.

    `cache` lets equal calls of different programs on one instance share a reply. Without a `price` money stays unknown.
    """

    pin: Pin
    backend: Model | Provider
    timeout_s: float = 120.0
    retries: int = 5
    cache: bool = True
    price: Priced | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply as they are counted, and how far the upstream's figures could be believed."""

    tokens_in: int
    tokens_out: int
    source: Literal["reported", "missing", "implausible"]


def bound_of(body: Mapping[str, Any], max_tokens: int, price: Priced | None) -> Bound:
    """Return the most that one attempt at a request can use: a token has at least one byte, a reply at most `max_tokens`.

    >>> bound_of({"messages": []}, 10, None)
    Bound(tokens_in=271, tokens_out=10, micro_usd=None)
    """
    tokens_in = len(canonical_json(body)) + FRAME_TOKENS + PICTURE_TOKENS * sum(1 for _ in _pictures(body))
    if body.get("tools"):
        tokens_in += TOOLS_TOKENS
    return Bound(tokens_in, max_tokens, None if price is None else price.micro_usd(tokens_in, max_tokens))


def price_for(model: RoleModel, body: Mapping[str, Any]) -> Priced | None:
    """Return the price of a request: dearer where it asks the provider to keep its prompt."""
    if model.price is not None and b'"cache_control"' in canonical_json(body):
        return model.price.caching
    return model.price


def usage_of(reported: tuple[int | None, int | None], bound: Bound, prompt: str, response: str) -> Usage:
    """Return the figures that count. Missing ones, more than the bound, and far too few for the text become the bound.

    >>> usage_of((12, 3), Bound(80, 10), "What is 2 + 2?", "4")
    Usage(tokens_in=12, tokens_out=3, source='reported')
    >>> usage_of((1, 0), Bound(4000, 10), "word " * 700, "four").source
    'implausible'
    """
    tokens_in, tokens_out = reported
    if tokens_in is None or tokens_out is None:
        return Usage(bound.tokens_in, bound.tokens_out, "missing")
    low_in, low_out = _fewest(prompt), _fewest(response)
    if not (low_in <= tokens_in <= bound.tokens_in and low_out <= tokens_out <= bound.tokens_out):
        return Usage(bound.tokens_in, bound.tokens_out, "implausible")
    return Usage(tokens_in, tokens_out, "reported")


def _fewest(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def _pictures(value: Any) -> Iterator[None]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            if item.get("type") in _PICTURES:
                yield None
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
