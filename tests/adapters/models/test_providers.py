"""Providers by name, the user's own, and what can be used now."""

from __future__ import annotations

import pytest

from leadscrew.adapters.models.prices import FREE, Price, price_of
from leadscrew.adapters.models.providers import KNOWN, Provider, every, find, status
from leadscrew.errors import ConfigError
from leadscrew.testing.upstream import ScriptedUpstream


def test_a_model_names_its_provider() -> None:
    provider, name = find("anthropic/claude-sonnet-4-5")
    assert (provider.dialect, provider.key_env, name) == ("anthropic", "ANTHROPIC_API_KEY", "claude-sonnet-4-5")


def test_the_users_own_provider_comes_first() -> None:
    own = {"openai": {"base_url": "https://proxy.example.org/v1/", "key_env": "PROXY_KEY", "dialect": "openai"}}
    provider, _ = find("openai/gpt-5", own)
    assert (provider.base_url, provider.key_env) == ("https://proxy.example.org/v1", "PROXY_KEY")


@pytest.mark.parametrize(
    ("model", "own", "said"),
    [
        ("opnai/gpt-5", {}, "Did you mean openai"),
        ("nowhere/x", {}, r"providers\.nowhere"),
        ("openai/", {}, "no name"),
        ("/gpt-5", {}, "no name"),
        ("gpt-5", {}, "no name"),
        ("mine/x", {"mine": {}}, "has no base_url"),
        ("mine/x", {"mine": {"key_env": "K"}}, "has no base_url"),
        ("mine/x", {"mine": {"base_url": "https://models.example.org", "dialect": "grpc"}}, "not spoken"),
        ("mine/x", {"mine": {"base_url": "https://models.example.org/v1?key=1"}}, "after its path"),
        ("mine/x", {"mine": {"base_url": "https://models.example.org:99999/v1"}}, "is no address"),
        ("mine/x", {"mine": {"base_url": "https://[::1/v1"}}, "is no address"),
        ("mine/x", {"mine": {"base_url": "https://models.example.org/v1\nHost: x"}}, "no address"),
        ("mine/x", {"mine": {"base_url": "http://localhost.example.org/v1", "key_env": "K"}}, "unencrypted"),
        ("local/x", {"local": {"base_url": "https://models.example.org/v1"}}, "taken"),
        ("mine/x", {"mine": {"base_url": "models.example.org"}}, "no address"),
        ("mine/x", {"mine": {"base_url": "ftp://models.example.org"}}, "no address"),
        ("mine/x", {"mine": {"base_url": "http://models.example.org/v1", "key_env": "K"}}, "unencrypted"),
        ("mine/x", {"mine": {"base_url": "https://me:secret@models.example.org/v1"}}, "key_env"),
    ],
)
def test_what_cannot_be_used_is_said(model: str, own: dict[str, dict[str, str]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find(model, own)


def test_the_password_of_an_address_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        find("mine/x", {"mine": {"base_url": "https://me:hunter22@models.example.org/v1"}})
    assert "hunter22" not in f"{caught.value} {caught.value.value}"


def test_a_key_never_follows_a_name_to_another_address() -> None:
    provider, _ = find("openai/gpt-5", {"openai": {"base_url": "https://elsewhere.example.org/v1"}})
    assert provider.key_env == ""
    provider, _ = find("anthropic/m", {"anthropic": {"key_env": "TEAM_KEY", "dialect": "openai"}})
    known = KNOWN["anthropic"]
    assert (provider.key_env, provider.base_url, provider.dialect) == ("TEAM_KEY", known.base_url, "anthropic")


def test_variables_with_addresses_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example.org/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://elsewhere.example.org")
    assert find("openai/m")[0] == KNOWN["openai"]
    assert find("anthropic/m")[0].endpoint == "https://api.anthropic.com/v1/messages"


def test_both_customs_of_an_anthropic_address() -> None:
    for base in ("https://models.example.org", "https://models.example.org/v1", "https://models.example.org/v1/"):
        provider, _ = find("mine/m", {"mine": {"base_url": base, "dialect": "anthropic"}})
        assert provider.endpoint == "https://models.example.org/v1/messages"


def test_models_in_this_process_have_no_address() -> None:
    for model in ("local/smollm2", "scripted/echo"):
        provider, _ = find(model)
        assert (provider.base_url, provider.local, provider.key_env) == ("", True, "")
    assert status(find("scripted/echo")[0], {}) == (True, "")


def test_a_key_may_travel_in_clear_on_this_machine_only() -> None:
    own = {"mine": {"base_url": "http://127.0.0.1:9/v1", "key_env": "K"}}
    assert every(own)["mine"].local


async def test_status_says_why() -> None:
    assert status(KNOWN["openai"], {}) == (False, "the environment variable OPENAI_API_KEY is not set")
    assert status(KNOWN["openai"], {"OPENAI_API_KEY": "k"}) == (True, "")
    async with ScriptedUpstream(lambda request: "x") as served:
        provider = served.provider()
        assert status(provider, {}) == (True, "")
    usable, why = status(provider, {})
    assert not usable
    assert "nothing answers" in why
    assert status(KNOWN["openai"], {"OPENAI_API_KEY": " "})[0] is False
    assert status(Provider("mine", "https://models.example.org/v1"), {}) == (True, "")


def test_prices() -> None:
    openai = KNOWN["openai"]
    listed = price_of(openai, "gpt-5-mini")
    assert listed is not None
    assert 0 < listed.input < listed.output
    assert price_of(openai, "no-such-model-anywhere") is None
    assert price_of(openai, "no-such-model-anywhere", input_price=1.0) is None
    assert price_of(openai, "gpt-5-mini", input_price=9.0) == Price(9.0, listed.output)
    assert price_of(openai, "x", input_price=1.0, output_price=2.0) == Price(1.0, 2.0)
    assert price_of(KNOWN["ollama"], "llama3") == FREE
    assert price_of(Provider("mine", "https://models.example.org"), "gpt-5-mini") is None


def test_tiers_are_kept_apart() -> None:
    found = price_of(KNOWN["gemini"], "gemini-2.5-pro")
    assert found is not None
    assert found.input == 1.25
    assert found.longer[0][1] > 1.25


def test_money_is_rounded_up() -> None:
    assert Price(0.1, 0.0).micro_usd(1, 0) == 1
    assert Price(0.1, 0.0).micro_usd(10, 0) == 1
    assert Price(0.1, 0.0).micro_usd(11, 0) == 2
