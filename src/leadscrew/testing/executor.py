"""The conformance suite of the Executor port: subclass `ExecutorSuite`, say how to make an executor, run it with pytest."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from leadscrew.core.program import Program
from leadscrew.core.task import Interface, Limits
from leadscrew.core.trial import Outcome
from leadscrew.ports import BoxReply, BoxTrial, Executor, Item, Job, Steps
from leadscrew.testing.faulty import FAULTY, Faulty

LIMITS = Limits(cpu_s=1.0, wall_s=3.0, load_s=2.0, memory_mb=256, workspace_mb=16, answer_kb=64, output_kb=8)
GOOD = "def solve(input):\n    return input + 1\n"

LEARNER = """
class Counter:
    def __init__(self):
        self.seen = []
    def predict(self, input):
        guess = self.seen[-1] if self.seen else None
        return guess, {"prompt": f"after {len(self.seen)}", "response": str(guess)}
    def learn_from_batch(self, batch):
        for item in batch:
            assert set(item) == {"input", "prediction", "ground_truth", "was_correct", "metadata"}
            self.seen.append(item["ground_truth"])
"""


def job(source: str | dict[str, str], inputs: Sequence[Any] = (1, 2), **more: Any) -> Job:
    """Return a job over `inputs`, for operation `solve` unless `interface` says otherwise."""
    files = {"main.py": source} if isinstance(source, str) else source
    given: dict[str, Any] = {
        "interface": Interface("solve"),
        "limits": LIMITS,
        "trials": tuple(BoxTrial(f"t{i}", value, seed=i) for i, value in enumerate(inputs)),
    }
    return Job(Program.of(files), **{**given, **more})


async def run(executor: Executor, job: Job, steps: Steps | None = None) -> list[BoxReply]:
    """Return all replies: those to train items first, then those to trials in the order of the job."""
    replies = [reply async for reply in executor.run(job, steps)]
    order = [t.key for t in job.trials]
    assert sorted(r.key for r in replies if not r.train) == sorted(order), "every trial has exactly one reply"
    return [r for r in replies if r.train] + sorted(
        (r for r in replies if not r.train), key=lambda r: order.index(r.key)
    )


class ExecutorSuite(ABC):
    """What every executor must do. A subclass implements `make`; the sandbox under it must isolate.

    >>> class TestMine(ExecutorSuite):  # doctest: +SKIP
    ...     async def make(self, workers): return MyExecutor(workers)
    """

    @abstractmethod
    async def make(self, workers: int) -> Executor:
        """Return an executor; the suite closes it."""

    # -- solve ---------------------------------------------------------------------------------

    async def test_a_good_program_gets_an_answer_and_spend_for_every_trial(self) -> None:
        async with aclosing_executor(await self.make(2)) as executor:
            replies = await run(executor, job(GOOD, range(20)))
        assert [r.answer.value for r in replies] == list(range(1, 21))
        assert all(r.outcome is Outcome.OK and r.spend.trials == 1 and r.spend.wall_ms >= 0 for r in replies)

    async def test_seed_and_random_numbers_follow_the_trial(self) -> None:
        source = "import random\ndef solve(input, seed):\n    return [seed, random.random()]\n"
        trials = tuple(BoxTrial(f"t{i}", 0, seed=i % 2) for i in range(4))
        async with aclosing_executor(await self.make(1)) as executor:
            values = [r.answer.value for r in await run(executor, job(source, trials=trials))]
        assert values[0] == values[2] != values[1] == values[3]

    async def test_output_goes_into_the_trace_and_is_cut(self) -> None:
        source = (
            "import sys\nfrom leadscrew_guest import log\n"
            "def solve(input):\n    print('seen', input)\n    print('x' * 10**6, file=sys.stderr)\n"
            "    log(prompt='p' * 10**6, response='r', kind='test')\n    return input\n"
        )
        async with aclosing_executor(await self.make(1)) as executor:
            first, second = await run(executor, job(source))
        assert first.trace.stdout == "seen 1\n"
        assert second.trace.stdout == "seen 2\n"
        assert len(first.trace.stderr) < 2 * LIMITS.output_kb * 1024
        assert first.trace.stderr.endswith("x\n")
        (call,) = first.trace.calls
        assert call["response"] == "r"
        assert call["kind"] == "test"
        assert len(call["prompt"]) < 2 * LIMITS.output_kb * 1024

    async def test_a_program_of_several_files_imports_its_own(self) -> None:
        files = {
            "main.py": "from pkg.part import add\nimport command\n"
            "def solve(input):\n    return add(input) + command.X\n",
            "pkg/__init__.py": "",
            "pkg/part.py": "def add(x):\n    return x + 1\n",
            "command.py": "X = 10\n",
        }
        async with aclosing_executor(await self.make(1)) as executor:
            assert [r.answer.value for r in await run(executor, job(files))] == [12, 13]

    # -- faults --------------------------------------------------------------------------------

    async def test_every_faulty_program_fails_by_type_and_harms_nobody_else(self) -> None:
        """The whole zoo at once, with a good program before, beside and after it."""
        async with aclosing_executor(await self.make(4)) as executor:
            await run(executor, job(GOOD))
            beside = asyncio.ensure_future(run(executor, job(GOOD, range(50))))
            wrong = await asyncio.gather(*(self._faulty(executor, fault) for fault in FAULTY))
            assert [r.answer.value for r in await beside] == list(range(1, 51))
            after = await run(executor, job(GOOD))
        assert [r.answer.value for r in after] == [2, 3]
        assert not any(wrong), "\n".join(text for text in wrong if text)

    async def _faulty(self, executor: Executor, fault: Faulty) -> str:
        # What runs into a limit costs seconds: once is enough.
        inputs = (1,) if Outcome.TIMEOUT in fault.outcomes else (1, 2)
        made = job(dict(fault.files), inputs, interface=fault.interface, train=fault.train)
        replies = [r for r in await run(executor, made) if not r.train]
        for reply in replies:
            if reply.outcome not in fault.outcomes or fault.says not in reply.message:
                return f"{fault.name}: {reply.outcome} {reply.message[-300:]!r} {reply.answer.value!r:.100}"
        return ""

    async def test_nothing_survives_from_one_trial_to_the_next(self) -> None:
        source = """
