"""A small task whose programs ask the model about each instance, named by its path in configurations of the stories.

The model (`support.asked_upstream`) answers `tag T: times X?` with T * X mod 7. The search has to find the tag 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from leadscrew.core.program import Program
from leadscrew.core.proposal import Edge, Edit, Proposal
from leadscrew.core.task import Answer, Instance, Interface, Limits, Objective, Score, Split
from leadscrew.ports import Bench, BoxReply, Domain

SIZE = 6
SEED = """\
from leadscrew_guest import llm

TAG = 0


def solve(input):
    return int(llm(f"tag {TAG}: times {input}?"))
"""
LEARNER = """\
from leadscrew_guest import llm

TAG = 0


class Learner:
    def __init__(self):
        self.seen = ""

    def predict(self, input):
        return int(llm(f"tag {TAG}: times {input}? {self.seen}")), {}

    def learn_from_batch(self, batch):
        self.seen += llm(f"tag {TAG}: learn {' '.join(str(row['input']) for row in batch)}")

    def get_state(self):
        return self.seen

    def set_state(self, state):
        self.seen = state
"""


class Asking(Domain):
    """What three times the input is, modulo 7. With `learner` programs are learners that are shown train first."""

    name = "asking"
    objectives = (Objective("hits", ceiling=1.0),)
    limits = Limits(cpu_s=5, wall_s=20, load_s=10)

    def __init__(self, learner: bool = False, source: str = "") -> None:
        self.learner, self.source = learner, source or (LEARNER if learner else SEED)
        self.interface = Interface("predict", mode="offline") if learner else Interface("solve")

    def instances(self, split: Split) -> Sequence[Instance]:
        start = {"train": 0, "val": 100, "test": 200}[split]
        return [Instance(f"{split}-{i}", split, start + i, 3 * (start + i) % 7) for i in range(SIZE)]

    def seed(self) -> Program:
        return Program.of({"main.py": self.source})

    def score(self, instance: Instance, answer: Answer, graded: Sequence[BoxReply] = ()) -> Score:
        hit = answer.value == instance.expected
        return Score(float(hit), correct=hit)


class Tagger:
    """Proposes the program to start from with the number of the plan as its tag."""

    name = "tagger"

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        text = bench.program("0.0").text("main.py")
        changed = Program.of({"main.py": text.replace("TAG = 0", f"TAG = {bench.number}")})
        return [Proposal(changed, (Edge("base", "0.0"),))]
