"""Boxes with a door to the gateway: their life, their clock, and who is let in when."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.executors import LocalExecutor, boxes, local
from leadscrew.adapters.executors.visits import input_chars, with_visit
from leadscrew.adapters.sandboxes import choose
from leadscrew.core.budget import Caps, Spend
from leadscrew.core.task import Interface
from leadscrew.core.trial import Outcome, Trace
from leadscrew.errors import InfrastructureError
from leadscrew.ports import BoxReply, BoxTrial, Item, Job, Sandbox, Visit, Visited
from leadscrew.testing.doors import FakeDoor, FakeGateway
from leadscrew.testing.executor import GOOD, LIMITS, job, run
from leadscrew.testing.executor_models import ACCESS, ASKS, STUDENT, asking

_SANDBOX = choose("bubblewrap")


async def answers(made: Job, gateway: FakeGateway, sandbox: Sandbox = _SANDBOX, **more: Any) -> list[BoxReply]:
    executor = LocalExecutor(sandbox, **{"workers": 1, "spares": 0, "gateway": gateway, **more})
    try:
        return await run(executor, made)
    finally:
        await executor.close()
        assert not gateway.doors


# -- doors of boxes --------------------------------------------------------------------------------


async def test_spare_boxes_have_doors_of_their_own_and_are_kept_apart_from_those_without() -> None:
    gateway = FakeGateway()
    executor = LocalExecutor(_SANDBOX, 1, spares=1, gateway=gateway)
    try:
        for _ in range(3):
            await run(executor, asking(ASKS))
            await run(executor, job(GOOD))
        kinds = executor._pool._waiting
        assert [len(waiting) for waiting in kinds.values()] == [1, 1]
        spares = [await waiting[0] for waiting in kinds.values()]
        assert sorted(box.door is not None for box in spares) == [False, True]
        assert gateway.opened == 4, "a job takes the spare of its kind"
    finally:
        await executor.close()
    assert not gateway.doors


@pytest.mark.parametrize("name", ["bubblewrap", "none"])
async def test_official_variables_and_our_own_lead_to_the_door(name: str) -> None:
    source = """
import http.client, os, urllib.request
from leadscrew_guest import chat, left, llm, scores
def solve(input):
    sent = b'{"messages": [{"role": "user", "content": "by hand"}], "model": "mine"}'
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", sent)
    byhand = urllib.request.urlopen(request).read().decode()
    return [
        llm("a", system="s", max_tokens=3, temperature=0.5, stop=["x"], seed=1),
        chat([{"role": "user", "content": "b"}], tools=[])["choices"][0]["message"],
        scores("c", ["x", "y"]),
        left(),
        byhand,
        os.environ["OPENAI_BASE_URL"] == os.environ["ANTHROPIC_BASE_URL"] + "/v1",
        [os.environ[f"{who}_API_KEY"] for who in ("OPENAI", "ANTHROPIC")],
    ]
"""
    bodies: list[Mapping[str, Any]] = []

    def answer(body: Mapping[str, Any]) -> str:
        bodies.append(body)
        return f"to {body['messages'][-1]['content']}"

    (reply,) = await answers(asking(source, [1]), FakeGateway(answer), choose(name))
    assert reply.outcome is Outcome.OK, reply.message
    said, message, scored, left, byhand, same, keys = reply.answer.value
    assert (said, message) == ("to a", {"role": "assistant", "content": "to b"})
    assert scored == {"x": 0.0, "y": -1.0}
    assert left == {"calls": {"limit": 4, "left": 0}}
    assert json.loads(byhand)["choices"][0]["message"]["content"] == "to by hand"
    assert same
    assert keys == ["leadscrew"] * 2
    assert bodies[1] == {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}],
        "max_tokens": 3, "temperature": 0.5, "stop": ["x"], "seed": 1,
    }  # fmt: skip
    assert bodies[2]["tools"] == []
    assert reply.spend.calls == 4


async def test_a_command_finds_the_gateway_too() -> None:
    source = """
