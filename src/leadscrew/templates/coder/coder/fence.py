"""Data in the conversation: fenced so that nothing inside can end the fence."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def fenced(title: str, data: str) -> str:
    """Return `data` between two equal lines that do not occur in it, under a heading that gives its length.

    The marker is found by looking at the data, so that data which imitates a marker only makes it another one.

    >>> print(fenced("result 1, shell", "hello"))
    [result 1, shell: 5 characters of data between the two lines ----D0----]
    ----D0----
    hello
    ----D0----
    """
    data = visible(data)
    number = 0
    while f"D{number}" in data:
        number += 1
    line = f"----D{number}----"
    return f"[{title}: {len(data)} characters of data between the two lines {line}]\n{line}\n{data}\n{line}"


def visible(text: str) -> str:
    """Return text without colour codes, other control characters written out, lone surrogates as the bytes they stand for.

    >>> visible("a\\x1b[31mb\\x00c\\r\\n")
    'ab\\\\x00c\\\\x0d\\n'
    """
    text = text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")
    text = _COLOURS.sub("", text)
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def cut(text: str, most: int) -> str:
    """Return text of about `most` characters: the middle of a longer one is left out, and that is said.

    >>> cut("a" * 50 + "b" * 50, 20)
    'aaaaaaaaaa\\n[... 80 characters left out ...]\\nbbbbbbbbbb'
    """
    if len(text) <= most:
        return text
    head = (most + 1) // 2
    tail = most - head
    end = text[len(text) - tail :]
    return f"{text[:head]}\n[... {len(text) - most} characters left out ...]\n{end}"
