"""Minutes of work per ticket, by product. Somebody guessed these numbers two years ago."""

BILLING = 10
LOGIN = 10
API = 20
HARDWARE = 20


def minutes_for(product):
    """Return the usual minutes for a product."""
    if product == "billing":
        return BILLING
    if product == "login":
        return LOGIN
    if product == "api":
        return API
    return HARDWARE
