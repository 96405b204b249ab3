"""Prices: whose figures count, what is never guessed, and that nothing is fetched."""

from __future__ import annotations

import datetime as dt
import math
import socket
import threading
from decimal import Decimal
from typing import Any

import pytest
from genai_prices.types import ConditionalPrice, ModelPrice, StartDateConstraint, TimeOfDateConstraint

from leadscrew.adapters.models import prices as module
from leadscrew.adapters.models.prices import FREE, PRICED, Price, price_of
from leadscrew.adapters.models.providers import KNOWN, Provider, every
from leadscrew.errors import ConfigError


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-5-mini"),
        ("anthropic", "claude-sonnet-4-5"),
        ("gemini", "gemini-2.5-flash"),
        ("openrouter", "qwen/qwen3-8b"),
        ("deepseek", "deepseek-chat"),
        ("groq", "llama-3.3-70b-versatile"),
        ("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo"),
    ],
)
def test_every_paid_provider_is_listed(provider: str, model: str) -> None:
    price = price_of(KNOWN[provider], model)
    assert price is not None
    assert 0 < price.input < 100
    assert 0 < price.output < 100


def test_every_known_provider_is_paid_or_here() -> None:
    assert {name for name, provider in KNOWN.items() if not provider.local} == set(PRICED)


def test_an_own_provider_is_known_by_its_address_alone() -> None:
    own = every(
        {
            "mine": {"base_url": "https://api.openai.com/v1", "key_env": "K"},
            "openai": {"base_url": "https://elsewhere.example.org/v1"},
            "vllm": {"base_url": "http://10.0.0.7:8000/v1"},
        }
    )
    assert price_of(own["mine"], "gpt-5-mini") == price_of(KNOWN["openai"], "gpt-5-mini")
    # The name alone says nothing about what another address asks for.
    assert price_of(own["openai"], "gpt-5-mini") is None
    assert price_of(own["vllm"], "qwen3") is None


def test_each_figure_of_the_user_counts_for_itself() -> None:
    openai = KNOWN["openai"]
    listed = price_of(openai, "gpt-5-mini")
    assert listed is not None
    assert price_of(openai, "gpt-5-mini", output_price=0.0) == Price(listed.input, 0.0)
    assert price_of(openai, "unheard-of", output_price=1.0) is None
    assert price_of(KNOWN["ollama"], "m", input_price=1.0) == Price(1.0, 0.0)


def test_long_prompts_and_the_providers_cache_have_their_own_price() -> None:
    sonnet = price_of(KNOWN["anthropic"], "claude-sonnet-4-5")
    assert sonnet is not None
    assert (sonnet.input, sonnet.output) == (3.0, 15.0)
    ((start, longer_in, longer_out),) = sonnet.longer
    assert longer_in > 3.0
    assert longer_out > 15.0
    assert sonnet.micro_usd(start, 100) == 3 * start + 1500
    assert sonnet.micro_usd(start + 1, 0) == math.ceil(longer_in * (start + 1))
    assert sonnet.caching.input == pytest.approx(3.75)
    assert sonnet.caching.output == 15.0
    assert price_of(KNOWN["openai"], "gpt-5-mini").caching.input == 0.25  # type: ignore[union-attr]


@pytest.mark.parametrize("model", ["text-embedding-3-small", "whisper-1", "gpt-4o-no-such-variant"])
def test_no_price_is_guessed(model: str) -> None:
    assert price_of(KNOWN["openai"], model) is None


def _dated(*prices: tuple[Any, str]) -> list[ConditionalPrice]:
    return [
        ConditionalPrice(
            constraint=constraint, prices=ModelPrice(input_mtok=Decimal(figure), output_mtok=Decimal(figure))
        )
        for constraint, figure in prices
    ]


def test_a_price_that_was_replaced_counts_no_more_and_one_to_come_already() -> None:
    now = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
    past, future = StartDateConstraint(dt.date(2026, 1, 1)), StartDateConstraint(dt.date(2027, 1, 1))
    night = TimeOfDateConstraint(dt.time(22, tzinfo=dt.UTC), dt.time(6, tzinfo=dt.UTC))

    def in_force(*prices: tuple[Any, str]) -> list[str]:
        return sorted(str(price.input_mtok) for price in module._in_force(_dated(*prices), now))

    assert in_force((None, "9"), (past, "2")) == ["2"]
    assert in_force((None, "9"), (past, "2"), (future, "3")) == ["2", "3"]
    assert in_force((None, "1"), (night, "2")) == ["1", "2"]
    assert in_force((future, "3"), (night, "2")) == ["2", "3"]


def test_a_price_per_request_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    per_request = ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(1), requests_kcount=Decimal(5))
    monkeypatch.setattr(module, "_in_force", lambda prices, now: iter([per_request]))
    assert price_of(KNOWN["openai"], "gpt-5-mini") is None


@pytest.mark.parametrize("figure", [-1.0, float("nan"), float("inf")])
def test_what_is_no_price_is_refused(figure: float) -> None:
    with pytest.raises(ConfigError, match="input_price"):
        Price(figure, 1.0)
    with pytest.raises(ConfigError, match="output_price"):
        Price(1.0, figure)


def test_money_is_exact_and_rounded_up() -> None:
    assert Price(0.1, 0.0).micro_usd(10, 0) == 1
    assert Price(0.1, 0.2).micro_usd(1, 1) == 1
    assert Price(0.07, 0.0).micro_usd(100, 0) == 7
    assert Price(1e-9, 0.0).micro_usd(1, 0) == 1
    assert FREE.micro_usd(10**9, 10**9) == 0


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    before = set(threading.enumerate())
    assert price_of(KNOWN["openai"], "gpt-5-mini") is not None
    assert price_of(Provider("mine", "https://models.example.org/v1"), "gpt-5-mini") is None
    assert set(threading.enumerate()) == before
