"""What the classification domains share: one label per text, accuracy, and the baselines without a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from leadscrew.core.canonical import digest_of
from leadscrew.core.program import Program
from leadscrew.core.task import Answer, Instance, Interface, Limits, Objective, Score
from leadscrew.domains.options import choice
from leadscrew.domains.templates import classifiers, solvers
from leadscrew.ports import BadAnswer, BoxReply, Domain

MAX_LABEL_CHARS = 4000


class Classification(Domain):
    """Learn labels from train, then predict them. The score is 1 for the right label, else 0: accuracy on average."""

    objectives = (Objective("accuracy", "max", floor=0.0, ceiling=1.0),)
    limits = Limits(cpu_s=5.0, wall_s=20.0, load_s=60.0, memory_mb=1024)

    def __init__(self, *, mode: str = "offline", solver: str = "none") -> None:
        """Set how learners see train, and whether programs that ask a model (`llm`) are among the baselines.

        Train comes with all labelled items at once (`offline`) or one after the other (`online`).
        """
        mode = choice(self.name, "mode", mode, ("offline", "online"))
        self.solver = choice(self.name, "solver", solver, ("none", "llm"))
        self.interface = Interface("predict", mode=cast(Literal["offline", "online"], mode))

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        """Return 1 for the expected label and 0 for another; raise `BadAnswer` for what is no label."""
        label = label_of(answer.value)
        correct = self.same(label, instance.expected)
        return Score(1.0 if correct else 0.0, correct=correct)

    def same(self, given: str, expected: Any) -> bool:
        """Say whether a given label counts as the expected one."""
        return bool(given == expected)

    def seed(self) -> Program:
        """Return nearest neighbour by words; with a solver model, the program that only asks it."""
        return next(iter(self.baselines().values()))

    def baselines(self) -> Mapping[str, Program]:
        """Return majority, nearest neighbours, nearest centre and naive Bayes, which need no model.

        With a solver model `no_memory` and `fewshot_all` come before them: what a model adds shows beside what needs none.
        """
        return {**(solvers() if self.solver == "llm" else {}), **classifiers()}

    def scorer_digest(self) -> str:
        """Return a digest of everything that decides over right and wrong."""
        return digest_of([self.name, source_of(type(self)), source_of(Classification), self.rule()])

    def rule(self) -> Any:
        """Return the options that the scorer depends on (JSON)."""
        return None


def label_of(value: Any) -> str:
    """Return an answer as a label; raise `BadAnswer` if it is no text or too long for one.

    >>> label_of("email")
    'email'
    """
    if not isinstance(value, str):
        raise BadAnswer(f"the answer must be a label (text), not {type(value).__name__}")
    if len(value) > MAX_LABEL_CHARS:
        raise BadAnswer(f"the answer has {len(value)} characters; a label has at most {MAX_LABEL_CHARS}")
    return value


def source_of(cls: type) -> str:
    """Return the source text of the file that defines a class, or its name where there is none."""
    try:
        return inspect.getsource(inspect.getmodule(cls) or cls)
    except (OSError, TypeError):
        return repr(cls)
