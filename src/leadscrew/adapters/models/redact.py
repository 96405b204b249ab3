"""Secrets taken out of everything that is kept or shown."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

SHORTEST = 8
"""A secret of fewer characters is not taken out: it would be found by chance in texts that have nothing to do with it."""
SHAPES = re.compile(
    r"\b(?:sk|rk|pk|gsk|tgp|xai|hf|ghp|glpat)[-_][A-Za-z0-9_-]{16,}|\bAIza[A-Za-z0-9_-]{30,}|(?<=\bBearer )[A-Za-z0-9._~+/=-]{16,}"
)
"""What looks like a key of somebody."""


class Redactor:
    """Replaces every occurrence of a secret, `name` -> value, by `[redacted:name]`.

    `secrets` may be the values alone. Found are the secret itself and its URL-quoted, JSON-escaped, hexadecimal and base64
    forms, the last one also inside a longer text that was encoded as a whole (`user:secret`). A secret shorter than 8
    characters is left alone; `ignored` says so by name. With `forms` whatever looks like a key goes too, as
    `[redacted:key]`: for what only people read, since it may be an honest part of a program (styles of notebooks have names
    that begin with `sk-`).

    >>> Redactor({"OPENAI_API_KEY": "sk-12345678"}).text("the key is sk-12345678.")
    'the key is [redacted:OPENAI_API_KEY].'
    >>> Redactor({"PIN": "1234"}).ignored
    {'PIN': 'it has fewer than 8 characters'}
    """

    def __init__(self, secrets: Mapping[str, str] | Iterable[str] = (), *, forms: bool = False) -> None:
        named = secrets if isinstance(secrets, Mapping) else {f"secret {i}": s for i, s in enumerate(secrets, 1)}
        self.ignored = {name: f"it has fewer than {SHORTEST} characters" for name in named if _short(named[name])}
        marks: dict[str, str] = {}
        for name, secret in named.items():
            for form in () if name in self.ignored else _forms(secret.strip()):
                marks.setdefault(form, f"[redacted:{re.sub('[^A-Za-z0-9_. -]', '_', name)}]")
        # The longest first: of two forms that begin alike the whole one must go.
        shapes = sorted(marks, key=lambda form: (-len(form), form))
        self._marks = marks
        self._pattern = re.compile("|".join(map(re.escape, shapes))) if shapes else None
        self._looks = forms
        self._bytes = {_bytes(form): mark.encode() for form, mark in marks.items()}
        self._byte_pattern = re.compile(b"|".join(re.escape(_bytes(form)) for form in shapes)) if shapes else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: self._marks[match.group()], text)
        return SHAPES.sub("[redacted:key]", text) if self._looks else text

    def value(self, value: Any) -> Any:
        """Return a copy of a JSON value without secrets in its texts and names; it may be nested to any depth."""
        top: list[Any] = [None]
        stack: list[tuple[Any, Any, Any]] = [(value, top, 0)]
        while stack:
            item, where, place = stack.pop()
            if isinstance(item, str):
                where[place] = self.text(item)
            elif isinstance(item, Mapping):
                where[place] = {self.text(k) if isinstance(k, str) else k: None for k in item}
                stack.extend(zip(item.values(), _again(where[place]), where[place], strict=False))
            elif isinstance(item, (list, tuple)):
                where[place] = [None] * len(item)
                stack.extend(zip(item, _again(where[place]), range(len(item)), strict=False))
            else:
                where[place] = item
        return top[0]

    def data(self, data: bytes) -> bytes:
        """Return bytes without secrets, whatever else they hold."""
        if self._byte_pattern is not None:
            data = self._byte_pattern.sub(lambda match: self._bytes[match.group()], data)
        return data

    def stream(self) -> RedactingStream:
        """Return a filter for bytes that come in pieces."""
        return RedactingStream(self._bytes, self._byte_pattern)


class RedactingStream:
    """Takes secrets out of a stream of bytes, also where one is cut into several pieces.

    Held back is only what may be the beginning of a secret.

    >>> stream = Redactor({"KEY": "sk-12345678"}).stream()
    >>> stream.feed(b"my key sk-12"), stream.feed(b"345678!"), stream.close()
    (b'my key ', b'[redacted:KEY]!', b'')
    """

    def __init__(self, marks: Mapping[bytes, bytes], pattern: re.Pattern[bytes] | None) -> None:
        self._marks = marks
        self._pattern = pattern
        self._beginnings = {form[:end] for form in marks for end in range(1, len(form))}
        self._longest = max(map(len, marks), default=1) - 1
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be passed on."""
        if self._pattern is None:
            return chunk
        data = self._held + chunk
        parts: list[bytes] = []
        done = 0
        for match in self._pattern.finditer(data):
            if match.end() == len(data) and match.group() in self._beginnings:
                break  # it may yet turn out to be the beginning of a longer form
            parts += [data[done : match.start()], self._marks[match.group()]]
            done = match.end()
        rest = data[done:]
        lengths = range(min(self._longest, len(rest)), 0, -1)
        held = next((n for n in lengths if rest[-n:] in self._beginnings), 0)
        self._held = rest[len(rest) - held :]
        return b"".join([*parts, rest[: len(rest) - held]])

    def close(self) -> bytes:
        """Return the rest."""
        rest, self._held = self._held, b""
        return rest if self._pattern is None else self._pattern.sub(lambda match: self._marks[match.group()], rest)


def _short(secret: str) -> bool:
    return len(secret.strip()) < SHORTEST


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _again(item: Any) -> Iterator[Any]:
    while True:
        yield item


def _forms(secret: str) -> set[str]:
    raw = _bytes(secret)
    quoted: list[Callable[[bytes], str]] = [lambda b: quote(b, safe=""), quote, quote_plus]
    forms = {secret, raw.hex(), raw.hex().upper()}
    for form in [q(raw) for q in quoted]:
        forms |= {form, re.sub("%[0-9A-F]{2}", lambda m: m.group().lower(), form)}
    for plain in (True, False):
        escaped = json.dumps(secret, ensure_ascii=plain)[1:-1]
        forms |= {escaped, escaped.replace("/", "\\/")}
    for before in range(3):
        # The characters that depend on the secret alone, with so many bytes of something else before it.
        whole = base64.b64encode(b"\0" * before + raw).decode()
        core = whole[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        forms |= {core, core.translate(str.maketrans("+/", "-_"))}
    return forms
