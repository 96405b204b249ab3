"""Which proxy stands before an address, as the environment says."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from leadscrew.adapters.models.providers import is_loopback
from leadscrew.adapters.models.trouble import Trouble


def proxy_for(url: str, environ: Mapping[str, str]) -> tuple[str | None, dict[str, str] | None]:
    """Return the proxy for an address and the headers meant for the proxy alone; None for what there is none of.

    `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` are read as by most programs; lower case goes first. A server on
    this machine has no proxy. Raises `Trouble` for a proxy that does not speak HTTP.

    >>> proxy_for("https://api.example.org/v1", {"HTTPS_PROXY": "proxy.example.org:3128"})
    ('http://proxy.example.org:3128', None)
    >>> proxy_for("https://api.example.org/v1", {"HTTPS_PROXY": "proxy.example.org:3128", "NO_PROXY": ".example.org"})
    (None, None)
    """
    parts = urlsplit(url)
    found = {}
    for lower in (False, True):
        for name, value in environ.items():
            if name.lower().endswith("_proxy") and value and (name == name.lower()) == lower:
                found[name.lower()[: -len("_proxy")]] = value
    address = found.get(parts.scheme) or found.get("all")
    if not address or is_loopback(parts.hostname or "") or _spared(parts.netloc, found.get("no", "")):
        return None, None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme not in ("http", "https") or not proxy.hostname:
        raise Trouble(
            f"the environment names a proxy of the kind {proxy.scheme!r} for {parts.scheme}; only http proxies are used here. "
            "Name another one, or put the provider's host into NO_PROXY.",
            sent=False,
            again=False,
        )
    headers = None
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers = {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    return f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}", headers


def _spared(netloc: str, no_proxy: str) -> bool:
    """Whether an address is among those of NO_PROXY: hosts with what is below them, perhaps with a port, or `*`.

    >>> _spared("api.example.org:8443", "other.org, example.org:8443"), _spared("notexample.org", ".example.org")
    (True, False)
    """
    netloc = netloc.lower()
    host = (urlsplit(f"//{netloc}").hostname or "").rstrip(".")
    for entry in no_proxy.lower().split(","):
        wanted = entry.strip().lstrip(".")
        for name in (host, netloc):
            if wanted and (wanted == "*" or name == wanted or name.endswith(f".{wanted}")):
                return True
    return False