import json, os, sys, urllib.request
for line in sys.stdin:
    request = json.loads(line)
    body = json.dumps({"messages": [{"role": "user", "content": f"solve {request['input']}"}]}).encode()
    reply = urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    print(json.dumps({"answer": json.load(reply)["choices"][0]["message"]["content"]}), flush=True)
"""
    made = asking({"tool.py": source}, interface=Interface("solve", command=("python3", "-S", "tool.py")))
    replies = await answers(made, FakeGateway())
    assert [(r.answer.value, r.spend.calls) for r in replies] == [("SOLVE 1", 1), ("SOLVE 2", 1)]


async def test_a_constructor_with_one_argument_gets_the_model() -> None:
    source = "class Learner:\n    def __init__(self, model):\n        self.model = model\n    def learn(self, batch):\n"
    source += "        pass\n    def predict(self, input):\n        return self.model(str(input))\n"
    made = asking(source, ["x", "y"], interface=Interface("predict"))
    assert [r.answer.value for r in await answers(made, FakeGateway())] == ["X", "Y"]


async def test_what_the_gateway_refuses_is_an_error_with_its_status_and_words() -> None:
    source = """
from leadscrew_guest import ModelError, chat, llm
def solve(input):
    found = []
    for _ in range(3):
        try:
            found.append(llm("x"))
        except ModelError as error:
            found.append([error.status, str(error), isinstance(error, RuntimeError)])
    try:
        chat([], stream=True)
    except ValueError as error:
        found.append(str(error))
    raise AssertionError(found)
"""
    made = asking(source, [1], access=replace(ACCESS, allowance=Caps(calls=2)))
    gateway = FakeGateway()
    executor = LocalExecutor(_SANDBOX, 1, spares=0, gateway=gateway)
    async with aclosing(executor.run(made)) as replies:
        (reply,) = [r async for r in replies]
    await executor.close()
    assert (reply.outcome, reply.message) == (Outcome.TIMEOUT, "the allowance of calls is used up")
    # What it answered does not count, but what it printed is kept for its author.
    assert reply.trace.calls[0]["response"] == "X"


async def test_a_gateway_that_opens_no_door_is_our_failure() -> None:
    class Shut(FakeGateway):
        async def door(self, path: Path) -> FakeDoor:
            raise InfrastructureError("too many doors")

    replies = await answers(asking(ASKS), Shut())
    assert [r.outcome for r in replies] == [Outcome.INFRA] * 2
    assert "too many doors" in replies[0].message


async def test_a_box_that_does_not_open_leaves_no_door(tmp_path: Path) -> None:
    class Failing(type(_SANDBOX)):  # type: ignore[misc]
        async def open(self, spec: Any) -> Any:
            raise InfrastructureError("no box")

    gateway = FakeGateway()
    replies = await answers(asking(ASKS), gateway, Failing(), root=tmp_path)
    assert [r.outcome for r in replies] == [Outcome.INFRA] * 2
    assert gateway.opened == 1
    assert os.listdir(tmp_path) == []


async def test_a_gateway_that_cannot_say_what_happened_is_our_failure() -> None:
    class Forgetful(FakeDoor):
        async def leave(self) -> Visited:
            await super().leave()
            raise InfrastructureError("the record cannot be written")

    class Gateway(FakeGateway):
        async def door(self, path: Path) -> FakeDoor:
            door = await super().door(path)
            door.__class__ = Forgetful
            return door

    replies = await answers(asking(ASKS), Gateway())
    assert [r.outcome for r in replies] == [Outcome.INFRA] * 2
    assert "cannot be written" in replies[0].message


async def test_a_job_that_is_left_early_leaves_no_door() -> None:
    started = asyncio.Event()

    async def never(body: Mapping[str, Any]) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    gateway = FakeGateway(never)
    executor = LocalExecutor(_SANDBOX, 1, spares=0, gateway=gateway)

    async def take() -> None:
        async with aclosing(executor.run(asking(ASKS))) as replies:
            await anext(aiter(replies))

    task = asyncio.ensure_future(take())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await executor.close()
    assert not gateway.doors


async def test_no_more_visits_at_once_than_workers() -> None:
    most, now = 0, 0

    async def counted(body: Mapping[str, Any]) -> str:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return "x"

    gateway = FakeGateway(counted)
    executor = LocalExecutor(_SANDBOX, 2, spares=0, gateway=gateway)
    try:
        await asyncio.gather(*(run(executor, asking(ASKS, range(5))) for _ in range(3)))
    finally:
        await executor.close()
    assert 1 <= most <= 2


# -- clocks ------------------------------------------------------------------------------------------


async def test_a_trial_whose_time_is_up_keeps_its_output_and_its_box() -> None:
    source = """
