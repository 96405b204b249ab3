"""The executor of one machine: up to `workers` boxes busy at once, over all jobs, first come first served."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from leadscrew.adapters.executors.boxes import Broken, Loaded, WarmBox
from leadscrew.adapters.executors.pool import BoxPool
from leadscrew.adapters.executors.replies import reply_of
from leadscrew.adapters.executors.visits import Lessons, trial_visit, with_visit
from leadscrew.core.budget import Spend
from leadscrew.core.trial import Outcome
from leadscrew.errors import LeadscrewError
from leadscrew.ports import BoxReply, BoxTrial, Gateway, Item, Job, Sandbox, Steps

WORTH_IT = 2.0
"""A further box for the same program is opened when the trials that wait cost this many times what loading costs."""
LOOK_S = 0.1


@dataclass(slots=True)
class _Group:
    """The trials that share one state of the program: all of a job, or those of one data set for a learner."""

    train: tuple[Item, ...]
    pending: deque[BoxTrial]
    fresh: bool
    reported: int = 0
    """Train items that have their reply."""
    loaded: bool = False
    load_s: float = 0.0
    busy_s: float = 0.0
    finished: int = 0
    running: dict[str, float] = field(default_factory=dict)
    lanes: int = 0

    def others_work(self) -> bool:
        """Whether a box that cannot be brought up matters to nobody: the program came up before, in a lane that goes on."""
        return self.loaded and self.lanes > 1

    def left_s(self) -> float:
        """Seconds that the waiting trials will take one after the other, from what was seen so far."""
        now = time.monotonic()
        seen = [now - start for start in self.running.values()]
        if self.finished:
            seen.append(self.busy_s / self.finished)
        return len(self.pending) * max(seen, default=0.0)


class _Replies:
    """Replies on their way to the caller, and `room` for trials to run ahead of it."""

    def __init__(self, ahead: int) -> None:
        self.room = asyncio.Semaphore(ahead)
        self._queue: asyncio.Queue[tuple[BoxReply | None, bool]] = asyncio.Queue()

    def put(self, reply: BoxReply, *, held: bool = False) -> None:
        """Add a reply; `held` tells that its trial took some of the room."""
        self._queue.put_nowait((reply, held))

    def end(self) -> None:
        """No further reply will come."""
        self._queue.put_nowait((None, False))

    async def get(self) -> BoxReply | None:
        """Return the next reply, None at the end."""
        reply, held = await self._queue.get()
        if held:
            self.room.release()
        return reply


class LocalExecutor:
    """Runs jobs in boxes of `sandbox`, `workers` at once. Implements `leadscrew.ports.Executor`.

    `spares` boxes are kept open ahead (as many as workers if not given); `root` is the folder for what is mounted into
    boxes, a temporary one if not given. A box serves one program and is killed afterwards.

    Trials are forked from the loaded program. One that shares memory, open files or threads with its forks could carry
    something from trial to trial: each of its trials gets a fresh box, unless `fork_sharing` allows it (then only
    a rerun in fresh boxes finds out).

    A job with `access` needs a `gateway`: each of its boxes gets a door, a trial is one visit, and so is loading. While a
    call is being answered the wall clock stands still. Costs of learning stand on the replies to train items; what is
    called by a program that has none of these is in the gateway's record only.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        workers: int = 2,
        *,
        spares: int | None = None,
        root: Path | None = None,
        fork_sharing: bool = False,
        gateway: Gateway | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers={workers}: at least one box must be allowed to run; write 1 or more.")
        self.sandbox, self.workers, self.fork_sharing = sandbox, workers, fork_sharing
        self._temporary = tempfile.TemporaryDirectory(prefix="leadscrew-") if root is None else None
        self._root = Path(self._temporary.name) if self._temporary is not None else Path(root or "")
        self._slots = asyncio.Semaphore(workers)
        self._pool = BoxPool(sandbox, workers if spares is None else spares, self._root, gateway)
        self._jobs: set[asyncio.Task[None]] = set()

    async def run(self, job: Job, steps: Steps | None = None) -> AsyncIterator[BoxReply]:
        """Yield one reply per trial, and per train item of an online learner, as they finish.

        Trials run at most `workers + 1` ahead of what was taken, so a caller that stops asking stops the job. Leaving the
        iteration early kills its boxes.
        """
        out = _Replies(ahead=self.workers + 1)
        task = asyncio.get_running_loop().create_task(self._job(job, steps, out))
        self._jobs.add(task)
        try:
            while (reply := await out.get()) is not None:
                yield reply
            await task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._jobs.discard(task)

    async def close(self) -> None:
        """Kill all boxes."""
        for task in list(self._jobs):
            task.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._pool.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    # -- jobs ----------------------------------------------------------------------------------

    async def _job(self, job: Job, steps: Steps | None, out: _Replies) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in _groups(job):
                    tasks.create_task(self._group(job, group, steps, out))
        finally:
            out.end()

    async def _group(self, job: Job, group: _Group, steps: Steps | None, out: _Replies) -> None:
        """Run the trials of a group in one lane, and in more while workers are idle and it pays."""
        lanes = {asyncio.ensure_future(self._lane(job, group, steps, out))}
        try:
            while lanes:
                done, lanes = await asyncio.wait(lanes, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for lane in done:
                    lane.result()
                worth = group.fresh or group.left_s() > WORTH_IT * group.load_s
                idle = len(lanes) < self.workers and not self._slots.locked() and not out.room.locked()
                if group.loaded and group.pending and idle and worth:
                    lanes.add(asyncio.ensure_future(self._lane(job, group, steps, out)))
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    async def _lane(self, job: Job, group: _Group, steps: Steps | None, out: _Replies) -> None:
        group.lanes += 1
        try:
            await self._boxes(job, group, steps, out)
        finally:
            group.lanes -= 1

    async def _boxes(self, job: Job, group: _Group, steps: Steps | None, out: _Replies) -> None:
        """Take boxes one after the other and run trials in them until none waits."""
        first = True
        while group.pending or (first and group.reported < len(group.train) and not group.loaded):
            first = False
            box: WarmBox | None = None
            try:
                async with self._slots:
                    began = time.monotonic()
                    box = await self._pool.take(job)
                    loaded = await self._load(job, group, box, out)
                group.load_s = time.monotonic() - began
                if loaded.outcome is not Outcome.OK and group.others_work():
                    return
                if loaded.outcome is not Outcome.OK:
                    self._give_up(job, group, loaded, out)
                    continue
                group.loaded, load_cpu = True, loaded.cpu_ms
                while group.pending and not box.dead:
                    await out.room.acquire()
                    async with self._slots:
                        if not group.pending:
                            out.room.release()
                            break
                        reply = await self._trial(job, group, box, group.pending.popleft(), steps, load_cpu)
                    load_cpu = 0
                    out.put(reply, held=True)
                    if group.fresh:
                        break
            except (LeadscrewError, OSError) as error:
                if group.others_work():
                    return
                self._give_up(job, group, Loaded(Outcome.INFRA, f"{type(error).__name__}: {error}"), out)
            finally:
                if box is not None:
                    self._pool.release(box)

    async def _load(self, job: Job, group: _Group, box: WarmBox, out: _Replies) -> Loaded:
        def learned(index: int, reply: BoxReply) -> None:
            if index == group.reported:
                group.reported += 1
                out.put(reply)

        loaded = await box.load(job, group.train, Lessons(job, group.train, box.door, learned))
        if loaded.shares and not self.fork_sharing:
            group.fresh = True
        return loaded

    async def _trial(
        self, job: Job, group: _Group, box: WarmBox, trial: BoxTrial, steps: Steps | None, load_cpu_ms: int
    ) -> BoxReply:
        start = group.running[trial.key] = time.monotonic()
        try:
            if box.door is None or job.access is None:
                return await self._answer(job, box, trial, steps, load_cpu_ms)
            box.door.enter(trial_visit(job.access, trial))
            reply = await self._answer(job, box, trial, steps, load_cpu_ms)
            return with_visit(reply, await box.door.leave())
        except (LeadscrewError, OSError) as error:
            box.dead = True
            return BoxReply(trial.key, Outcome.INFRA, message=f"{type(error).__name__}: {error}")
        finally:
            del group.running[trial.key]
            group.busy_s += time.monotonic() - start
            group.finished += 1

    async def _answer(self, job: Job, box: WarmBox, trial: BoxTrial, steps: Steps | None, load_cpu_ms: int) -> BoxReply:
        start = time.monotonic()
        try:
            line, files = await box.trial(job, trial, steps)
        except Broken as error:
            spent = round((time.monotonic() - start) * 1000)
            line, files = {"message": error.message, "wall_ms": spent, "outcome": error.outcome.value}, {}
            if error.outcome is Outcome.INFRA:
                return BoxReply(trial.key, Outcome.INFRA, message=error.message)
        return reply_of(trial.key, line, files, job.interface, extra_cpu_ms=load_cpu_ms)

    def _give_up(self, job: Job, group: _Group, loaded: Loaded, out: _Replies) -> None:
        """The program cannot be brought up: every train item and trial that waits gets this outcome."""
        outcome, message, cap = loaded.outcome, loaded.message, loaded.cap
        if job.interface.operation == "predict" and job.interface.mode == "online":
            for item in group.train[group.reported :]:
                out.put(BoxReply(item.id, outcome, message=message, train=True, cap=cap))
        group.reported = len(group.train)
        # Once it was up, only the trial at hand is lost: another box may succeed again.
        count = 1 if group.loaded and group.pending else len(group.pending)
        spend = Spend() if outcome is Outcome.INFRA else Spend(trials=1, cpu_ms=loaded.cpu_ms)
        for _ in range(count):
            out.put(BoxReply(group.pending.popleft().key, outcome, message=message, spend=spend, cap=cap))
            spend = replace(spend, cpu_ms=0)


def _groups(job: Job) -> list[_Group]:
    if job.interface.operation != "predict":
        return [_Group((), deque(job.trials), job.fresh)]
    datasets = dict.fromkeys([t.dataset for t in job.trials] + [i.dataset for i in job.train])
    return [
        _Group(
            tuple(i for i in job.train if i.dataset == dataset),
            deque(t for t in job.trials if t.dataset == dataset),
            job.fresh,
        )
        for dataset in datasets
    ]