import builtins, glob, json, os, sys, threading, time
kept = []
def solve(input):
    found = [len(kept), hasattr(builtins, "left"), "left" in os.environ, json.dumps is None]
    found += sorted(glob.glob("/tmp/*") + glob.glob("/work/*") + glob.glob("/dev/shm/*"))
    for place in ("/tmp/f", "/work/f", "/dev/shm/g", "f2"):
        open(place, "w").write("x")
    os.makedirs("/tmp/a/b/c")
    open("/tmp/a/b/c/d", "w").close()
    os.symlink("/program/main.py", "/tmp/link")
    os.chmod("/tmp/a", 0)
    kept.append(input)
    builtins.left = os.environ["left"] = "yes"
    json.dumps = None
    os.chdir("/")
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(0.01)
                open("/tmp/daemon", "a").write("x")
        os._exit(0)
    others = [p for p in os.listdir("/proc") if p.isdigit()]
    return [found, len(others)]
"""
        async with aclosing_executor(await self.make(1)) as executor:
            replies = await run(executor, job(source, range(6)))
        assert [r.message for r in replies] == [""] * 6
        assert {str(r.answer.value[0]) for r in replies} == {"[0, False, False, False]"}
        assert max(r.answer.value[1] for r in replies) <= 8, "daemons do not pile up"

    # -- learners ------------------------------------------------------------------------------

    async def test_an_online_learner_predicts_before_the_label_is_shown_and_val_teaches_it_nothing(self) -> None:
        train = tuple(Item(f"i{n}", n, f"label {n}", d) for d in ("a", "b") for n in range(4))
        train = tuple(Item(f"{i.dataset}{i.id}", i.input, f"{i.dataset} {i.expected}", i.dataset) for i in train)
        trials = tuple(BoxTrial(f"{d}{n}", n, dataset=d) for d in ("a", "b") for n in range(3))
        made = job(LEARNER, interface=Interface("predict"), train=train, trials=trials)
        async with aclosing_executor(await self.make(2)) as executor:
            replies = await run(executor, made)
        for dataset in ("a", "b"):
            seen = [r for r in replies if r.train and r.key.startswith(dataset)]
            assert [r.key for r in seen] == [f"{dataset}i{n}" for n in range(4)]
            assert [r.answer.value for r in seen] == [None, *(f"{dataset} label {n}" for n in range(3))]
            assert [r.trace.calls[0]["prompt"] for r in seen] == [f"after {n}" for n in range(4)]
        assert [r.answer.value for r in replies if not r.train] == ["a label 3"] * 3 + ["b label 3"] * 3

    async def test_an_offline_learner_gets_one_batch(self) -> None:
        source = (
            "batches = []\n"
            "def learn(batch):\n    batches.append([b['ground_truth'] for b in batch])\n"
            "def predict(input):\n    batches.append(input)\n    return batches\n"
        )
        made = job(
            source, interface=Interface("predict", mode="offline"), train=tuple(Item(f"i{n}", n, n) for n in range(3))
        )
        async with aclosing_executor(await self.make(1)) as executor:
            replies = await run(executor, made)
        assert [r.answer.value for r in replies] == [[[0, 1, 2], 1], [[0, 1, 2], 2]]
        assert not any(r.train for r in replies)

    async def test_the_state_of_a_learner_is_the_same_before_and_after_val(self) -> None:
        source = """
