"""The nouns: programs, tasks, trials, proposals, the archive, budgets. Pure: no files, clock, network or global randomness."""
