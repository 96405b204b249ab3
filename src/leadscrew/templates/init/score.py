"""How good is one answer? Called once per trial, in a process of its own that no program can reach."""


def score(input, answer, expected):
    """Return a number where more is better: 1 for the exact minutes, 0.5 when off by a fifth, towards 0 beyond.

    Raise ValueError for an answer that cannot be judged: the trial is then recorded as `bad_output`.
    """
    if isinstance(answer, bool) or not isinstance(answer, (int, float)):
        raise ValueError(f"the answer must be a number of minutes, not {type(answer).__name__}")
    error = abs(answer - expected) / expected
    return 1 / (1 + error / 0.2)