import hashlib, json
class Memory:
    def __init__(self):
        self.state = {"items": [], "calls": 0}
    def get_state(self):
        return json.dumps(self.state)
    def set_state(self, text):
        self.state = json.loads(text)
    def predict(self, input):
        before = hashlib.sha256(self.get_state().encode()).hexdigest()
        self.state["calls"] += 1
        self.state["items"].append(["val", input])
        return before
    def learn(self, batch):
        self.state["items"] += [[b["input"], b["ground_truth"]] for b in batch]
"""
        train = tuple(Item(f"i{n}", n, n * n) for n in range(5))
        made = job(source, range(8), interface=Interface("predict"), train=train, purpose="smoke")
        async with aclosing_executor(await self.make(2)) as executor:
            replies = await run(executor, made)
        assert {r.outcome for r in replies} == {Outcome.OK}
        assert len({r.answer.value for r in replies if not r.train}) == 1

    # -- act, workspace, commands --------------------------------------------------------------

    async def test_an_agent_acts_until_the_episode_is_over_and_starts_fresh(self) -> None:
        source = (
            "class Agent:\n    def __init__(self):\n        self.sum = 0\n"
            "    def act(self, observation):\n        self.sum += observation\n        return self.sum\n"
        )
        actions: dict[str, list[Any]] = {}

        async def steps(key: str, action: Any) -> tuple[Any, bool]:
            actions.setdefault(key, []).append(action)
            return len(actions[key]), len(actions[key]) > 3

        async with aclosing_executor(await self.make(1)) as executor:
            replies = await run(executor, job(source, interface=Interface("act")), steps)
        assert [r.outcome for r in replies] == [Outcome.OK, Outcome.OK]
        assert actions == {"t0": [None, 1, 3, 6], "t1": [None, 1, 3, 6]}

    async def test_a_workspace_comes_back_as_files(self) -> None:
        source = (
            "import os\ndef work(input, folder):\n    assert os.listdir(folder) == []\n"
            "    os.makedirs(folder + '/sub')\n"
            "    open(folder + '/sub/a.txt', 'w').write(str(input))\n    open(folder + '/b.bin', 'wb').write(bytes(300000))\n"
            "    os.chmod(folder + '/b.bin', 0o755)\n"
        )
        async with aclosing_executor(await self.make(1)) as executor:
            replies = await run(executor, job(source, interface=Interface("workspace")))
        assert [r.message for r in replies] == ["", ""]
        for reply, text in zip(replies, ("1", "2"), strict=True):
            files = reply.answer.files
            assert files is not None
            assert list(files) == ["b.bin", "sub/a.txt"]
            assert files.text("sub/a.txt") == text
            assert files["b.bin"].data == bytes(300000)
            assert files["b.bin"].executable

    async def test_a_command_program_speaks_json_lines(self) -> None:
        source = """
