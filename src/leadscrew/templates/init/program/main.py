"""How many minutes will a support ticket take? The entry file: leadscrew calls `solve` once per ticket."""

import rates


def reading_time(ticket):
    """Minutes to read what the customer wrote and attached."""
    minutes = ticket["words"] / 40
    minutes += ticket["attachments"] * 6.0
    return minutes


def handling_time(ticket):
    """Minutes to work on it, by product and by how often it came back."""
    minutes = rates.minutes_for(ticket["product"])
    minutes += ticket["reopened"] * 2
    if ticket["weekend"]:
        minutes *= 1.1
    return minutes


def care(ticket):
    """How much more time this customer gets."""
    if ticket["customer"] == "key":
        return 1.2
    return 1.0


def solve(ticket):
    """Return the estimate in minutes."""
    minutes = reading_time(ticket) + handling_time(ticket)
    minutes = minutes * care(ticket)
    minutes += 15  # the hand-over meeting, before it was abolished
    minutes = minutes * 1.5  # to be on the safe side
    return round(minutes, 1)
