"""Secrets leave nothing behind, in whatever form they come back."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from leadscrew.adapters.models.redact import Redactor

SECRET = 'sesame/open "now" é+='


@given(before=st.text(max_size=12), after=st.text(max_size=12))
def test_no_form_of_a_secret_survives(before: str, after: str) -> None:
    redactor = Redactor({"THE_KEY": SECRET})
    forms = [SECRET, quote(SECRET, safe=""), json.dumps(SECRET)[1:-1], SECRET.encode().hex()]
    for form in forms:
        found = redactor.text(before + form + after)
        assert form not in found
        assert "[redacted:THE_KEY]" in found


@given(before=st.binary(max_size=5))
def test_base64_of_it_inside_longer_text(before: bytes) -> None:
    redactor = Redactor({"THE_KEY": "a-rather-long-secret-value-0123"})
    text = base64.b64encode(before + b"a-rather-long-secret-value-0123" + b"tail").decode()
    assert "[redacted:THE_KEY]" in redactor.text(text)


def test_values_keys_and_bytes() -> None:
    redactor = Redactor(["first-secret-1", "second-secret-2"])
    value = redactor.value({"first-secret-1": ["x second-secret-2", 3, None]})
    assert value == {"[redacted:secret 1]": ["x [redacted:secret 2]", 3, None]}
    assert redactor.data(b"\xff first-secret-1") == b"\xff [redacted:secret 1]"


def test_a_short_word_is_no_secret() -> None:
    assert Redactor({"K": "test"}).text("a test") == "a test"


def test_what_looks_like_a_key_goes_too() -> None:
    text = "Bearer abcdefghijklmnop1234 and sk-proj-abcdefghijklmnop1234"
    assert Redactor(forms=True).text(text) == "Bearer [redacted:key] and [redacted:key]"
    assert Redactor().text(text) == text


def test_what_only_looks_like_a_key_stays_in_a_program() -> None:
    text = "div.sk-toggleable__content-pre { color: red }"
    assert Redactor({"K": "another-secret"}).text(text) == text


def test_ignored_secrets_are_named() -> None:
    redactor = Redactor({"SHORT": " 1234567 ", "LONG": "12345678"})
    assert redactor.ignored == {"SHORT": "it has fewer than 8 characters"}
    assert redactor.text("1234567 12345678") == "1234567 [redacted:LONG]"


def test_a_name_cannot_break_the_mark() -> None:
    assert Redactor({'a"]\n': "the-secret"}).text("the-secret") == "[redacted:a___]"


def test_of_two_secrets_that_begin_alike_the_whole_one_goes() -> None:
    redactor = Redactor({"A": "same-beginning", "B": "same-beginning-and-more"})
    assert redactor.text("same-beginning-and-more, same-beginning") == "[redacted:B], [redacted:A]"


def test_a_deep_value() -> None:
    value: Any = "the-secret"
    for _ in range(5000):
        value = [value]
    found = Redactor({"K": "the-secret"}).value(value)
    for _ in range(5000):
        (found,) = found
    assert found == "[redacted:K]"


@given(
    pieces=st.lists(st.sampled_from([SECRET, SECRET[:9], SECRET[9:], quote(SECRET), "x", "sesame", "\n"]), max_size=8),
    cuts=st.lists(st.integers(1, 30), max_size=20),
)
def test_a_stream_in_pieces_is_like_the_whole(pieces: list[str], cuts: list[int]) -> None:
    redactor = Redactor({"K": SECRET, "OTHER": SECRET + "and more"})
    whole = "".join(pieces).encode()
    stream = redactor.stream()
    out, at = b"", 0
    for cut in [*cuts, len(whole)]:
        out += stream.feed(whole[at : at + cut])
        at += cut
    out += stream.close()
    assert out == redactor.data(whole)
    assert SECRET.encode() not in out


def test_a_stream_holds_back_nothing_but_a_beginning() -> None:
    stream = Redactor({"K": "the-secret"}).stream()
    assert stream.feed(b"plain text.") == b"plain text."
    assert stream.feed(b"more the-s") == b"more "
    assert stream.feed(b"tory") == b"the-story"
    assert stream.close() == b""
    assert Redactor().stream().feed(b"the-secret") == b"the-secret"
