"""Secrets leave nothing behind, in whatever form they come back."""

from __future__ import annotations

import base64
import json
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
    assert Redactor().text(text) == "Bearer [redacted:key] and [redacted:key]"
    assert Redactor(forms=False).text(text) == text
