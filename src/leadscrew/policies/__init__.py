"""The choices: pure functions, one formula each, its source beside it, randomness passed in."""