import json, sys
known = []
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "learn":
        known.extend(b["ground_truth"] for b in request["batch"])
        reply = {"ok": True}
    elif request["op"] == "predict":
        print("thinking")
        reply = {"answer": len(known), "metadata": {"prompt": "?"}}
    elif request["op"] == "solve":
        reply = {"answer": [request["input"], request["seed"]]}
    else:
        reply = {"error": "what is " + request["op"]}
    print(json.dumps(reply), flush=True)
"""
        command = ("python3", "-S", "tool.py")
        solving = job({"tool.py": source}, interface=Interface("solve", command=command))
        train = tuple(Item(f"i{n}", n, n) for n in range(3))
        learning = job({"tool.py": source}, interface=Interface("predict", command=command), train=train)
        async with aclosing_executor(await self.make(2)) as executor:
            solved, learned = await asyncio.gather(run(executor, solving), run(executor, learning))
        assert [(r.answer.value, r.message) for r in solved] == [([1, 0], ""), ([2, 1], "")]
        assert [r.answer.value for r in learned] == [0, 1, 2, 3, 3]
        assert [r.trace.stdout for r in learned] == ["thinking\n"] * 5

    # -- the executor itself -------------------------------------------------------------------

    async def test_a_fresh_job_gives_each_trial_a_process_that_loaded_anew(self) -> None:
        source = "import os\nMARK = os.urandom(8).hex()\ndef solve(input):\n    return MARK\n"
        async with aclosing_executor(await self.make(2)) as executor:
            warm = {r.answer.value for r in await run(executor, job(source, range(4)))}
            fresh = {r.answer.value for r in await run(executor, job(source, range(4), fresh=True))}
        assert len(warm) <= 2
        assert len(fresh) == 4

    async def test_leaving_early_ends_the_job_and_the_executor_goes_on(self) -> None:
        async with aclosing_executor(await self.make(1)) as executor:
            slow = job("import time\ndef solve(input):\n    time.sleep(input)\n    return input\n", [0, 2, 2, 2])
            async with aclosing(executor.run(slow)) as replies:  # type: ignore[type-var]
                first = await anext(aiter(replies))
            assert first.answer.value == 0
            assert [r.answer.value for r in await run(executor, job(GOOD))] == [2, 3]

    async def test_a_caller_that_stops_asking_stops_the_job(self) -> None:
        async with aclosing_executor(await self.make(1)) as executor:
            started: list[str] = []

            async def steps(key: str, action: Any) -> tuple[Any, bool]:
                started.append(key)
                return 0, action is not None

            source = "class Agent:\n    def act(self, observation):\n        return 1\n"
            many = job(source, range(50), interface=Interface("act"))
            async with aclosing(executor.run(many, steps)) as replies:  # type: ignore[type-var]
                assert (await anext(aiter(replies))).outcome is Outcome.OK
                await run(executor, job(GOOD, range(20)))
                assert len(set(started)) <= 10, "only a few trials run ahead"
                assert len([reply async for reply in replies]) == 49

    async def test_small_jobs_are_not_kept_waiting_by_a_large_one(self) -> None:
        async with aclosing_executor(await self.make(1)) as executor:
            large = asyncio.ensure_future(run(executor, job(GOOD, range(400))))
            assert [r.answer.value for r in await run(executor, job(GOOD))] == [2, 3]
            assert not large.done()
            assert [r.answer.value for r in await large] == list(range(1, 401))

    async def test_large_inputs_and_answers_pass(self) -> None:
        source = (
            "import hashlib\ndef solve(input):\n    return hashlib.sha256(input.encode()).hexdigest() + 'y' * 60000\n"
        )
        text = "ü" * 2_000_000
        async with aclosing_executor(await self.make(1)) as executor:
            (reply,) = await run(executor, job(source, [text]))
        assert reply.answer.value == hashlib.sha256(text.encode()).hexdigest() + "y" * 60000


class aclosing_executor:
    """Close an executor at the end of a block."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    async def __aenter__(self) -> Executor:
        return self.executor

    async def __aexit__(self, *_: object) -> None:
        await self.executor.close()
