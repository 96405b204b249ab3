"""Settings tables against settings dataclasses: every fault is one `ConfigError` with key, value and remedy."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from leadscrew.errors import ConfigError

T = TypeVar("T")
_HINTS = {
    "budget.iterations": "The number of iterations belongs to the method: write harness.iterations.",
    "run.iterations": "The number of iterations belongs to the method: write harness.iterations.",
    "budget.minutes": "Write budget.seconds.",
    "budget.hours": "Write budget.seconds.",
    "run.model": "Models come with a later version; this one needs none.",
    "domain.scorer": "Options that a domain checks itself stand in a table of their own: write domain.options.scorer.",
}


def build_settings(cls: type[T], table: Mapping[str, Any], prefix: str) -> T:
    """Build a settings dataclass from a table. Unknown keys, wrong types and values out of range are `ConfigError`s.

    Understood types: bool, int, float, str, `Literal`, optional ones, tuples of one type, free tables and dataclasses.
    A field's metadata may hold `min` and `max`. `prefix` is the dotted name of the table in messages.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls)) if f.init}
    values: dict[str, Any] = {}
    for key, value in as_table(table, prefix).items():
        if key not in fields:
            raise unknown(prefix, key, value, fields)
        name = f"{prefix}.{key}" if prefix else key
        values[key] = _checked(hints[key], value, name, fields[key].metadata)
    for key, spec in fields.items():
        required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if required and key not in values:
            raise ConfigError(f"{prefix}.{key} is missing; it has no default.", key=f"{prefix}.{key}")
    try:
        return cls(**values)
    except ValueError as error:  # what a dataclass checks about itself in __post_init__
        raise ConfigError(f"[{prefix}]: {error}", key=prefix, value=dict(table)) from None


def _checked(hint: Any, value: Any, key: str, metadata: Mapping[str, Any]) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None and type(None) in args else _either(args, value, key, metadata)
    if origin is Literal:
        if value not in args or isinstance(value, bool) != any(value is a for a in args if isinstance(a, bool)):
            allowed = ", ".join(repr(a) for a in args)
            near = nearest(str(value), [str(a) for a in args])
            raise ConfigError(f"{key} = {value!r}: allowed are {allowed}.{near}", key=key, value=value)
        return value
    if origin in (tuple, list, Sequence):
        if not isinstance(value, (list, tuple)):
            raise _wrong(key, value, "a list in [brackets]")
        return tuple(_checked(args[0], item, f"{key}[{i}]", metadata) for i, item in enumerate(value))
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return dict(as_table(value, key))
    if dataclasses.is_dataclass(hint):
        return build_settings(typing.cast(type, hint), value, key)
    if hint is Any:
        return value
    return _scalar(hint, value, key, metadata)


def _either(hints: Sequence[Any], value: Any, key: str, metadata: Mapping[str, Any]) -> Any:
    inner = [hint for hint in hints if hint is not type(None)]
    for hint in inner[:-1]:
        try:
            return _checked(hint, value, key, metadata)
        except ConfigError:
            continue  # the last alternative says what is wrong
    return _checked(inner[-1], value, key, metadata)


def _scalar(hint: Any, value: Any, key: str, metadata: Mapping[str, Any]) -> Any:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if hint not in words or type(value) is not hint:
        raise _wrong(key, value, words.get(hint, getattr(hint, "__name__", str(hint))))
    if hint in (int, float):
        low, high = metadata.get("min"), metadata.get("max")
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            raise ConfigError(f"{key} = {value!r}: it must be {bounds}.", key=key, value=value)
    return value


def as_table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(key, value, f"a table, written as [{key}]")
    return value


def _wrong(key: str, value: Any, wanted: str) -> ConfigError:
    kind = {str: "text", bool: "true/false", int: "a whole number", float: "a number", list: "a list", dict: "a table"}
    given = kind.get(type(value), type(value).__name__)
    return ConfigError(f"{key} = {value!r} is {given}; it must be {wanted}.", key=key, value=value)


def unknown(prefix: str, key: str, value: Any, known: Iterable[str]) -> ConfigError:
    dotted = f"{prefix}.{key}" if prefix else key
    names = [f"{prefix}.{name}" if prefix else name for name in known]
    shown = f"{dotted} = {value!r}" if not isinstance(value, Mapping) else f"[{dotted}]"
    kind = "key" if prefix else "section"
    hint = _HINTS.get(dotted)
    near = f" {hint}" if hint else nearest(dotted, names)
    if not near:
        near = f" The {kind}s are {', '.join(names)}."
    return ConfigError(f"{shown}: there is no such {kind}.{near}", key=dotted, value=value)


def nearest(given: str, names: Sequence[str]) -> str:
    found = difflib.get_close_matches(given, names, 1, 0.6)
    return f" Did you mean {found[0]}?" if found else ""
