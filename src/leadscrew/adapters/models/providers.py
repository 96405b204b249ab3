"""Where models are: the known providers as data, the user's own beside them, and whether one can be used now."""

from __future__ import annotations

import difflib
import importlib.util
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import SplitResult, urlsplit

from leadscrew.errors import ConfigError

CONNECT_S = 0.5
"""How long `status` waits for a server on this machine."""
ANTHROPIC_VERSION = "2023-06-01"
"""The version of the messages interface that the dialect is written for."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A place that answers model calls over HTTP.

    `key_env` is the environment variable with the key, empty if none is needed. `local` says that the server is on this
    machine: it costs no money, and no proxy stands before it. Without a `base_url` the models are in this process.

    >>> KNOWN["openai"].endpoint
    'https://api.openai.com/v1/chat/completions'
    """

    name: str
    base_url: str
    key_env: str = ""
    dialect: Literal["openai", "anthropic"] = "openai"
    local: bool = False

    @property
    def endpoint(self) -> str:
        """The address of the call."""
        base = self.base_url.rstrip("/")
        if self.dialect == "openai":
            return f"{base}/chat/completions"
        # Both customs are met: the base address of Anthropic's own clients ends before the version, many others after it.
        return f"{base}/messages" if base.endswith("/v1") else f"{base}/v1/messages"

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry the key (none if it is empty) and name the version of the interface."""
        if self.dialect == "openai":
            return {"Authorization": f"Bearer {key}"} if key else {}
        version = {"anthropic-version": ANTHROPIC_VERSION}
        return {**version, "x-api-key": key} if key else version


KNOWN: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "anthropic"),
        Provider("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
        Provider("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        Provider("deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
        Provider("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        Provider("together", "https://api.together.ai/v1", "TOGETHER_API_KEY"),
        Provider("vllm", "http://127.0.0.1:8000/v1", "", local=True),
        Provider("ollama", "http://127.0.0.1:11434/v1", "", local=True),
        Provider("llamacpp", "http://127.0.0.1:8080/v1", "", local=True),
    )
}
"""The known providers by name, with the addresses and variables of their own documentation. Variables such as
`OPENAI_BASE_URL` change nothing here: a run asks whom its configuration names."""

Tables = Mapping[str, Mapping[str, Any]]
"""The user's own providers: name -> table with `base_url`, `key_env` and `dialect`."""

IN_PROCESS: Mapping[str, Provider] = {name: Provider(name, "", "", local=True) for name in ("local", "scripted")}
"""Models without a provider: a small real one, and scripted ones."""


def every(own: Tables | None = None) -> dict[str, Provider]:
    """Return all providers by name, the user's tables (`base_url`, `key_env`, `dialect`) laid over the known ones.

    A table with a `base_url` replaces a known provider as a whole, its key variable too: a key never goes to another
    address than the one that it was made for unless the user says so. Raises `ConfigError` for a table that cannot be used.

    >>> every({"mine": {"base_url": "http://localhost:9000/v1"}})["mine"].local
    True
    """
    found = {**KNOWN, **IN_PROCESS}
    for name, table in (own or {}).items():
        found[name] = _provider(name, table)
    return found


def find(model: str, own: Tables | None = None) -> tuple[Provider, str]:
    """Return the provider of a model `provider/name` and the name by which the provider knows it.

    Raises `ConfigError` if there is no such provider, or if a table of the user for it cannot be used.

    >>> provider, name = find("openrouter/qwen/qwen3-8b")
    >>> provider.key_env, name
    ('OPENROUTER_API_KEY', 'qwen/qwen3-8b')
    """
    place, slash, name = model.partition("/")
    if not (place and slash and name):
        raise ConfigError(
            f'the model {model!r} has no name behind a provider. Write "provider/name", for example "openai/gpt-5-mini".',
            value=model,
        )
    own = own or {}
    if place in own:
        return _provider(place, own[place]), name
    known = {**KNOWN, **IN_PROCESS}
    if place not in known:
        names = sorted({*known, *own})
        near = difflib.get_close_matches(place, names, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"there is no provider {place!r} (in {model!r}).{meant} Known are {', '.join(names)}; add another one as "
            f'[providers.{place}] with base_url = "https://...".',
            value=model,
        )
    return known[place], name


