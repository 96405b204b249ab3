"""The genetic proposer: what it draws from an archive, and what it refuses to propose again."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program, Region
from leadscrew.core.proposal import Candidate, Claim, Edge, Edit, Proposal
from leadscrew.core.task import Aggregate, Direction, Objective
from leadscrew.core.trial import Evaluation, Outcome
from leadscrew.errors import ConfigError
from leadscrew.operators.genetic import GeneticProposer, Options
from leadscrew.operators.genetic.memory import Memory
from leadscrew.operators.genetic.names import tree_digest

FOLDER = Path(__file__).parent / "test_genetic_programs"
TEMPLATES = Path(__file__).parents[2] / "src" / "leadscrew" / "templates" / "classifiers"


@dataclass
class Desk:
    """An archive that grows by the loop's rules, and the part of a bench that this proposer reads."""

    fitness: Callable[[Program], float | None]
    direction: Direction = "max"
    archive: Archive = field(init=False)
    programs: dict[str, Program] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    reads: int = 0

    def __post_init__(self) -> None:
        self.archive = Archive([Objective("score", self.direction)])

    def program(self, candidate: str) -> Program:
        self.reads += 1
        return self.programs[candidate]

    def record(self, plan: int, index: int, proposal: Proposal, operator: str = "genetic") -> None:
        program = proposal.program
        value = self.fitness(program) if program is not None else None
        id = f"{plan}.{index}"
        evaluations = {}
        if program is not None:
            self.programs[id] = program
            if value is not None:
                aggregate = Aggregate(value, {}, {"main": value})
                evaluations["val"] = Evaluation(program.digest, "val", 0, 1, ("a",), (value,), aggregate)
        self.archive.add(
            Candidate(
                id,
                plan,
                index,
                program.digest if program is not None else "",
                proposal.name,
                operator,
                "failed" if value is None else "evaluated",
                Outcome.CRASH if value is None else Outcome.OK,
                edges=proposal.edges,
                claim=proposal.claim,
                evaluations=evaluations,
            )
        )

    def found(self, programs: Sequence[Program]) -> None:
        for index, program in enumerate(programs):
            self.record(0, index, Proposal(program), operator="found")

    async def step(self, proposer: GeneticProposer, plan: int, seed: int, **edit: Any) -> Sequence[Proposal]:
        self.rng = random.Random(f"{seed}/{plan}")
        proposals = await proposer.propose(Edit("genetic", **edit), self)  # type: ignore[arg-type]
        for index, proposal in enumerate(proposals):
            self.record(plan, index, proposal)
        return proposals


def toy(*names: str) -> list[Program]:
    return [Program.of({"main.py": (FOLDER / f"{name}.py").read_text()}) for name in names]


