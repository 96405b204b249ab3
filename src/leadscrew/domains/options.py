"""Checks shared by the domains: options by name, numbers in range."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from leadscrew.core.task import SPLITS
from leadscrew.errors import DomainError


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
