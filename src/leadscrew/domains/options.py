"""Checks shared by the domains: options by name, numbers in range."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from leadscrew.core.task import SPLITS
from leadscrew.errors import DomainError
from leadscrew.ports import Domain


def create(cls: type[Domain], options: Mapping[str, Any], *, seed: int = 0, path: str = "") -> Domain:
    """Make a domain from its class and options by name, as a configuration gives them.

    `seed` and `path` are handed over where the class takes them. Raises `DomainError` for an option it does not have,
    with the nearest name it has, and for a path that it has no use for.
    """
    known = inspect.signature(cls).parameters
    given: dict[str, Any] = dict(options)
    if "seed" in known:
        given.setdefault("seed", seed)
    if path:
        if "path" not in known:
            raise DomainError(f"the domain {cls.name!r} reads no folder, but path = {path!r} was given; leave it out.")
        given.setdefault("path", path)
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        for name in given:
            if name not in known:
                raise DomainError(
                    f"the domain {cls.name!r} has no option {name!r}{nearest(name, known)}; "
                    f"it has {', '.join(sorted(k for k in known if k not in ('seed', 'path'))) or 'none'}."
                )
    missing = [k for k, p in known.items() if p.default is p.empty and k not in given and p.kind is p.KEYWORD_ONLY]
    if missing:
        raise DomainError(f"the domain {cls.name!r} needs {' and '.join(repr(k) for k in missing)}.")
    return cls(**given)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the most similar known name, or nothing.

    >>> nearest("lables", ["labels", "limit"])
    " (did you mean 'labels'?)"
    """
    found = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def choice(domain: str, option: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is one of `allowed`, else raise `DomainError`."""
    if not isinstance(value, str) or value not in allowed:
        raise DomainError(
            f"the option {option!r} of the domain {domain!r} is {value!r}{nearest(str(value), allowed)}; "
            f"write one of {', '.join(allowed)}."
        )
    return value


def whole(domain: str, option: str, value: Any, low: int) -> int:
    """Return `value` if it is a whole number of at least `low`, else raise `DomainError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise DomainError(
            f"the option {option!r} of the domain {domain!r} is {value!r}; write a whole number of at least {low}."
        )
    return value


def number(domain: str, option: str, value: Any, above: float) -> float:
    """Return `value` if it is a number greater than `above`, else raise `DomainError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > above:
        raise DomainError(
            f"the option {option!r} of the domain {domain!r} is {value!r}; write a number greater than {above:g}."
        )
    return float(value)


def sizes(domain: str, option: str, value: Any) -> dict[str, int]:
    """Return the most rows per split from a number (for all three) or a table by split; raise `DomainError` otherwise.

    >>> sizes("docstrings", "limit", {"test": 10})
    {'test': 10}
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        for split in value:
            if split not in SPLITS:
                raise DomainError(
                    f"the option {option!r} of the domain {domain!r} names the split {split!r}"
                    f"{nearest(split, SPLITS)}; the splits are {', '.join(SPLITS)}."
                )
        return {split: whole(domain, f"{option}.{split}", size, 1) for split, size in value.items()}
    size = whole(domain, option, value, 1)
    return dict.fromkeys(SPLITS, size)