def status(provider: Provider, environ: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether a provider can be used now, and why not (empty if it can). Nothing is sent: for a server on this machine a
    connection is tried (half a second at most), for others the key is looked for.

    >>> status(KNOWN["groq"], {})
    (False, 'the environment variable GROQ_API_KEY is not set')
    >>> status(KNOWN["groq"], {"GROQ_API_KEY": "gsk_..."})
    (True, '')
    """
    if not provider.base_url:
        missing = provider.name == "local" and importlib.util.find_spec("xllamacpp") is None
        return not missing, "the extra 'local' is not installed" if missing else ""
    if provider.key_env and not environ.get(provider.key_env, "").strip():
        return False, f"the environment variable {provider.key_env} is not set"
    if not provider.local:
        return True, ""
    parts = urlsplit(provider.base_url)
    host, port = parts.hostname or "", _port(parts)
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        return False, f"nothing answers at {provider.base_url} ({error.strerror or error})"
    return True, ""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or number alone; no name is looked up.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "10.0.0.1", "localhost.example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _provider(name: str, table: Mapping[str, Any]) -> Provider:
    key = f"providers.{name}"
    if name in IN_PROCESS or not name or "/" in name:
        what = "is taken by models in this process" if name in IN_PROCESS else "cannot stand before a '/'"
        raise ConfigError(f"[{key}]: the name {name!r} {what}. Choose another name.", key=key, value=name)
    base, key_env = str(table.get("base_url") or ""), str(table.get("key_env") or "")
    dialect = cast(Literal["openai", "anthropic"], table.get("dialect") or "openai")
    if dialect not in ("openai", "anthropic"):
        raise ConfigError(
            f"{key}.dialect = {dialect!r} is not spoken here. Write 'openai' or 'anthropic'.",
            key=f"{key}.dialect",
            value=dialect,
        )
    if not base:
        if name not in KNOWN:
            raise ConfigError(
                f'[{key}] has no base_url, so nobody can be asked. Write base_url = "https://...", up to the part '
                "before /chat/completions (dialect openai) or /v1/messages (dialect anthropic).",
                key=f"{key}.base_url",
            )
        # The address is the known one, so its dialect is too.
        known = KNOWN[name]
        return Provider(name, known.base_url, key_env or known.key_env, known.dialect, known.local)
    return Provider(name, base.rstrip("/"), key_env, dialect, _checked(base, key_env, f"{key}.base_url"))


def _checked(base: str, key_env: str, key: str) -> bool:
    """Return whether an address is on this machine; raises `ConfigError` if it cannot be used."""

    def refuse(why: str, instead: str, shown: str = base) -> ConfigError:
        return ConfigError(f"{key} = {shown!r} {why}. {instead}", key=key, value=shown)

    try:
        parts = urlsplit(base)
        host = parts.hostname or ""
        _port(parts)
    except ValueError as error:
        raise refuse(f"is no address ({error})", 'Write one like "https://host:port/v1".') from error
    if parts.username is not None or parts.password is not None:
        shown = f"{parts.scheme}://...@{host}"
        raise refuse(
            "has a secret in it, which would be recorded", "Put it into a variable and name that in key_env.", shown
        )
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() or ord(c) < 32 for c in base):
        raise refuse("is no address of an http(s) server", 'Write one like "https://host:port/v1".')
    if parts.query or parts.fragment:
        raise refuse("goes on after its path", "Leave out what follows '?' or '#'.")
    local = is_loopback(host)
    if parts.scheme == "http" and key_env and not local:
        raise refuse(
            f"is plain http to another machine, so the key in {key_env} would travel unencrypted",
            "Write https, or leave key_env out if the server needs no key.",
        )
    return local


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)
