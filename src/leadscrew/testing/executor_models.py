"""The conformance suite of executors that lead programs to models: subclass `ExecutorModelSuite` beside `ExecutorSuite`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leadscrew.core.budget import Caps
from leadscrew.core.task import Interface
from leadscrew.core.trial import Outcome
from leadscrew.ports import Access, BoxTrial, Executor, Gateway, Item, Job
from leadscrew.testing.doors import FakeGateway, Outage
from leadscrew.testing.executor import LEARNER, LIMITS, aclosing_executor, job, run

ACCESS = Access("solver", plan=3, candidate="c" * 64, allowance=Caps(calls=4), learning="learn:x")
ASKS = "from leadscrew_guest import llm\ndef solve(input):\n    return llm(f'say {input}')\n"
STUBBORN = (
    "from leadscrew_guest import llm, ModelError\n"
    "def solve(input):\n"
    "    try:\n        return llm(str(input))\n"
    "    except ModelError as error:\n        return 'guess'\n"
)
STUDENT = """
from leadscrew_guest import llm
class Student:
    def __init__(self):
        self.known = [llm("hello")]
    def predict(self, input):
        return llm(f"predict {input} of {len(self.known)}")
    def learn(self, batch):
        self.known += [llm(f"learn {item['ground_truth']}") for item in batch]
"""


def asking(source: str | dict[str, str], inputs: Any = (1, 2), **more: Any) -> Job:
    """Return a job whose programs have access to a model; each trial has an instance and a repeat of its own."""
    made = job(source, inputs, **{"access": ACCESS, **more})
    trials = tuple(replace(t, instance=f"val:{t.key}", repeat=n) for n, t in enumerate(made.trials))
    return replace(made, trials=trials)


class ExecutorModelSuite(ABC):
    """What every executor must do with a gateway. A subclass implements `make`."""

    @abstractmethod
    async def make(self, workers: int, gateway: Gateway | None) -> Executor:
        """Return an executor; the suite closes it."""

    async def test_calls_of_a_trial_are_its_spend_its_costs_and_its_trace(self) -> None:
        gateway = FakeGateway()
        async with aclosing_executor(await self.make(2, gateway)) as executor:
            replies = await run(executor, asking(ASKS, range(6)))
        assert [r.answer.value for r in replies] == [f"SAY {n}" for n in range(6)]
        for n, reply in enumerate(replies):
            assert (reply.spend.trials, reply.spend.calls, reply.spend.tokens_in, reply.spend.tokens_out) == (
                1,
                1,
                2,
                2,
            )
            assert reply.spend.micro_usd == 1
            assert reply.costs["model_calls"] == 1
            assert reply.costs["context_chars"] == len(f"say {n}") - 1
            assert [(c["prompt"], c["response"]) for c in reply.trace.calls] == [(f"say {n}", f"SAY {n}")]
        visits = {v.scope: v for v, _ in gateway.left if v.scope.startswith("t")}
        assert [(visits[f"t{n}"].instance, visits[f"t{n}"].repeat) for n in range(6)] == [
            (f"val:t{n}", n) for n in range(6)
        ]
        assert {v.access for v, _ in gateway.left} == {ACCESS}
        assert not gateway.doors, "every door is closed at the end"

    async def test_what_a_program_logs_of_its_calls_is_not_there_twice(self) -> None:
        source = (
            "from leadscrew_guest import llm, log\n"
            "def solve(input):\n    said = llm('question')\n    log(prompt='question', response=said)\n"
            "    log(prompt='question', response=said, why='noted')\n    log(prompt='other', response=said)\n    return said\n"
        )
        async with aclosing_executor(await self.make(1, FakeGateway())) as executor:
            (reply,) = await run(executor, asking(source, [1]))
        assert [(c["prompt"], c.get("role"), c.get("why")) for c in reply.trace.calls] == [
            ("question", "solver", None), ("question", None, "noted"), ("other", None, None),
        ]  # fmt: skip

    async def test_a_program_that_answers_around_an_outage_is_void(self) -> None:
        def down(body: Mapping[str, Any]) -> str:
            raise Outage("the model is down", "usd" if "1" in str(body) else "")

        async with aclosing_executor(await self.make(1, FakeGateway(down))) as executor:
            replies = await run(executor, asking(STUBBORN))
        assert [(r.outcome, r.message, r.cap) for r in replies] == [
            (Outcome.INFRA, "the model is down", "usd"), (Outcome.INFRA, "the model is down", ""),
        ]  # fmt: skip
        assert [r.answer.value for r in replies] == [None, None]

    async def test_a_trial_that_breaks_during_an_outage_is_void_too(self) -> None:
        def down(body: Mapping[str, Any]) -> str:
            raise Outage("the model is down")

        source = ASKS + "import os\n"
        crash = STUBBORN.replace("return 'guess'", "os._exit(9)").replace("def solve", "import os\ndef solve")
        async with aclosing_executor(await self.make(1, FakeGateway(down))) as executor:
            for program in (source, crash):
                assert {r.outcome for r in await run(executor, asking(program))} == {Outcome.INFRA}

    async def test_more_than_the_allowance_is_the_programs_failure(self) -> None:
        source = STUBBORN.replace(
            "        return llm(str(input))", "        return [llm(str(n)) for n in range(input)][-1]"
        )
        async with aclosing_executor(await self.make(1, FakeGateway())) as executor:
            within, beyond = await run(executor, asking(source, [4, 5]))
        assert within.answer.value == "3"
        assert (beyond.outcome, beyond.answer.value) == (Outcome.TIMEOUT, None)
        assert "allowance" in beyond.message
        assert beyond.spend.calls == 4

    async def test_the_clock_stands_still_while_a_call_is_answered(self) -> None:
        async def slow(body: Mapping[str, Any]) -> str:
            await asyncio.sleep(1.5 * LIMITS.wall_s)
            return "late"

        source = STUBBORN + "import time\n"
        wasteful = "import time\n" + STUBBORN.replace(
            "        return llm", "        time.sleep(60)\n        return llm"
        )
        async with aclosing_executor(await self.make(2, FakeGateway(slow))) as executor:
            waits, wastes = await asyncio.gather(
                run(executor, asking(source, [1])), run(executor, asking(wasteful, [1]))
            )
        assert (waits[0].outcome, waits[0].answer.value) == (Outcome.OK, "late")
        assert wastes[0].outcome is Outcome.TIMEOUT

    async def test_a_process_left_over_from_one_trial_does_not_call_in_the_next(self) -> None:
        source = """
