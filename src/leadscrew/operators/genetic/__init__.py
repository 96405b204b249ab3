"""A proposer without a model: it recombines and perturbs the files of recorded candidates.

It knows nothing about the task and, but for numbers and operators, inserts nothing that is not in the base or a donor
already. So it is the control arm for every proposer that uses a model, and it makes a first run free. LibCST is loaded
only when the first proposal is made.
"""

from __future__ import annotations

from leadscrew.operators.genetic.mutate import Mutation, mutate
from leadscrew.operators.genetic.options import MOVES, Options
from leadscrew.operators.genetic.proposer import GeneticProposer

__all__ = ["MOVES", "GeneticProposer", "Mutation", "Options", "mutate"]
