"""The conformance suite of the Domain port: subclass `DomainConformance`, say how to make the domain, run it with pytest."""

from __future__ import annotations

import ast
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from leadscrew.core.canonical import canonical_json, digest_of
from leadscrew.core.program import Program
from leadscrew.core.task import SPLITS, Answer, Instance, Score, Split
from leadscrew.core.trial import Outcome, Purpose, Trial
from leadscrew.ports import BadAnswer, Domain

NONSENSE: tuple[Any, ...] = (None, True, -1, 10**400, [], [[]], {}, {"answer": None}, [None] * 3, "\0", "x" * 100_000)
"""JSON values that are hardly ever a right answer."""


class DomainConformance(ABC):
    """What every domain must do. A subclass implements `domain`; pytest finds the tests by their names.

    Set `splits` where not all three hold instances, `overlap` where inputs may stand in two splits on purpose, and
    `nonsense` where some of `NONSENSE` is worth something.

    >>> class TestMine(DomainConformance):  # doctest: +SKIP
    ...     def domain(self): return MyDomain(seed=0)
    """

    splits: Sequence[Split] = SPLITS
    overlap = False
    nonsense: Sequence[Any] = NONSENSE

    @abstractmethod
    def domain(self) -> Domain:
        """Make the domain; every call must give an equal one."""

    def right(self, instance: Instance) -> Answer | None:
        """Return an answer that earns the best score of an instance, None if none is known. By default: the gold."""
        return Answer(instance.expected)

    # -- instances -----------------------------------------------------------------------------

    def test_ids_are_unique_over_all_splits(self) -> None:
        """An id names one instance; splits are not empty and instances know their own."""
        domain = self.domain()
        seen: set[str] = set()
        for split in self.splits:
            instances = domain.instances(split)
            assert instances, f"the split {split} is empty"
            for instance in instances:
                assert instance.split == split
                assert instance.id, "an instance has no id"
                assert instance.id not in seen, f"the id {instance.id!r} stands twice"
                seen.add(instance.id)

    def test_the_same_settings_give_the_same_instances(self) -> None:
        """Two domains made in the same way hold the same instances in the same order, and so does one asked twice."""
        a, b = self.domain(), self.domain()
        for split in self.splits:
            assert list(a.instances(split)) == list(a.instances(split)) == list(b.instances(split))
            assert a.split_digest(split) == b.split_digest(split)
        assert a.scorer_digest() == b.scorer_digest()

    def test_the_order_of_loading_does_not_matter(self) -> None:
        """Splits are loaded one by one, in any order and in other processes."""
        a, b = self.domain(), self.domain()
        backwards = {split: list(b.instances(split)) for split in reversed(self.splits)}
        assert {split: list(a.instances(split)) for split in self.splits} == backwards

    def test_digests_speak_for_their_data(self) -> None:
        """The digest of a split is that of ids, data sets, inputs and gold; all digests are 64 hex digits."""
        domain = self.domain()
        for split in self.splits:
            rows = [[i.id, i.dataset, i.input, i.expected] for i in domain.instances(split)]
            assert domain.split_digest(split) == digest_of(rows)
        digest = domain.scorer_digest()
        assert len(digest) == 64
        assert set(digest) <= set("0123456789abcdef")

    def test_inputs_and_gold_are_json(self) -> None:
        """They travel between processes and into digests."""
        for split in self.splits:
            for instance in self.domain().instances(split):
                canonical_json([instance.input, instance.expected])

    def test_no_input_stands_in_two_splits(self) -> None:
        """Case and white space do not make an input another one."""
        if self.overlap:
            return
        owner: dict[bytes, str] = {}
        for split in self.splits:
            for instance in self.domain().instances(split):
                key = canonical_json(_plain(instance.input))
                assert owner.setdefault(key, split) == split, f"{instance.id} repeats an input of {owner[key]}"

    # -- programs ------------------------------------------------------------------------------

    def test_baselines_are_programs_for_the_interface(self) -> None:
        """Baselines and the seed hold the entry file inside the exposed region; Python parses it."""
        domain = self.domain()
        programs = dict(domain.baselines())
        seed = domain.seed()
        if seed is not None:
            programs["(seed)"] = seed
        for name, program in programs.items():
            assert isinstance(program, Program), name
            if domain.interface.operation == "artifact" or domain.interface.command:
                continue
            entry = domain.interface.entry
            assert entry in program.part(domain.interface.region), f"{name} has no {entry}"
            if entry.endswith(".py"):
                ast.parse(program.text(entry), entry)

    # -- scores --------------------------------------------------------------------------------

    def test_nonsense_is_refused_or_worth_nothing(self) -> None:
        """Only `BadAnswer` may be raised for an answer; what is scored nevertheless is finite and not above the floor."""
        domain = self.domain()
        primary = domain.objectives[0]
        instance = domain.instances(self.splits[-1])[0]
        for value in self.nonsense:
            if value == instance.expected:
                continue
            refusal = "none"
            try:
                score = domain.score(instance, Answer(value))
            except BadAnswer as error:
                refusal = str(error)
            else:
                self._check(score)
                assert not primary.better(score.value, primary.floor), f"{str(value)[:40]!r} earned {score.value}"
            assert 0 < len(refusal) < 2000, "a refusal says why, and quotes an answer in part only"

    def test_the_right_answer_is_worth_the_most(self) -> None:
        """It is not worse than the floor, and it reaches the ceiling where that is the best there can be."""
        domain = self.domain()
        primary = domain.objectives[0]
        for instance in domain.instances(self.splits[0])[:20]:
            answer = self.right(instance)
            if answer is None:
                return
            score = domain.score(instance, answer)
            self._check(score)
            assert not primary.better(primary.floor, score.value)
            if primary.ceiling is not None and score.correct is not None:
                assert score.correct
                assert score.value == primary.ceiling

    def _check(self, score: Score) -> None:
        assert isinstance(score, Score)
        assert math.isfinite(score.value)
        assert all(math.isfinite(cost) for cost in score.costs.values())
        canonical_json(score.detail)

    def test_the_aggregate_divides_by_what_was_planned(self) -> None:
        """A failure counts as the floor; a missing or `infra` trial leaves the value open."""
        domain = self.domain()
        primary = domain.objectives[0]
        instances = domain.instances(self.splits[-1])[:4]
        good = primary.floor + 1.0 if primary.direction == "max" else primary.floor - 1.0
        fine = [_trial(i, Outcome.OK, good) for i in instances]
        whole = domain.aggregate(fine, len(fine)).value
        assert whole is not None
        failed = domain.aggregate([_trial(instances[0], Outcome.CRASH, None), *fine[1:]], len(fine)).value
        assert failed is not None
        assert primary.better(whole, failed)
        assert domain.aggregate(fine[1:], len(fine)).value is None
        assert domain.aggregate([_trial(instances[0], Outcome.INFRA, None), *fine[1:]], len(fine)).value is None

    # -- secrecy and papers --------------------------------------------------------------------

    def test_masks_are_absolute_paths(self) -> None:
        """They are told once and for all, none inside another."""
        masks = list(self.domain().masks())
        assert all(os.path.isabs(path) for path in masks)
        assert not any(b.startswith(a.rstrip("/") + "/") for a, b in pairwise(sorted(masks)))

    def test_probes_are_texts(self) -> None:
        """Mounted files are searched for them."""
        for split in self.splits:
            assert all(isinstance(probe, str) and probe for probe in self.domain().probes(split))

    def test_the_papers_are_in_order(self) -> None:
        """Objectives have directions, floors below ceilings, names without repeats; provenance names its source."""
        domain = self.domain()
        names = [objective.name for objective in domain.objectives]
        assert names
        assert len(set(names)) == len(names)
        for objective in domain.objectives:
            if objective.ceiling is not None:
                assert objective.better(objective.ceiling, objective.floor)
        assert domain.provenance.source
        assert domain.provenance.licence
        assert domain.name


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _trial(instance: Instance, outcome: Outcome, score: float | None) -> Trial:
    return Trial(
        key=instance.id,
        program="0" * 64,
        instance=instance.id,
        split=instance.split,
        dataset=instance.dataset,
        repeat=0,
        purpose=Purpose.SEARCH,
        outcome=outcome,
        score=score,
    )
