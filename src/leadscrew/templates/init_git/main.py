"""The door to your repository: leadscrew calls `solve` once per example. Call your own code from here."""


def solve(input):
    """Return the answer for one example. As it stands it echoes the input: replace it by a call into your code."""
    return input