import os, sys, time
from leadscrew_guest import llm
def solve(input):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                try:
                    llm(f"left over from {input}")
                except BaseException:
                    pass
        os._exit(0)
    time.sleep(0.05)
    return input
"""
        gateway = FakeGateway()
        access = replace(ACCESS, allowance=Caps())
        async with aclosing_executor(await self.make(1, gateway)) as executor:
            replies = await run(executor, asking(source, range(8), access=access))
        for n, reply in enumerate(replies):
            assert reply.outcome is Outcome.OK
            assert {c["prompt"] for c in reply.trace.calls} <= {f"left over from {n}"}
        assert sum(r.spend.calls for r in replies) > 0

    async def test_the_calls_of_an_online_learner_belong_to_its_train_items(self) -> None:
        train = tuple(Item(f"{d}{n}", n, f"{d}{n}", d) for d in ("a", "b") for n in range(3))
        trials = tuple(BoxTrial(f"t{d}{n}", n, dataset=d) for d in ("a", "b") for n in range(2))
        made = job(STUDENT, interface=Interface("predict"), train=train, trials=trials, access=ACCESS)
        gateway = FakeGateway()
        async with aclosing_executor(await self.make(2, gateway)) as executor:
            replies = await run(executor, made)
        for dataset in ("a", "b"):
            learned = [r for r in replies if r.train and r.key.startswith(dataset)]
            assert [r.key for r in learned] == [f"{dataset}{n}" for n in range(3)]
            assert [[c["prompt"] for c in r.trace.calls] for r in learned] == [
                ["hello", "predict 0 of 1", f"learn {dataset}0"],
                ["predict 1 of 2", f"learn {dataset}1"],
                ["predict 2 of 3", f"learn {dataset}2"],
            ]
            assert [r.spend.calls for r in learned] == [3, 2, 2]
            assert [r.costs["model_calls"] for r in learned] == [3, 2, 2]
            assert [r.answer.value for r in replies if r.key.startswith(f"t{dataset}")] == [
                f"PREDICT {n} OF 4" for n in range(2)
            ]
        assert [r.spend.calls for r in replies if not r.train] == [1] * 4
        scopes = [v.scope for v, _ in gateway.left]
        assert {f"learn:x:{d}{i}" for d in ("a", "b") for i in ("", ":0", ":1", ":2")} <= set(scopes)
        assert {v.instance for v, _ in gateway.left if v.scope == "learn:x:a:1"} == {"train:a1"}

    async def test_an_offline_learner_learns_in_one_visit(self) -> None:
        train = tuple(Item(f"i{n}", n, n) for n in range(3))
        made = asking(STUDENT, interface=Interface("predict", mode="offline"), train=train)
        gateway = FakeGateway()
        async with aclosing_executor(await self.make(1, gateway)) as executor:
            replies = await run(executor, made)
        assert [r.answer.value for r in replies] == ["PREDICT 1 OF 4", "PREDICT 2 OF 4"]
        assert [r.spend.calls for r in replies] == [1, 1]
        assert [(v.scope, v.instance, d.spend.calls) for v, d in gateway.left if v.scope.startswith("learn")] == [
            ("learn:x:main", "learn:main", 4)
        ]

    async def test_an_outage_while_learning_voids_what_depends_on_it(self) -> None:
        def down(body: Mapping[str, Any]) -> str:
            if "predict 1" in str(body):
                raise Outage("the model is down", "tokens")
            return "fine"

        source = STUDENT.replace(
            '        return llm(f"predict {input} of {len(self.known)}")',
            "        try:\n            return llm(f'predict {input}')\n        except RuntimeError:\n            return 'guess'",
        )
        train = tuple(Item(f"i{n}", n, n) for n in range(3))
        async with aclosing_executor(await self.make(1, FakeGateway(down))) as executor:
            replies = await run(executor, asking(source, interface=Interface("predict"), train=train))
        assert [(r.key, r.outcome, r.cap) for r in replies] == [
            ("i0", Outcome.OK, ""), ("i1", Outcome.INFRA, "tokens"), ("i2", Outcome.INFRA, "tokens"),
            ("t0", Outcome.INFRA, "tokens"), ("t1", Outcome.INFRA, "tokens"),
        ]  # fmt: skip

    async def test_too_many_calls_while_loading_are_the_programs_failure(self) -> None:
        source = "from leadscrew_guest import llm\nfor n in range(9):\n    try:\n        llm('x')\n"
        source += "    except RuntimeError:\n        pass\ndef solve(input):\n    return input\n"
        async with aclosing_executor(await self.make(1, FakeGateway())) as executor:
            replies = await run(executor, asking(source))
        assert [r.outcome for r in replies] == [Outcome.TIMEOUT] * 2
        assert "allowance" in replies[0].message

    async def test_learners_without_calls_learn_as_ever(self) -> None:
        train = tuple(Item(f"i{n}", n, f"label {n}") for n in range(4))
        async with aclosing_executor(await self.make(2, FakeGateway())) as executor:
            replies = await run(executor, asking(LEARNER, interface=Interface("predict"), train=train))
        assert [r.answer.value for r in replies] == [None, "label 0", "label 1", "label 2", "label 3", "label 3"]
        assert [r.costs["model_calls"] for r in replies] == [0.0] * 6
        assert [r.trace.calls[0]["prompt"] for r in replies] == [f"after {n}" for n in (0, 1, 2, 3, 4, 4)]

    async def test_an_episode_is_one_visit(self) -> None:
        source = "from leadscrew_guest import llm\nclass Agent:\n    def act(self, observation):\n"
        source += "        return llm(f'act on {observation}')\n"

        async def steps(key: str, action: Any) -> tuple[Any, bool]:
            return action, action is not None and len(action) > 20

        async with aclosing_executor(await self.make(1, FakeGateway())) as executor:
            (reply,) = await run(executor, asking(source, [1], interface=Interface("act")), steps)
        assert reply.outcome is Outcome.OK
        assert [c["response"] for c in reply.trace.calls] == [
            "ACT ON NONE",
            "ACT ON ACT ON NONE",
            "ACT ON ACT ON ACT ON NONE",
        ]
        assert reply.spend.calls == 3

    async def test_no_access_means_no_way_out(self) -> None:
        source = STUBBORN.replace("return 'guess'", "return str(error)")
        gateway = FakeGateway()
        async with aclosing_executor(await self.make(1, gateway)) as executor:
            await run(executor, asking(source))
            opened = gateway.opened
            replies = await run(executor, asking(source, access=None))
        assert gateway.opened == opened
        assert all("the run gives programs none" in r.answer.value for r in replies)
        assert {r.spend.calls for r in replies} == {0}

    async def test_access_without_a_gateway_is_our_failure(self) -> None:
        async with aclosing_executor(await self.make(1, None)) as executor:
            replies = await run(executor, asking(ASKS))
        assert [r.outcome for r in replies] == [Outcome.INFRA] * 2
        assert "no gateway" in replies[0].message
