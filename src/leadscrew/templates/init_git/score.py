"""How good is one answer? Called once per trial, in a process of its own that no program can reach."""


def score(input, answer, expected):
    """Return a number where more is better. As it stands: 1 if the answer is exactly the expected one, else 0."""
    return 1.0 if answer == expected else 0.0
