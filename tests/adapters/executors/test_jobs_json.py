"""Jobs survive the way through JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from leadscrew.adapters.executors.jobs import job_from_json, job_to_json
from leadscrew.core.program import File, Program, Region
from leadscrew.core.task import Interface, Limits, ProgramEnvironment
from leadscrew.ports import Access, BoxTrial, Item, Job

names = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
programs = st.dictionaries(names, st.builds(File, st.binary(max_size=40), st.booleans()), max_size=4).map(Program)
words = st.lists(names, max_size=3).map(tuple)
jobs = st.builds(
    Job,
    program=programs,
    interface=st.builds(
        Interface,
        operation=st.sampled_from(["solve", "predict", "act", "artifact", "workspace"]),
        entry=names,
        command=words,
        region=st.builds(Region, words, words),
        mode=st.sampled_from(["online", "offline"]),
        deterministic=st.booleans(),
    ),
    limits=st.builds(Limits, cpu_s=st.floats(0.1, 1e4), memory_mb=st.integers(1, 10**6)),
    trials=st.lists(st.builds(BoxTrial, names, values, st.integers(0, 2**63), names), max_size=4).map(tuple),
    train=st.lists(st.builds(Item, names, values, values, names), max_size=4).map(tuple),
    environment=st.builds(ProgramEnvironment, words, names),
    masks=words,
    purpose=st.sampled_from(["evaluate", "grade", "smoke", "propose", "ask"]),
    fresh=st.booleans(),
    access=st.none() | st.builds(Access, role=names, plan=st.integers(0, 9), candidate=names),
)


@given(jobs)
def test_a_job_comes_back_equal_from_json_text(job: Job) -> None:
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job
