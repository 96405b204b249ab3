"""What the replies of providers in trouble mean, and which proxy stands before them."""

from __future__ import annotations

import pytest

from leadscrew.adapters.models.proxies import proxy_for
from leadscrew.adapters.models.trouble import Trouble, in_body, of_status, retry_after


def test_what_providers_say_when_waiting_does_not_help() -> None:
    quota = '{"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}'
    found = of_status(429, {"Retry-After": "1"}, quota, "K")
    assert (found.again, found.sent) == (False, False)
    assert "billing page" in str(found)
    assert of_status(429, {}, "{}", "K").again
    assert not of_status(500, {"x-should-retry": "false"}, "", "K").again
    assert "base_url" in str(of_status(307, {}, "", "K"))
    inner = in_body({"error": {"message": "bad", "code": 400}})
    assert inner is not None
    assert (inner.again, inner.status) == (False, 400)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("-3", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_what_a_provider_asks_to_wait(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, now=1445412450.0) == seconds


def test_proxies_by_kind_and_exception() -> None:
    environ = {
        "ALL_PROXY": "http://all:1",
        "HTTPS_PROXY": "http://upper:2",
        "https_proxy": "http://lower:3",
        "no_proxy": "b.org",
    }
    assert proxy_for("https://a.org/v1", environ)[0] == "http://lower:3"
    assert proxy_for("http://a.org/v1", environ)[0] == "http://all:1"
    assert proxy_for("https://x.b.org/v1", environ)[0] is None
    assert proxy_for("https://xb.org/v1", environ)[0] == "http://lower:3"
    assert proxy_for("http://localhost:8000/v1", environ)[0] is None
    assert proxy_for("https://a.org/v1", {"https_proxy": "http://p:1", "NO_PROXY": "*"})[0] is None
    with pytest.raises(Trouble, match="socks5"):
        proxy_for("https://a.org/v1", {"all_proxy": "socks5://p:1080"})
