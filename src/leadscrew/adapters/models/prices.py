"""What a model costs: the user's own figures, else a published list, else unknown, which is never 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from leadscrew.adapters.models.providers import Provider

_NAMES = {"gemini": "google"}
"""Providers that the price list calls otherwise."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens, in and out.

    >>> Price(0.25, 2.0).micro_usd(1000, 10)
    270
    """

    input: float
    output: float

    def micro_usd(self, tokens_in: int, tokens_out: int) -> int:
        """Return what so many tokens cost, in millionths of a US dollar, rounded up."""
        exact = Decimal(str(self.input)) * tokens_in + Decimal(str(self.output)) * tokens_out
        return math.ceil(exact)


FREE = Price(0.0, 0.0)


def price_of(
    provider: Provider, model: str, *, input_price: float | None = None, output_price: float | None = None
) -> Price | None:
    """Return the price of a model, None where nobody knows it.

    The user's figures win; a server on the user's machine is free; else genai-prices' list, as it was shipped, is asked (no
    network). Where it has tiers the dearest counts, and tokens from a provider's cache count as fresh ones: a cap in money
    errs on the safe side.
    """
    if input_price is not None and output_price is not None:
        return Price(input_price, output_price)
    listed = FREE if provider.local else _listed(provider.name, model)
    if input_price is None and output_price is None:
        return listed
    if listed is None:
        return None
    return Price(
        listed.input if input_price is None else input_price, listed.output if output_price is None else output_price
    )


def _listed(provider: str, model: str) -> Price | None:
    # An SDK with a data file of its own: half a megabyte that only runs with a priced model need.
    from genai_prices import Usage, calc_price

    try:
        found = calc_price(
            Usage(input_tokens=1000, output_tokens=1000), model, provider_id=_NAMES.get(provider, provider)
        )
    except LookupError:
        return None
    prices = found.model_price
    known = [_dearest(prices.input_mtok), _dearest(prices.output_mtok)]
    if known[0] is None or known[1] is None:
        return None
    return Price(known[0], known[1])


def _dearest(price: Any) -> float | None:
    if price is None:
        return None
    tiers = [tier.price for tier in getattr(price, "tiers", ())]
    return float(max([getattr(price, "base", price), *tiers]))
