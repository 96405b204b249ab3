"""The models that can be used: which, and why not the others; and fetching the small one. `leadscrew models` is a skin over it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leadscrew import roles
from leadscrew.adapters.models.fetch import MODELS, Progress, fetch, file_of
from leadscrew.adapters.models.prices import price_of
from leadscrew.adapters.models.providers import every, find, status
from leadscrew.config import Config
from leadscrew.errors import NotFoundError
from leadscrew.wire import cache_folder


def listing(config: Config | None = None, *, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what can be used now, and why the rest cannot.

    `models` are rows of `name`, `provider`, `usable`, `why`, `input_price` and `output_price` (US dollars per million tokens, null
    where nobody knows): local models, the scripted one, one row for each provider, and the models that `config` names.
    `roles` maps each role of `config` to its model. No provider elsewhere is asked anything.
    """
    environ = os.environ if environ is None else environ
    own = roles.providers(config) if config is not None else {}
    rows = [_local(name) for name in MODELS]
    rows.append(_row("scripted/FILE", "scripted", True, "", 0.0, 0.0))
    for name, provider in every(own).items():
        if roles.in_process(f"{name}/"):
            continue
        free = 0.0 if provider.local else None
        rows.append(_row(f"{name}/...", name, *status(provider, environ), free, free))
    named: dict[str, str] = {}
    for role, section in (config.models if config is not None else {}).items():
        named[role] = section.model
        if config is None or roles.in_process(section.model) or any(row["name"] == section.model for row in rows):
            continue
        provider, model = find(section.model, own)
        price = price_of(provider, model, input_price=section.input_price, output_price=section.output_price)
        usable, why = status(provider, environ)
        prices = (None, None) if price is None else (price.input, price.output)
        rows.append(_row(section.model, provider.name, usable, why, *prices))
    return {"models": rows, "roles": named}


def get(name: str = "smollm2", *, progress: Progress = lambda done, total: None) -> Path:
    """Fetch a local model into the cache folder and return its file; see `leadscrew.adapters.models.fetch.fetch`."""
    return fetch(name, cache_folder(), progress=progress)


def _local(name: str) -> dict[str, Any]:
    why = ""
    try:
        file_of(name, cache_folder())
    except NotFoundError:
        why = f"it is not fetched yet: leadscrew models get {name}"
    if importlib.util.find_spec("xllamacpp") is None:
        why = "the extra is not installed: pip install 'leadscrew[local]'" + (f"; {why}" if why else "")
    return _row(f"local/{name}", "local", not why, why, 0.0, 0.0)


def _row(
    name: str, provider: str, usable: bool, why: str, input_price: float | None, output_price: float | None
) -> dict[str, Any]:
    return {
        "name": name,
        "provider": provider,
        "usable": usable,
        "why": why,
        "input_price": input_price,
        "output_price": output_price,
    }
