"""The conformance suite of the Store port: subclass `StoreSuite`, say how to make a store, and run it with pytest."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from leadscrew.core.budget import Spend
from leadscrew.core.program import File, Program, Region
from leadscrew.core.proposal import (
    Ask,
    Claim,
    Edge,
    Edit,
    Judgement,
    Measure,
    Plan,
    Proposal,
    Record,
    Verdict,
)
from leadscrew.core.trial import Outcome, Purpose, Trace
from leadscrew.errors import NotFoundError, RefusedError, UsageError
from leadscrew.ports import Store, StoredPlan
from leadscrew.testing.calls import CallSuite, raises
from leadscrew.testing.samples import (
    PROGRAM,
    sample_candidate,
    sample_edges,
    sample_judgement,
    sample_proposal,
    sample_trial,
    write_run,
)

RECORD_KINDS: Mapping[str, Mapping[str, str]] = {"visit": {"times": "int", "note": "str?"}}
"""The record kinds that a suite's stores must be made with."""


class StoreSuite(CallSuite):
    """What every store must do. A subclass implements `create` and `open`; pytest finds the tests by their names.

    >>> class TestMyStore(StoreSuite):  # doctest: +SKIP
    ...     def create(self, folder): return MyStore.create(folder, record_kinds=RECORD_KINDS)
    ...     def open(self, folder, readonly=False): return MyStore.open(folder, readonly=readonly)
    """

    @abstractmethod
    def create(self, folder: Path) -> Store:
        """Begin a run with seed 7, the configuration `{"method": "suite"}` and `RECORD_KINDS`, open for writing."""

    @abstractmethod
    def open(self, folder: Path, readonly: bool = False) -> Store:
        """Open a run that `create` began."""

    # -- round trips ---------------------------------------------------------------------------

    def test_everything_comes_back_as_it_was_written(self, tmp_path: Path) -> None:
        """A whole run is read back equal, by the writer before and by a reader after the commit."""
        store = self.create(tmp_path)
        write_run(store, plans=4)
        _check_run(store, plans=4)
        store.commit()
        reader = self.open(tmp_path, readonly=True)
        _check_run(reader, plans=4)
        reader.close()
        store.close()
        again = self.open(tmp_path)
        _check_run(again, plans=4)
        again.close()

    def test_every_kind_of_plan_comes_back(self, tmp_path: Path) -> None:
        """Edit with regions and options, Measure and Ask survive a round trip, and come in order of their numbers."""
        store = self.create(tmp_path)
        plans: list[Plan] = [
            Edit("genetic", 3, ("0.0",), Region(("skills/**",), ("skills/meta/**",)), {"level": "full"}, {"rate": 0.5}),
            Measure(("0.0", "1.2"), Purpose.NOISE, "train", ("i1", "i2"), (1, 2, 3)),
            Ask("0.0", {"q": [1, None]}, "select.py", {"type": "object"}),
            Edit("found"),
        ]
        for number in (2, 0, 3, 1):
            origin = "inbox" if number == 3 else "method"
            store.add_plan(StoredPlan(number, plans[number], max(0, number - 1), origin))  # type: ignore[arg-type]
        store.commit()
        assert [p.plan for p in store.plans()] == plans
        assert [p.number for p in store.plans()] == [0, 1, 2, 3]
        assert [p.origin for p in store.plans()] == ["method", "method", "method", "inbox"]
        store.close()

    def test_programs_are_stored_by_content(self, tmp_path: Path) -> None:
        """Binary files, modes and empty files come back; a tree put twice is one tree; an unknown one is refused."""
        store = self.create(tmp_path)
        tree = Program.of({"run.sh": File(b"#!/bin/sh\n", True), "data.bin": bytes(range(256)), "pkg/empty.py": ""})
        digest = store.put_program(tree)
        assert digest == tree.digest
        assert store.put_program(tree) == digest
        child = tree.with_files({"pkg/empty.py": None, "pkg/größe.py": "x = 1\n"})
        store.put_program(child)
        store.commit()
        assert dict(store.program(digest)) == dict(tree)
        assert dict(store.program(child.digest)) == dict(child)
        with raises(NotFoundError):
            store.program("0" * 64)
        store.close()

    def test_texts_that_are_no_unicode_survive(self, tmp_path: Path) -> None:
        """Programs print anything: lone surrogates, NUL and very long texts must not break a write."""
        store = self.create(tmp_path)
        odd = "a\ud800b\0c\x85\u2028" + "é" * 3000
        store.add_plan(StoredPlan(0, Edit("found"), 0))
        proposal = Proposal(None, (), Claim("\udfff", (odd,), "", {"k": odd}), odd, odd, Outcome.INVALID, odd)
        store.add_proposal(0, 0, proposal)
        trial = replace(sample_trial(0, Outcome.CRASH), message=odd, instance="i\ud801", detail={"text": odd})
        store.add_trial(trial)
        trace = Trace(answer=[odd, math.inf], stdout=odd, stderr=odd, calls=({"prompt": odd},), files={"a": odd})
        digest = store.put_trace(trace)
        store.add_event("odd", {"text": odd})
        store.commit()
        assert store.proposals(0) == [proposal]
        assert store.find_trial(trial.key) == trial
        assert store.trace(digest) == trace
        assert [data for _, _, data in store.events("odd")] == [{"text": odd}]
        store.verify()
        store.close()

    def test_traces_of_every_size_come_back(self, tmp_path: Path) -> None:
        """An empty trace has no digest; a large one is stored outside the rows; equal traces share one digest."""
        store = self.create(tmp_path)
        large = Trace(stdout="".join(str(i * i) for i in range(40_000)))
        assert store.put_trace(Trace()) == ""
        assert store.trace("") == Trace()
        digest = store.put_trace(large)
        assert store.put_trace(large) == digest
        small = store.put_trace(Trace(answer={"b": 1, "a": 2}))
        assert small == store.put_trace(Trace(answer={"a": 2, "b": 1}))
        store.commit()
        store.verify()
        reader = self.open(tmp_path, readonly=True)
        assert reader.trace(digest) == large
        assert reader.trace(small).answer == {"a": 2, "b": 1}
        with raises(NotFoundError):
            reader.trace("0" * 64)
        reader.close()
        store.close()

    # -- trials --------------------------------------------------------------------------------

    def test_a_trial_is_found_by_its_key_and_infra_never_is(self, tmp_path: Path) -> None:
        """The evaluation cache returns finished trials only, and the first one of a key."""
        store = self.create(tmp_path)
        infra = sample_trial(1, Outcome.INFRA)
        assert store.find_trial(infra.key) is None
        assert store.add_trial(infra)
        assert store.add_trial(infra)
        assert store.find_trial(infra.key) is None
        assert store.add_trial(sample_trial(1, Outcome.OK))
        assert not store.add_trial(replace(sample_trial(1, Outcome.OK), score=99.0))
        store.commit()
        assert store.find_trial(infra.key) == sample_trial(1, Outcome.OK)
        assert [t.outcome for t in store.trials(infra.program)] == [Outcome.INFRA, Outcome.INFRA, Outcome.OK]
        store.close()

    def test_trials_are_chosen_by_split_and_purpose_in_a_fixed_order(self, tmp_path: Path) -> None:
        """The order of reading does not tell which trial finished first."""
        orders = []
        for turn, numbers in enumerate(([1, 2, 3], [3, 1, 2])):
            store = self.create(tmp_path / str(turn))
            for number in numbers:
                store.add_trial(sample_trial(number))
            store.add_trial(replace(sample_trial(4), split="train", purpose=Purpose.NOISE, repeat=2))
            orders.append(store.trials(PROGRAM.digest))
            assert [t.repeat for t in store.trials(PROGRAM.digest, "train")] == [2]
            assert [t.split for t in store.trials(PROGRAM.digest, purpose=Purpose.SEARCH)] == ["val"] * 3
            assert store.trials(PROGRAM.digest, "val", Purpose.NOISE) == []
            assert store.trials("f" * 64) == []
            store.close()
        assert orders[0] == orders[1]

    # -- rules ---------------------------------------------------------------------------------

    def test_what_was_not_committed_never_happened(self, tmp_path: Path) -> None:
        """Closing without a commit loses the whole open step and nothing else."""
        store = self.create(tmp_path)
        write_run(store, plans=2)
        store.commit()
        head, digest = store.chain_head(), store.archive_digest()
        store.add_plan(StoredPlan(2, Edit("genetic"), 1))
        store.add_trial(sample_trial(77))
        store.close()
        store = self.open(tmp_path)
        assert store.find_trial(sample_trial(77).key) is None
        assert [p.number for p in store.plans()] == [0, 1]
        assert (store.chain_head(), store.archive_digest()) == (head, digest)
        store.verify()
        store.close()

    def test_edges_point_from_older_to_newer(self, tmp_path: Path) -> None:
        """A candidate can name stored candidates only: so no circle can arise."""
        store = self.create(tmp_path)
        write_run(store, plans=1)
        store.add_plan(StoredPlan(1, Edit("genetic"), 1))
        for source in ("1.0", "5.0", "nonsense"):
            with raises(ValueError):
                store.add_candidate(sample_candidate(1, edges=(Edge("parent", source),)))
        with raises(ValueError):
            store.add_judgement(1, Judgement((Verdict("9.9", "kept", "no such candidate"),)))
        store.add_candidate(sample_candidate(1, edges=(Edge("parent", "0.0"), Edge("donor", "0.0", {"part": "f"}))))
        store.commit()
        assert [c.sources() for c in store.candidates()] == [(), ("0.0", "0.0")]
        store.verify()
        store.close()

    def test_nothing_is_recorded_twice(self, tmp_path: Path) -> None:
        """A second plan, proposal, candidate or judgement of the same number is refused."""
        store = self.create(tmp_path)
        write_run(store, plans=1)
        with raises(ValueError):
            store.add_plan(StoredPlan(0, Edit("found"), 0))
        with raises(ValueError):
            store.add_proposal(0, 0, Proposal(None, failure="again"))
        with raises(ValueError):
            store.add_candidate(sample_candidate(0))
        with raises(ValueError):
            store.add_judgement(0, Judgement())
        store.commit()
        store.verify()
        _check_run(store, plans=1)
        store.close()

    def test_records_must_fit_what_the_method_declared(self, tmp_path: Path) -> None:
        """An unknown kind or field, a missing one and a wrong type are refused before anything is written."""
        store = self.create(tmp_path)
        store.add_plan(StoredPlan(0, Edit("found"), 0))
        wrong = [
            Record("unknown", "a", {}),
            Record("visit", "a", {}),
            Record("visit", "a", {"times": "2"}),
            Record("visit", "a", {"times": True}),
            Record("visit", "a", {"times": 1, "other": 2}),
        ]
        for record in wrong:
            with raises(UsageError):
                store.add_judgement(0, Judgement((), (record,)))
        records = (Record("visit", "a", {"times": 1}), Record("visit", "a", {"times": 2, "note": "x"}))
        store.add_judgement(0, Judgement((), records))
        store.commit()
        assert [list(found) for _, _, found in store.judgements()] == [list(records)]
        store.close()

    def test_a_value_that_cannot_be_stored_leaves_nothing(self, tmp_path: Path) -> None:
        """A domain or method that returns something other than JSON gets an error, and no half-written candidate stays."""
        store = self.create(tmp_path)
        write_run(store, plans=1)
        store.commit()
        head = store.chain_head()
        store.add_plan(StoredPlan(1, Edit("genetic"), 1))
        odd = {"path": Path("x")}
        with raises(UsageError):
            store.add_candidate(sample_candidate(1, edges=(Edge("parent", "0.0"), Edge("meta", "0.0", odd))))
        with raises(UsageError):
            store.add_judgement(1, Judgement((Verdict("0.0", "kept", ""), Verdict("0.0", "kept", "", facts=odd))))
        with raises(UsageError):
            store.add_trial(replace(sample_trial(5), detail=odd))
        store.commit()
        assert store.chain_head() != head
        assert [c.id for c in store.candidates()] == ["0.0"]
        assert [plan for plan, _, _ in store.judgements()] == [0]
        assert store.find_trial(sample_trial(5).key) is None
        store.verify()
        store.close()

    def test_judgements_come_in_the_order_of_their_application(self, tmp_path: Path) -> None:
        """The order of completion is remembered apart from the numbers of the plans."""
        store = self.create(tmp_path)
        for number in range(3):
            store.add_plan(StoredPlan(number, Edit("found"), 0))
        for number in (2, 0, 1):
            store.add_judgement(number, Judgement())
        store.commit()
        assert [plan for plan, _, _ in store.judgements()] == [2, 0, 1]
        store.close()

    def test_readers_neither_write_nor_block(self, tmp_path: Path) -> None:
        """A reader sees committed state while the writer goes on, and cannot write."""
        store = self.create(tmp_path)
        write_run(store, plans=1)
        store.commit()
        reader = self.open(tmp_path, readonly=True)
        stream = iter(reader.candidates())
        next(stream)
        store.add_event("later", {})
        store.commit()
        assert [kind for _, kind, _ in reader.events("later")] == ["later"]
        assert reader.chain_head() == store.chain_head()
        with raises(RefusedError):
            reader.add_event("mine", {})
        reader.close()
        store.close()

    def test_one_process_writes(self, tmp_path: Path) -> None:
        """A second writer is refused while the first is open, and let in afterwards."""
        store = self.create(tmp_path)
        with raises(RefusedError):
            self.open(tmp_path)
        with raises(RefusedError):
            self.create(tmp_path)
        store.close()
        self.open(tmp_path).close()

    # -- chain and digest ----------------------------------------------------------------------

    def test_the_chain_grows_with_every_commit(self, tmp_path: Path) -> None:
        """The head changes with every step, survives reopening, and an idle commit adds nothing."""
        store = self.create(tmp_path)
        heads = [store.chain_head()]
        for number in range(3):
            store.add_event("step", {"n": number})
            store.commit()
            heads.append(store.chain_head())
        links = store.verify()
        store.commit()
        assert store.verify() == links
        assert store.chain_head() == heads[-1]
        assert len(set(heads)) == 4
        assert all(len(head) == 64 for head in heads)
        store.close()
        store = self.open(tmp_path)
        assert store.chain_head() == heads[-1]
        store.close()

    def test_the_archive_digest_tells_results_not_circumstances(self, tmp_path: Path) -> None:
        """Order of completion, spend, commits, events and unjudged plans leave the digest alone; results do not."""
        plain = self.create(tmp_path / "plain")
        write_run(plain, plans=3)
        other = self.create(tmp_path / "other")
        for number in (2, 1, 0):
            other.add_trial(replace(sample_trial(number), spend=Spend(1, 999, 999), message="slow", trace=""))
            other.commit()
        other.add_event("note", {"text": "elsewhere"})
        write_run(other, plans=3, trials=False)
        other.add_plan(StoredPlan(3, Edit("genetic"), 2))
        other.add_trial(replace(sample_trial(50), program="e" * 64))
        assert other.archive_digest() == plain.archive_digest()
        other.add_judgement(3, Judgement())
        assert other.archive_digest() != plain.archive_digest()
        changed = self.create(tmp_path / "changed")
        write_run(changed, plans=3, score=0.25)
        assert changed.archive_digest() != plain.archive_digest()
        for store in (plain, other, changed):
            store.close()


def _check_run(store: Store, *, plans: int) -> None:
    candidates = [sample_candidate(n, edges=sample_edges(n)) for n in range(plans)]
    assert [p.number for p in store.plans()] == list(range(plans))
    assert list(store.candidates()) == candidates
    for number, candidate in enumerate(candidates):
        assert store.proposals(number) == [sample_proposal(candidate)]
        assert store.measured(number) == {candidate.id: {"value": 0.1}}
    assert [(n, Judgement(tuple(v), tuple(r))) for n, v, r in store.judgements()] == [
        (n, sample_judgement(n)) for n in range(plans)
    ]
    assert [data for _, _, data in store.events("done")] == [{"plan": n} for n in range(plans)]
    assert list(store.trials(PROGRAM.digest)) == [sample_trial(n) for n in range(plans)]
    assert store.spend() == Spend(plans, 12 * plans, 15 * plans)