import os, time
from leadscrew_guest import llm
MARK = os.urandom(8).hex()
def solve(input):
    print("began", flush=True)
    llm("x")
    time.sleep(input)
    return MARK
"""
    made = asking(source, [0, 60, 0], limits=replace(LIMITS, wall_s=1.5))
    first, second, third = await answers(made, FakeGateway())
    assert (second.outcome, second.trace.stdout) == (Outcome.TIMEOUT, "began\n")
    assert "1.5 s of wall time" in second.message
    assert second.spend.calls == 1
    assert first.answer.value == third.answer.value, "the box lived on"


async def test_cpu_seconds_are_limited_as_ever() -> None:
    source = "from leadscrew_guest import llm\ndef solve(input):\n    llm('x')\n    while True: pass\n"
    (reply,) = await answers(asking(source, [1], limits=replace(LIMITS, cpu_s=0.3)), FakeGateway())
    assert reply.outcome is Outcome.TIMEOUT
    assert "cpu time" in reply.message


async def test_the_clock_stands_still_while_a_learner_waits_and_runs_otherwise() -> None:
    async def slow(body: Mapping[str, Any]) -> str:
        await asyncio.sleep(0.4)
        return "late"

    train = tuple(Item(f"i{n}", n, n) for n in range(2))
    limits = replace(LIMITS, load_s=0.5)
    made = job(STUDENT, [1], interface=Interface("predict"), train=train, access=ACCESS, limits=limits)
    replies = await answers(made, FakeGateway(slow))
    assert [r.outcome for r in replies] == [Outcome.OK] * 3, "six calls of 0.4 s, and 1.5 s of wall time"
    sleepy = "import time\n" + STUDENT.replace(
        "    def learn(self, batch):\n", "    def learn(self, batch):\n        time.sleep(60)\n"
    )
    made = job(sleepy, [1], interface=Interface("predict"), train=train, access=ACCESS, limits=limits)
    replies = await answers(made, FakeGateway())
    assert [r.outcome for r in replies] == [Outcome.OK, *[Outcome.TIMEOUT] * 2]


async def test_an_agent_may_wait_for_its_model_and_for_its_environment() -> None:
    source = "from leadscrew_guest import llm\nclass Agent:\n    def act(self, observation):\n        return llm('x')\n"

    async def slow(body: Mapping[str, Any]) -> str:
        await asyncio.sleep(0.7)
        return "go"

    async def steps(key: str, action: Any) -> tuple[Any, bool]:
        await asyncio.sleep(0.7)
        return 1, action is not None

    executor = LocalExecutor(_SANDBOX, 1, spares=0, gateway=FakeGateway(slow))
    try:
        made = asking(source, [1], interface=Interface("act"), limits=replace(LIMITS, wall_s=1.0))
        (reply,) = await run(executor, made, steps)
    finally:
        await executor.close()
    assert reply.outcome is Outcome.OK, reply.message


async def test_no_clock_stands_still_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "BACKSTOP_S", 0.5)

    async def never(body: Mapping[str, Any]) -> str:
        await asyncio.Event().wait()
        return ""

    (reply,) = await answers(asking(ASKS, [1], limits=replace(LIMITS, wall_s=0.2)), FakeGateway(never))
    assert reply.outcome is Outcome.TIMEOUT


# -- learners ----------------------------------------------------------------------------------------


async def test_every_box_learns_in_the_same_scopes_and_train_rows_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORTH_IT", 0.0)
    monkeypatch.setattr(local, "LOOK_S", 0.01)

    async def answer(body: Mapping[str, Any]) -> str:
        await asyncio.sleep(0.01)
        return "x"

    train = tuple(Item(f"i{n}", n, n) for n in range(3))
    trials = tuple(BoxTrial(f"t{n}", n) for n in range(30))
    made = job(STUDENT, interface=Interface("predict"), train=train, trials=trials, access=ACCESS)
    gateway = FakeGateway(answer)
    replies = await answers(made, gateway, workers=2)
    assert gateway.opened == 2
    assert [(r.key, r.spend.calls) for r in replies if r.train] == [("i0", 3), ("i1", 2), ("i2", 2)]
    assert {r.spend.calls for r in replies if not r.train} == {1}
    learned = [v.scope for v, d in gateway.left if v.scope.startswith("learn")]
    assert sorted(learned) == sorted(["learn:x:main", "learn:x:main:0", "learn:x:main:1", "learn:x:main:2"] * 2)


async def test_fresh_boxes_learn_anew_each() -> None:
    train = (Item("i0", 0, 0),)
    gateway = FakeGateway()
    made = asking(STUDENT, range(3), interface=Interface("predict"), train=train, fresh=True)
    replies = await answers(made, gateway)
    assert gateway.opened == 3
    assert [(r.key, r.spend.calls) for r in replies] == [("i0", 3), ("t0", 1), ("t1", 1), ("t2", 1)]


async def test_a_learner_that_breaks_keeps_what_it_had_predicted() -> None:
    head = "    def learn(self, batch):\n"
    source = STUDENT.replace(head, head + "        assert batch[0]['input'] == 0\n")
    train = tuple(Item(f"i{n}", n, n) for n in range(3))
    replies = await answers(asking(source, [1], interface=Interface("predict"), train=train), FakeGateway())
    assert [(r.key, r.outcome) for r in replies] == [
        ("i0", Outcome.OK), ("i1", Outcome.OK), ("i2", Outcome.CRASH), ("t0", Outcome.CRASH),
    ]  # fmt: skip
    assert [r.spend.calls for r in replies] == [3, 1, 0, 0]


# -- replies -----------------------------------------------------------------------------------------


def test_inputs_are_measured_as_text() -> None:
    assert [input_chars(value) for value in ("äb", {"x": "ä"}, [1, 2], None)] == [2, 10, 6, 4]


def test_the_program_is_charged_even_where_it_failed_and_unknown_money_stays_unknown() -> None:
    reply = BoxReply("t", Outcome.CRASH, message="x", spend=Spend(1, 2, 3), trace=Trace(calls=({"note": 1},)))
    visited = Visited(
        Spend(calls=2, tokens_in=5, tokens_out=6, micro_usd=None), {"model_calls": 2.0}, ({"prompt": "p"},)
    )
    out = with_visit(reply, visited)
    assert (out.outcome, out.message) == (Outcome.CRASH, "x")
    assert out.spend == Spend(1, 2, 3, 2, 5, 6, None)
    assert out.costs == {"model_calls": 2.0}
    assert out.trace.calls == ({"prompt": "p"}, {"note": 1})


def test_our_own_failure_stays_ours_whatever_the_visit_says() -> None:
    reply = BoxReply("t", Outcome.INFRA, message="the box is gone")
    assert with_visit(reply, Visited(exhausted="calls")) == reply
    assert with_visit(reply, Visited(void="down", cap="usd")) == BoxReply("t", Outcome.INFRA, message="down", cap="usd")


async def test_a_visit_is_said_by_the_host_alone() -> None:
    """Nothing in a request can name another trial."""
    source = """
import json, os, urllib.request
def solve(input):
    body = {"messages": [{"role": "user", "content": "x"}], "user": "t0", "scope": "t0", "model": "t0",
            "metadata": {"candidate": "other"}}
    headers = {"x-scope": "t0", "authorization": "Bearer t0", "x-candidate": "other"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request).status
"""
    gateway = FakeGateway()
    await answers(asking(source, [1, 2]), gateway)
    seen: list[tuple[Visit, int]] = [(v, d.spend.calls) for v, d in gateway.left if v.scope.startswith("t")]
    assert [(v.scope, v.access.candidate, calls) for v, calls in seen] == [("t0", "c" * 64, 1), ("t1", "c" * 64, 1)]
