"""Property: every noun comes back from the store exactly as it was written."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leadscrew.adapters.stores import codec
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Spend
from leadscrew.core.call import Call, CallReply
from leadscrew.core.program import File, Program, Region, check_path, is_noise
from leadscrew.core.proposal import Ask, Candidate, Claim, Edge, Edit, Judgement, Measure, Proposal, Record, Verdict
from leadscrew.core.task import Aggregate
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trace, Trial
from leadscrew.errors import ProgramError
from leadscrew.ports import StoredPlan

BUILDING = [HealthCheck.too_slow, HealthCheck.data_too_large]
SHORT = st.text(st.characters(exclude_categories=()), max_size=8)
# Texts of more than 400 characters are stored apart.
TEXT = SHORT | st.builds(lambda text, n: text * n, SHORT, st.integers(50, 450))
KEY = st.integers(0, 2**256 - 1).map(lambda n: f"{n:064x}") | st.text(max_size=8)
NUMBER = st.floats(allow_nan=False, allow_infinity=True)
INT = st.integers(0, 2**50)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(SHORT, inner, max_size=2),
    max_leaves=3,
)
MAPPING = st.dictionaries(SHORT, JSON, max_size=2)
COSTS = st.dictionaries(SHORT, NUMBER, max_size=2)
SPLIT = st.sampled_from(["train", "val", "test"])
MONEY = st.none() | INT
SPEND = st.builds(Spend, INT, INT, INT, INT, INT, INT, MONEY)
CALL = st.builds(Call, SHORT.map(repr), st.integers(-1, 2), TEXT, KEY, KEY, INT, TEXT, MAPPING, TEXT, KEY, INT, MONEY)
REPLY = st.builds(
    CallReply, st.sampled_from(["ok", "failed", "refused"]), st.sampled_from(["upstream", "cache", "record"]), MAPPING, INT,
    INT, SPEND, st.sampled_from(["reported", "missing", "implausible"]), INT, st.integers(0, 3), INT, TEXT,
)  # fmt: skip


def _path(text: str) -> bool:
    try:
        return not is_noise(check_path(text))
    except ProgramError:
        return False


PATH = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(_path)


def _tree(files: dict[str, File]) -> Program | None:
    try:
        return Program(files)
    except ProgramError:  # a name that is both a file and a folder
        return None


PROGRAM = (
    st.dictionaries(PATH, st.builds(File, st.binary(max_size=300), st.booleans()), max_size=6)
    .map(_tree)
    .filter(lambda tree: tree is not None)
)
CLAIM = st.builds(Claim, TEXT, st.lists(TEXT, max_size=3).map(tuple), TEXT, MAPPING)
PLAN = st.one_of(
    st.builds(
        Edit,
        TEXT,
        INT,
        st.lists(TEXT, max_size=2).map(tuple),
        st.builds(Region, st.lists(TEXT, max_size=2).map(tuple), st.lists(TEXT, max_size=2).map(tuple)),
        MAPPING,
        MAPPING,
    ),
    st.builds(
        Measure,
        st.lists(TEXT, max_size=2).map(tuple),
        st.sampled_from(Purpose),
        SPLIT,
        st.lists(TEXT, max_size=2).map(tuple),
        st.lists(INT, max_size=3).map(tuple),
    ),
    st.builds(Ask, TEXT, MAPPING, TEXT, MAPPING),
)
TRACE = st.builds(
    Trace, JSON, TEXT, TEXT, st.lists(MAPPING, max_size=2).map(tuple), st.dictionaries(TEXT, TEXT, max_size=2)
)


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    outcome = draw(st.sampled_from(Outcome))
    return Trial(
        key=draw(KEY), program=draw(KEY), instance=draw(TEXT), split=draw(SPLIT), dataset=draw(TEXT), repeat=draw(INT),
        purpose=draw(st.sampled_from(Purpose)), outcome=outcome, score=draw(NUMBER) if outcome is Outcome.OK else None,
        costs=draw(COSTS), correct=draw(st.none() | st.booleans()), message=draw(TEXT), output_digest=draw(KEY),
        spend=draw(SPEND), trace=draw(KEY), detail=draw(MAPPING),
    )  # fmt: skip


@st.composite
def evaluations(draw: st.DrawFn, split: str) -> Evaluation:
    names = tuple(draw(st.lists(TEXT, max_size=4, unique=True)))
    values = array("d", draw(st.lists(NUMBER, min_size=len(names), max_size=len(names))))
    aggregate = Aggregate(draw(st.none() | NUMBER), draw(COSTS), draw(COSTS))
    failures = draw(st.dictionaries(st.sampled_from([str(o) for o in Outcome]), INT, max_size=3))
    return Evaluation(
        draw(KEY), split, draw(INT), draw(INT), names, values, aggregate, failures, draw(st.booleans())  # type: ignore[arg-type]
    )  # fmt: skip


@st.composite
def candidates(draw: st.DrawFn, index: int) -> Candidate:
    kinds = st.sampled_from(["parent", "donor", "base", "inspiration", "evidence", "triggered_by", "meta"])
    older = [Edge(draw(kinds), f"0.{draw(st.integers(0, index - 1))}", draw(MAPPING)) for _ in range(min(index, 2))]
    splits = draw(st.lists(SPLIT, unique=True, max_size=3))
    return Candidate(
        f"0.{index}", 0, index, draw(KEY), draw(TEXT), draw(TEXT), draw(st.sampled_from(["evaluated", "failed", "held"])),
        draw(st.sampled_from(Outcome)), draw(TEXT), tuple(older), draw(CLAIM),
        {split: draw(evaluations(split)) for split in splits}, draw(TEXT),
    )  # fmt: skip


@contextmanager
def fresh() -> Iterator[SQLiteStore]:
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"state": {"value": "any?"}}
        with SQLiteStore.create(Path(folder), config={}, seed=0, record_kinds=kinds) as store:
            yield store


def reread(store: SQLiteStore) -> SQLiteStore:
    """Commit, verify, and return what another process would read."""
    store.commit()
    store.verify()
    return SQLiteStore.open(store.path, readonly=True)


@settings(max_examples=15, deadline=None, suppress_health_check=BUILDING)
@given(st.lists(trials(), max_size=4))
def test_trials(given_trials: list[Trial]) -> None:
    with fresh() as store:
        stored = [t for t in given_trials if store.add_trial(t)]
        with reread(store) as reader:
            for trial in stored:
                assert trial in reader.trials(trial.program)
                if trial.outcome is not Outcome.INFRA:
                    found = reader.find_trial(trial.key)
                    assert found == next(t for t in stored if t.key == trial.key and t.outcome is not Outcome.INFRA)
            total = sum((Spend(t.spend.trials, t.spend.cpu_ms, t.spend.wall_ms) for t in stored), Spend())
            assert store.spend() == total
            assert reader.spend() == total


@settings(max_examples=15, deadline=None, suppress_health_check=BUILDING)
@given(st.lists(st.tuples(CALL, st.none() | REPLY), max_size=4))
def test_calls(given_calls: list[tuple[Call, CallReply | None]]) -> None:
    with fresh() as store:
        stored = [(store.add_call(call), call, reply) for call, reply in given_calls]
        for number, _, reply in reversed(stored):
            if reply is not None:
                store.add_reply(number, reply)
        total = sum((call.cost(reply) for call, reply in given_calls), Spend())
        with reread(store) as reader:
            assert list(reader.calls()) == stored
            for _, call, _ in stored:
                equal = [(c, r) for c, r in given_calls if (c.request, c.occurrence) == (call.request, call.occurrence)]
                own = [r for c, r in equal if c.scope == call.scope and r is not None and r.status == "ok"]
                shared = [r for c, r in equal if c.share == call.share != "" and r is not None and r.status == "ok"]
                assert reader.find_reply(call.scope, call.request, call.occurrence) == next(iter(own), None)
                assert reader.find_shared(call.share, call.request, call.occurrence) == next(iter(shared), None)
            assert store.spend() == reader.spend() == total
            assert sum(reader.call_spend().values(), Spend()) == total


@settings(max_examples=15, deadline=None, suppress_health_check=BUILDING)
@given(
    st.lists(PLAN, max_size=4), st.lists(st.tuples(PROGRAM, CLAIM, TEXT, TEXT, st.sampled_from(Outcome)), max_size=3)
)
def test_plans_and_proposals(plans: list[Any], parts: list[Any]) -> None:
    proposals = [
        Proposal(
            None if n % 3 == 2 else tree,
            (Edge("base", name, {"why": log}), Edge("meta", log)),
            claim,
            name,
            log,
            outcome,
            name,
        )
        for n, (tree, claim, name, log, outcome) in enumerate(parts)
    ]
    with fresh() as store:
        stored = [StoredPlan(n, plan, n // 2, "inbox" if n % 2 else "method") for n, plan in enumerate(plans)]
        for plan in stored:
            store.add_plan(plan)
        if stored:
            for index, proposal in enumerate(proposals):
                store.add_proposal(0, index, proposal)
        with reread(store) as reader:
            assert list(reader.plans()) == stored
            assert reader.proposals(0) == (proposals if stored else [])


@settings(max_examples=15, deadline=None, suppress_health_check=BUILDING)
@given(st.data())
def test_candidates_and_judgements(data: st.DataObject) -> None:
    found = [data.draw(candidates(index)) for index in range(data.draw(st.integers(1, 3)))]
    verdicts = tuple(
        Verdict(c.id, data.draw(TEXT), data.draw(TEXT), data.draw(st.booleans()), data.draw(MAPPING)) for c in found
    )
    records = tuple(Record("state", data.draw(TEXT), {"value": data.draw(JSON)}) for _ in range(2))
    extra = data.draw(MAPPING)
    with fresh() as store:
        store.add_plan(StoredPlan(0, Edit("found"), 0))
        for candidate in found:
            store.add_candidate(candidate)
        store.add_measured(0, "0.0", extra)
        store.add_judgement(0, Judgement(verdicts, records))
        store.add_event("extra", extra)
        with reread(store) as reader:
            assert list(reader.candidates()) == found
            assert reader.candidates_of(0) == found
            assert [(n, tuple(v), tuple(r)) for n, v, r in reader.judgements()] == [(0, verdicts, records)]
            assert reader.judgement(0) == (list(verdicts), list(records))
            assert reader.measured(0) == {"0.0": extra}
            assert [d for _, _, d in reader.events()] == [extra]
            assert reader.archive_digest() == store.archive_digest()


@settings(max_examples=15, deadline=None, suppress_health_check=BUILDING)
@given(st.lists(PROGRAM, max_size=3), st.lists(TRACE, max_size=3))
def test_programs_and_traces(trees: list[Program], traces: list[Trace]) -> None:
    with fresh() as store:
        for tree in trees:
            assert store.put_program(tree) == tree.digest
        digests = [store.put_trace(trace) for trace in traces]
        with reread(store) as reader:
            assert [reader.program(tree.digest) for tree in trees] == trees
            assert [reader.trace(digest) for digest in digests] == traces


@given(st.binary(max_size=5000))
def test_packing(data: bytes) -> None:
    packed = codec.pack(data)
    assert codec.unpack(packed) == data
    assert len(packed) <= len(data) + 1


@given(st.lists(st.floats(), max_size=300))
def test_values(values: list[float]) -> None:
    """NaN stands for "nothing to count" and must stay one."""
    assert codec.values_out(codec.values_in(values)).tobytes() == array("d", values).tobytes()


@given(st.none() | st.floats())
def test_numbers(number: float | None) -> None:
    back = codec.number_out(codec.number_in(number))
    assert back == number or (number != number and back != back)


@settings(deadline=None)
@given(st.sampled_from(["train", "val"]).flatmap(evaluations))
def test_evaluations_as_json(evaluation: Evaluation) -> None:
    data = codec.loads(codec.dumps(codec.evaluation_to_json(evaluation)), {})
    assert codec.evaluation_from_json(data) == evaluation


def test_what_json_cannot_hold_is_refused_with_a_reason() -> None:
    from leadscrew.errors import UsageError

    with pytest.raises(UsageError, match="cannot be stored"):
        codec.dumps({"path": Path("x")})