def voters(program: Program) -> set[str]:
    """The classes in VOTERS, variants counted as one."""
    for node in ast.parse(program.text("main.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VOTERS":
            return {re.sub(r"_\d+$", "", name) for name in re.findall(r"[A-Z]\w+", ast.unparse(node.value))}
    return set()


def by_voters(worth: dict[str, float], noise: random.Random) -> Callable[[Program], float | None]:
    """A landscape like the measured one: the best voter counts, each further kind adds a little, noise hides half of it."""

    def fitness(program: Program) -> float | None:
        held = [worth[name] for name in voters(program) if name in worth]
        return max(held) + 0.02 * (sum(w > 0.57 for w in held) - 1) + noise.gauss(0, 0.006) if held else None

    return fitness


TOY_WORTH = {
    "MajorityVoter": 0.03,
    "WordsVoter": 0.545,
    "CharsVoter": 0.595,
    "BayesVoter": 0.61,
    "CentroidVoter": 0.615,
}
REAL_WORTH = {
    "Majority": 0.03,
    "WordNearest": 0.545,
    "WordNeighbours": 0.558,
    "CharNearest": 0.578,
    "CharNeighbours": 0.595,
    "CharCentroid": 0.615,
    "ComplementBayes": 0.61,
}


async def search(founders: Sequence[Program], worth: dict[str, float], seed: int, proposals: int = 25) -> Desk:
    desk = Desk(by_voters(worth, random.Random(seed)))
    desk.found(founders)
    proposer = GeneticProposer()
    for plan in range(1, proposals + 1):
        await desk.step(proposer, plan, seed)
    return desk


def combined(desk: Desk, good: set[str]) -> int:
    """The most good voters that any candidate joins."""
    return max(len(voters(program) & good) for program in desk.programs.values())


async def test_a_search_combines_voters_within_25_proposals() -> None:
    founders = toy("words_1nn", "majority", "chars_5nn", "bayes", "centroid")
    best_joined = 0
    for seed in range(6):
        desk = await search(founders, TOY_WORTH, seed)
        assert combined(desk, {"CharsVoter", "BayesVoter", "CentroidVoter"}) >= 2
        assert desk.archive.best is not None
        champion = desk.archive[desk.archive.best.candidate]
        best_joined += len(voters(desk.programs[champion.id])) >= 2
        trees = [tree_digest(program) for program in desk.programs.values()]
        assert len(trees) == len(set(trees))
    assert best_joined >= 5


@pytest.mark.slow
async def test_a_search_over_the_real_baselines_combines_voters() -> None:
    names = ("words_1nn", "majority", "words_5nn", "chars_1nn", "chars_5nn", "chars_centroid", "bayes")
    founders = [Program.of({"main.py": (TEMPLATES / name / "main.py").read_bytes()}) for name in names]
    hits = 0
    for seed in range(60):
        desk = await search(founders, REAL_WORTH, seed)
        hits += combined(desk, {"CharNeighbours", "CharCentroid", "ComplementBayes"}) >= 2
    assert hits >= 57


async def test_a_proposal_names_its_sources_and_says_what_it_did() -> None:
    desk = Desk(lambda program: 1.0)
    desk.found(toy("words_1nn", "bayes", "centroid"))
    grafts = 0
    for plan in range(1, 12):
        (proposal,) = await desk.step(GeneticProposer(), plan, 3, options={"weights": {"graft": 500}})
        assert proposal.program is not None
        base = next(edge.source for edge in proposal.edges if edge.kind == "base")
        donors = [edge.source for edge in proposal.edges if edge.kind == "donor"]
        assert [edge.source for edge in proposal.edges if edge.kind == "parent"] == [base]
        assert base not in donors
        assert proposal.claim.extra["base_system"] == base
        assert proposal.claim.extra["axis"] in ("exploration", "exploitation")
        assert f"candidate {base}" in proposal.claim.hypothesis
        if proposal.claim.tags == ("graft",):
            grafts += 1
            assert f"of candidate {donors[0]} into candidate {base} and add it to VOTERS" in proposal.claim.hypothesis
            assert proposal.claim.extra["axis"] == "exploration"
            assert set(proposal.claim.extra["components"]) & voters(proposal.program)
    assert grafts >= 5


async def test_the_plan_chooses_the_bases_if_it_names_any() -> None:
    desk = Desk(lambda program: 1.0)
    desk.found(toy("words_1nn", "bayes", "centroid"))
    made = await desk.step(GeneticProposer(), 1, 0, count=4, parents=("0.1", "0.2"))
    assert [p.edges[0] for p in made] == [Edge("base", "0.1"), Edge("base", "0.2")] * 2
    assert len({tree_digest(p.program) for p in made if p.program is not None}) == 4


async def test_equal_archives_and_generators_give_equal_proposals() -> None:
    first = await search(toy("words_1nn", "bayes"), TOY_WORTH, 7, proposals=6)
    again = await search(toy("words_1nn", "bayes"), TOY_WORTH, 7, proposals=6)
    assert [c.program for c in first.archive] == [c.program for c in again.archive]
    # A proposer that starts in the middle, as after a resume, proposes what the first one would have.
    late = await first.step(GeneticProposer(), 7, 7)
    other = await again.step(GeneticProposer(), 7, 7)
    assert [p.program for p in late] == [p.program for p in other]


async def test_nothing_recorded_is_proposed_again_not_even_a_failure_or_a_new_layout() -> None:
    desk = Desk(lambda program: None if "False" in program.text("main.py") else 1.0)
    desk.found([Program.of({"main.py": "ON = True\nN = 1\n"})])
    desk.record(1, 0, Proposal(Program.of({"main.py": "ON = False  # off\nN = 1\n"}), (Edge("base", "0.0"),)))
    seen = {tree_digest(program) for program in desk.programs.values()}
    for plan in range(2, 30):
        (proposal,) = await desk.step(GeneticProposer(), plan, 1)
        if proposal.program is None:
            assert proposal.failure == "no new program found"
            assert proposal.outcome is Outcome.INVALID
            assert proposal.edges[0].kind == "base"
        else:
            assert tree_digest(proposal.program) not in seen
            seen.add(tree_digest(proposal.program))


async def test_without_a_valid_candidate_there_is_a_failed_proposal() -> None:
    desk = Desk(lambda program: None)
    desk.found(toy("bayes"))
    made = await desk.step(GeneticProposer(), 1, 0, count=2)
    assert [p.program for p in made] == [None, None]
    assert "no recorded candidate is valid" in made[0].failure


async def test_only_the_plans_region_changes() -> None:
    base = Program.of({"main.py": toy("bayes")[0]["main.py"], "skill.md": "One.\nTwo.\nThree.\n"})
    desk = Desk(lambda program: 1.0)
    desk.found([base])
    for plan in range(1, 6):
        (proposal,) = await desk.step(GeneticProposer(), plan, 0, region=Region(("*.md",)))
        assert proposal.program is not None
        assert proposal.program["main.py"] == base["main.py"]


async def test_every_recorded_tree_is_read_once() -> None:
    desk = Desk(lambda program: 1.0)
    desk.found(toy("words_1nn", "bayes", "centroid"))
    proposer = GeneticProposer()
    costs = []
    for plan in range(1, 16):
        before = desk.reads
        await desk.step(proposer, plan, 0)
        costs.append(desk.reads - before)
    # One base and up to three donors; a base that yields nothing is drawn anew at most twice.
    assert max(costs[1:]) <= 12
    assert sum(costs[1:]) / len(costs[1:]) < 5
    before = desk.reads
    Memory().follow(desk.archive, desk.program)
    assert desk.reads - before == 3


@pytest.mark.parametrize("direction", ["max", "min"])
def test_better_candidates_are_bases_more_often(direction: Direction) -> None:
    values = iter(range(20))
    desk = Desk(lambda program: float(next(values)), direction)
    desk.found([Program.of({"main.py": f"N = {i}\n"}) for i in range(20)])
    memory = Memory()
    memory.follow(desk.archive, desk.program)
    rng = random.Random(1)
    options = Options()
    drawn = [memory.base(desk.archive, options, rng) for _ in range(600)]
    upper = sum(drawn.count(f"0.{i}") for i in range(10, 20))
    best, worst = ("0.19", "0.0") if direction == "max" else ("0.0", "0.19")
    assert (upper > 400) == (direction == "max")
    assert drawn.count(best) > 150
    assert 0 < drawn.count(worst) < 30
    donors = memory.donors(desk.archive, "0.3", options, rng)
    assert len(donors) == len(set(donors)) == options.donors
    assert "0.3" not in donors


def test_a_line_keeps_to_its_founders_and_what_came_of_them() -> None:
    desk = Desk(lambda program: 1.0)
    for index, name in enumerate(("asks", "shows", "counts")):
        proposal = Proposal(Program.of({"main.py": f"N = {index}\n"}), name=name)
        desk.record(0, index, proposal, operator="found")
    for index, base in enumerate(("0.0", "0.2", "1.0")):
        desk.record(1, index, Proposal(Program.of({"main.py": f"N = 1{index}\n"}), (Edge("base", base),)))
    memory = Memory()
    memory.follow(desk.archive, desk.program)
    rng = random.Random(1)
    drawn = {memory.base(desk.archive, Options(line=("asks", "shows")), rng) for _ in range(200)}
    assert drawn == {"0.0", "0.1", "1.0", "1.2"}
    assert {memory.base(desk.archive, Options(line=("counts",)), rng) for _ in range(50)} == {"0.2", "1.1"}
    assert memory.base(desk.archive, Options(line=("nobody",)), rng) is None
    assert len(set(memory.donors(desk.archive, "0.0", Options(line=("asks",), founders=1.0), rng))) > 1
    with pytest.raises(ConfigError, match="names of founding programs"):
        Options.of({"line": "asks"})


def test_moves_whose_children_beat_their_base_come_more_often() -> None:
    values = iter([1.0, *[2.0] * 6, *[0.5] * 9])
    desk = Desk(lambda program: next(values))
    desk.found([Program.of({"main.py": "N = 0\n"})])
    for i in range(15):
        claim = Claim(tags=("graft",) if i < 6 else ("statement",))
        desk.record(1, i, Proposal(Program.of({"main.py": f"N = {i + 1}\n"}), (Edge("base", "0.0"),), claim))
    memory = Memory()
    memory.follow(desk.archive, desk.program)
    plain, bent = Options().weights, memory.weights(desk.archive, Options())
    assert bent["graft"] == pytest.approx(plain["graft"] * 4 * 7 / 10)
    assert bent["statement"] == pytest.approx(plain["statement"] / 3)
    assert bent["constant"] == plain["constant"]
    assert memory.weights(desk.archive, Options(credit=False)) == plain


async def test_a_view_of_an_earlier_moment_gives_what_it_gave_then() -> None:
    desk = await search(toy("words_1nn", "bayes", "centroid"), TOY_WORTH, 2, proposals=6)
    view = desk.archive.snapshot()
    desk.rng = random.Random(9)
    early = await GeneticProposer().propose(Edit("genetic", 3), desk)  # type: ignore[arg-type]
    proposer = GeneticProposer()
    for plan in range(7, 12):
        await desk.step(proposer, plan, 2)
    desk.archive, desk.rng = view, random.Random(9)
    late = await proposer.propose(Edit("genetic", 3), desk)  # type: ignore[arg-type]
    assert [p.program for p in early] == [p.program for p in late]


async def test_one_proposer_serves_one_run_after_another() -> None:
    proposer = GeneticProposer()
    first = Desk(lambda program: 1.0)
    first.found(toy("words_1nn", "bayes"))
    await first.step(proposer, 1, 0)
    second = Desk(lambda program: 1.0)
    second.found(toy("centroid"))
    (made,) = await second.step(proposer, 1, 0)
    assert made.edges[0].source == "0.0"
    assert made.program is not None
    assert voters(made.program) <= {"CentroidVoter"}


async def test_options_of_a_plan_win_and_wrong_ones_are_refused() -> None:
    proposer = GeneticProposer(tries=5, weights={"graft": 0})
    desk = Desk(lambda program: 1.0)
    desk.found(toy("words_1nn", "bayes"))
    for plan in range(1, 8):
        (made,) = await desk.step(proposer, plan, 0)
        assert "graft" not in made.claim.tags
    (made,) = await desk.step(proposer, 8, 0, options={"weights": {"graft": 10_000}, "tries": 60})
    assert "graft" in made.claim.tags
    with pytest.raises(ConfigError, match="tries"):
        GeneticProposer(tries=0)
    with pytest.raises(ConfigError, match="Did you mean 'donors'"):
        await desk.step(proposer, 9, 0, options={"donor": 2})
