"""One canonical byte form for digests: JSON with sorted keys, no spaces, no NaN."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Return the canonical UTF-8 JSON of `value`: sorted keys, no white space.

    Raises `ValueError` for NaN and infinities and `TypeError` for anything JSON cannot hold.

    >>> canonical_json({"b": 1, "a": [True, None]})
    b'{"a":[true,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def digest_of(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of `value`.

    >>> digest_of({})[:12]
    '44136fa355b3'
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 (64 hex digits) of `data`.

    >>> digest_bytes(b"")[:12]
    'e3b0c44298fc'
    """
    return hashlib.sha256(data).hexdigest()


def json_fault(value: Any, *, max_depth: int = 64, max_digits: int = 4000) -> str | None:
    """Say why `value` is no acceptable JSON answer, or return None if it is one.

    Refused: NaN and infinities, integers of more than `max_digits` digits, nesting deeper than
    `max_depth`, keys that are not text, and any other type.

    >>> json_fault({"x": [1.5, "a", None]}) is None
    True
    >>> json_fault([float("nan")])
    'a number that is not finite'
    """
    stack: list[tuple[Any, int]] = [(value, 0)]
    limit = 10**max_digits
    while stack:
        item, depth = stack.pop()
        if depth > max_depth:
            return f"nesting deeper than {max_depth}"
        if item is None or isinstance(item, (bool, str)):
            continue
        if isinstance(item, int):
            if not -limit < item < limit:
                return f"an integer of more than {max_digits} digits"
        elif isinstance(item, float):
            if not math.isfinite(item):
                return "a number that is not finite"
        elif isinstance(item, (list, tuple)):
            stack.extend((child, depth + 1) for child in item)
        elif isinstance(item, dict):
            for key, child in item.items():
                if not isinstance(key, str):
                    return f"a key of type {type(key).__name__}; keys must be text"
                stack.append((child, depth + 1))
        else:
            return f"a value of type {type(item).__name__}, which JSON cannot hold"
    return None
