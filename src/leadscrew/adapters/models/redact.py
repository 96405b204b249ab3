"""Secrets out of everything that is recorded or shown: keys by their value, in every form in which they may come back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

SHORTEST = 8
"""A shorter secret is left alone: its characters occur by chance everywhere."""
_FORMS = (
    re.compile(r"\bsk-[A-Za-z0-9_\-]{16,}"),
    re.compile(r"\bAIza[A-Za-z0-9_\-]{30,}"),
    re.compile(r"\bgsk_[A-Za-z0-9]{20,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=\-]{16,}"),
)
"""What keys of providers look like: caught although nobody named them."""


class Redactor:
    """Replaces secrets in texts and JSON values.

    `secrets` maps the name under which a secret is shown to its value, or is just the values. With `forms`, what looks like a
    key of a provider goes too.

    >>> Redactor({"MY_KEY": "s3cret-s3cret"}).text("key=s3cret-s3cret")
    'key=[redacted:MY_KEY]'
    """

    def __init__(self, secrets: Mapping[str, str] | Iterable[str] = (), *, forms: bool = True) -> None:
        named = secrets if isinstance(secrets, Mapping) else {f"secret {n}": s for n, s in enumerate(secrets, 1)}
        self._forms = _FORMS if forms else ()
        table: dict[str, str] = {}
        for name, secret in named.items():
            if len(secret) >= SHORTEST:
                for shape in _shapes(secret):
                    table.setdefault(shape, f"[redacted:{name}]")
        self._table = table
        # The longest first: one shape may be part of another.
        shapes = sorted(table, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, shapes))) if shapes else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if self._known is not None:
            text = self._known.sub(lambda found: self._table[found.group()], text)
        for form in self._forms:
            text = form.sub("[redacted:key]", text)
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets, in keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key) if isinstance(key, str) else key: self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def data(self, data: bytes) -> bytes:
        """Return bytes without secrets; what is no UTF-8 is kept as it is."""
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _shapes(secret: str) -> set[str]:
    raw = secret.encode()
    shapes = {
        secret,
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        raw.hex(),
    }
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        shapes.add(encode(raw).decode("ascii").rstrip("="))
        # Inside longer text the first and last characters depend on the neighbours.
        for shift in (1, 2):
            shapes.add(encode(b"\0" * shift + raw).decode("ascii").rstrip("=")[shift + 1 : -2])
    return {shape for shape in shapes if len(shape) >= SHORTEST}
