"""TOML out (the standard library only reads it), and single values in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from leadscrew.errors import ConfigError


def dump_toml(table: Mapping[str, Any]) -> str:
    """Write a table of JSON-like values as TOML. None is left out, since TOML has no such value.

    >>> print(dump_toml({"run": {"seed": 7, "out": "a b"}}), end="")
    [run]
    seed = 7
    out = "a b"
    """
    lines: list[str] = []
    _dump(table, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _dump(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) and v is not None}
    if path and (plain or not table):
        lines.extend(["", f"[{'.'.join(_key(p) for p in path)}]"])
    lines.extend(f"{_key(k)} = {_value(v)}" for k, v in plain.items())
    for key, value in table.items():
        if isinstance(value, Mapping):
            _dump(value, (*path, key), lines)


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan" if math.isnan(value) else repr(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    raise ConfigError(
        f"a value of type {type(value).__name__} cannot stand in a configuration: {value!r}.", value=value
    )


def _text(text: str) -> str:
    import json

    # JSON's escapes are TOML's too, but TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(text: str) -> Any:
    import tomllib

    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text
