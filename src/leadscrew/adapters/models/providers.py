"""Where models are: the known providers as data, and the user's own beside them."""

from __future__ import annotations

import difflib
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from leadscrew.errors import ConfigError

TRY_S = 0.3


@dataclass(frozen=True, slots=True)
class Provider:
    """A place of models. `base_url` goes up to and without `/chat/completions` or `/messages`; `key_env` is the environment
    variable that holds the key, empty where none is needed; `local` is a server on the user's own machine."""

    name: str
    base_url: str
    key_env: str = ""
    dialect: Literal["openai", "anthropic"] = "openai"
    local: bool = False


KNOWN: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        Provider("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "anthropic"),
        Provider("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
        Provider("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        Provider("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        Provider("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        Provider("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
        Provider("vllm", "http://127.0.0.1:8000/v1", local=True),
        Provider("ollama", "http://127.0.0.1:11434/v1", local=True),
        Provider("llamacpp", "http://127.0.0.1:8080/v1", local=True),
    )
}
"""Addresses and variables as the providers' documentation gives them (2026-12). All but the last three are elsewhere."""

Tables = Mapping[str, Mapping[str, str]]
"""The user's own providers: name -> table with `base_url`, `key_env` and `dialect`."""


def every(own: Tables | None = None) -> dict[str, Provider]:
    """Return all providers by name; one of the user's replaces a known one of its name. Raises `ConfigError`."""
    found = dict(KNOWN)
    for name, table in (own or {}).items():
        found[name] = _made(name, table)
    return found


def find(model: str, own: Tables | None = None) -> tuple[Provider, str]:
    """Return the provider and the provider's own name of a model that is written as `provider/name`.

    Raises `ConfigError` for an unknown provider or one whose address cannot be used.

    >>> provider, name = find("openrouter/meta-llama/llama-3.1-8b")
    >>> provider.name, name
    ('openrouter', 'meta-llama/llama-3.1-8b')
    """
    place, _, name = model.partition("/")
    known = every(own)
    if place not in known:
        names = [*known, "local", "scripted"]
        near = difflib.get_close_matches(place, names, 1, 0.6)
        hint = f" Did you mean {near[0]}?" if near else f" Known are {', '.join(names)}."
        raise ConfigError(
            f"the model {model!r} names a provider that is not known.{hint} Your own: [providers.{place}] with a base_url.",
            value=model,
        )
    if not name:
        raise ConfigError(f"the model {model!r} has no name behind the provider; write {place}/name.", value=model)
    return known[place], name


def status(provider: Provider, environ: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether a provider can be used now, and why not. A server on this machine is tried; no other is asked."""
    if provider.key_env and not environ.get(provider.key_env):
        return False, f"the environment variable {provider.key_env} is not set"
    if on_this_machine(provider.base_url) and not _answers(provider.base_url):
        return False, f"nothing answers at {provider.base_url}"
    return True, ""


def on_this_machine(url: str) -> bool:
    """Whether an address is of this machine.

    >>> on_this_machine("http://localhost:8000/v1"), on_this_machine("https://api.openai.com/v1")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _made(name: str, table: Mapping[str, str]) -> Provider:
    url, key_env = str(table.get("base_url", "")).rstrip("/"), str(table.get("key_env", ""))
    key = f"providers.{name}.base_url"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f'{key} = {url!r} is no address of a server. Write for example "https://models.example.org/v1".',
            key=key,
            value=url,
        )
    if parts.username or parts.password:
        raise ConfigError(
            f"{key} holds a user name or password; put the key into a variable and name it in key_env.", key=key
        )
    if parts.scheme == "http" and key_env and not on_this_machine(url):
        raise ConfigError(
            f"{key} = {url!r}: the key in {key_env} would travel unencrypted. Write https://, or leave key_env out.",
            key=key,
            value=url,
        )
    dialect = table.get("dialect", "openai")
    return Provider(name, url, key_env, "anthropic" if dialect == "anthropic" else "openai", local=on_this_machine(url))


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), TRY_S):
            return True
    except OSError:
        return False
