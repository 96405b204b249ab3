"""Read-only views of a run: how it stands, where a candidate came from, and what was decided about it and why."""
