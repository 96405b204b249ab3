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
    """The price of a model in US dollars per million tokens.

    >>> Price(0.25, 2.0).micro_usd(1000, 100)
    450
    >>> Price(0.1, 0.0).micro_usd(1, 0)
    1
    """

    input: float
    output: float

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
        # Decimal figures, taken exactly: 0.1 dollars for 10 tokens is 1, not 1.0000000000000002.
        return math.ceil(tokens_in * Fraction(str(self.input)) + tokens_out * Fraction(str(self.output)))


FREE = Price(0.0, 0.0)
"""The price of what runs on this machine."""


def price_of(
    provider: Provider, model: str, *, input_price: float | None = None, output_price: float | None = None
) -> Price | None:
    """Return the price of a provider's model, or None where it is not known.

    The user's figures go first, each for itself. Models on this machine cost nothing. Then genai-prices is asked, as it is
    installed and offline. Where it has several figures for one kind of token the highest one counts, so that a cap on money
    always holds: tokens read from a provider's cache count in full, all input counts like writing it into a cache for an
    hour (where that is offered, as Anthropic's is) or like sound (Gemini), and prices for long prompts or hours of the day
    count always. To have other figures, set both prices yourself.

    >>> price_of(KNOWN["ollama"], "qwen3")
    Price(input=0.0, output=0.0)
    >>> price_of(KNOWN["openai"], "no-such-model") is None
    True
    """
    known: Price | None = None
    if input_price is None or output_price is None:
        known = FREE if provider.local else _listed(provider, model)
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
    inputs = [max([*_figures(price, "input_"), *_figures(price, "cache_")], default=None) for price in prices]
    outputs = [max(_figures(price, "output_"), default=None) for price in prices]
    if not prices or any(figure is None for figure in (*inputs, *outputs)):
        return None
    return Price(float(max(i for i in inputs if i is not None)), float(max(o for o in outputs if o is not None)))


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
