"""What models cost: the user's own figures, else those of genai-prices as installed. Nothing is fetched."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from leadscrew.adapters.models.providers import KNOWN, Provider
from leadscrew.errors import ConfigError

PRICED = {
    "openai": "openai",
    "anthropic": "anthropic",
    "gemini": "google",
    "openrouter": "openrouter",
    "deepseek": "deepseek",
    "groq": "groq",
    "together": "together",
}
"""What genai-prices calls the known providers."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model in US dollars per million tokens. `longer` holds, in rising order, from how many input tokens of
    one call on other prices hold: (tokens, input, output). `written` is what input costs that goes into a provider's cache.

    >>> Price(0.25, 2.0).micro_usd(1000, 100)
    450
    >>> Price(0.1, 0.0).micro_usd(1, 0)
    1
    >>> Price(1.0, 10.0, longer=((200_000, 2.0, 20.0),)).micro_usd(300_000, 1)
    600020
    """

    input: float
    output: float
    longer: tuple[tuple[int, float, float], ...] = ()
    written: float = 0.0

    @property
    def caching(self) -> Price:
        """The price of requests that ask for a provider's cache: all of their input counts as written into it."""
        factor = self.written / self.input if self.input else 1.0
        if factor <= 1.0:
            return self
        return Price(self.written, self.output, tuple((n, i * factor, o) for n, i, o in self.longer))

    def __post_init__(self) -> None:
        for name, value in (("input", self.input), ("output", self.output)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(
                    f"{name}_price = {value!r} is no price. Write US dollars per million tokens, 0 or more.",
                    key=f"{name}_price",
                    value=value,
                )

    def micro_usd(self, tokens_in: int, tokens_out: int) -> int:
        """Return what so many tokens cost, in millionths of a US dollar, rounded up."""
        rate_in, rate_out = self.input, self.output
        for start, longer_in, longer_out in self.longer:
            if tokens_in > start:
                rate_in, rate_out = longer_in, longer_out
        # Decimal figures, taken exactly: 0.1 dollars for 10 tokens is 1, not 1.0000000000000002.
        return math.ceil(tokens_in * Fraction(str(rate_in)) + tokens_out * Fraction(str(rate_out)))


FREE = Price(0.0, 0.0)
"""The price of what runs on this machine."""


def price_of(
    provider: Provider, model: str, *, input_price: float | None = None, output_price: float | None = None
) -> Price | None:
    """Return the price of a provider's model, or None where it is not known.

    The user's figures go first, each for itself. Models on this machine cost nothing, unless their address wants
    a key: then it may be the door to somebody else's. Then genai-prices is asked, as it is
    installed and offline. Where the price depends on the hour the highest one counts, and tokens that a provider reads from
    its cache count in full, so that a cap on money holds; long prompts have their own price. To have other figures, set both
    prices yourself.

    >>> price_of(KNOWN["ollama"], "qwen3") == FREE
    True
    >>> price_of(KNOWN["openai"], "no-such-model") is None
    True
    """
    known: Price | None = None
    if input_price is None or output_price is None:
        known = FREE if provider.local and not provider.key_env else _listed(provider, model)
    if input_price is None and output_price is None:
        return known
    given = known.input if input_price is None and known else input_price
    asked = known.output if output_price is None and known else output_price
    return None if given is None or asked is None else Price(given, asked)


def _listed(provider: Provider, model: str) -> Price | None:
    # Takes a third of a second to import, and most commands never ask for a price.
    from genai_prices.data_snapshot import get_snapshot

    known = KNOWN.get(provider.name)
    official = known is not None and known.base_url == provider.base_url and provider.name in PRICED
    identity, address = (PRICED[provider.name], None) if official else (None, provider.endpoint)
    try:
        _, info = get_snapshot().find_provider_model(model, None, identity, address)
    except LookupError:
        return None
    today = dt.datetime.now(dt.UTC)
    prices = list(_in_force(info.prices, today))
    if any(_figures(price, "requests") for price in prices):
        return None  # a price per request, which no price per token can bound
    if not prices or any(price.input_mtok is None or price.output_mtok is None for price in prices):
        return None
    starts = sorted({start for price in prices for start in (*_starts(price.input_mtok), *_starts(price.output_mtok))})

    def at(tokens: int) -> tuple[float, float]:
        return max(_at(p.input_mtok, tokens) for p in prices), max(_at(p.output_mtok, tokens) for p in prices)

    longer = tuple((start, *at(start + 1)) for start in starts)
    return Price(*at(0), longer, max(_written(price) for price in prices))


def _in_force(prices: Any, now: dt.datetime) -> Iterator[Any]:
    """Yield the prices that hold now, at another hour, or from a later day on; not those that a later one replaced."""
    from genai_prices.types import StartDateConstraint

    if not isinstance(prices, list):
        yield prices
        return
    for conditional in reversed(prices):
        yield conditional.prices
        rule = conditional.constraint
        if rule is None or (isinstance(rule, StartDateConstraint) and rule.active(now)):
            return


def _starts(figure: Any) -> list[int]:
    return [tier.start for tier in getattr(figure, "tiers", ())]


def _at(figure: Any, tokens: int) -> float:
    """Return what one token costs in a call with so many input tokens."""
    rate = getattr(figure, "base", figure)
    for tier in sorted(getattr(figure, "tiers", ()), key=lambda tier: tier.start):
        if tokens > tier.start:
            rate = tier.price
    return float(rate)


def _written(price: Any) -> float:
    """Return what writing into the provider's cache costs, for as long as the dialect lets programs ask for: minutes."""
    figure = getattr(price, "cache_write_mtok", None)
    return 0.0 if figure is None else _at(figure, 0)


def _figures(price: Any, beginning: str) -> list[Decimal]:
    """Return all figures per million tokens whose name begins so, those of every tier among them."""
    found: list[Decimal] = []
    for name, value in vars(price).items():
        if value is None or not name.startswith(beginning):
            continue
        if beginning != "requests" and not name.endswith("_mtok"):
            continue
        found += [value] if isinstance(value, Decimal) else [value.base, *(tier.price for tier in value.tiers)]
    return found
