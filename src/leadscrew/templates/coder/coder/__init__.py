"""A coding agent of small parts, standard library only: `run` starts it, `loop` is its heart."""
