"""Programs that share something with their forks are not forked, and the supervisor's memory is closed to all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leadscrew.adapters.executors import LocalExecutor
from leadscrew.adapters.sandboxes import choose
from leadscrew.core.task import Interface, ProgramEnvironment
from leadscrew.ports import Item
from leadscrew.testing.executor import GOOD, LEARNER, job, run

_SANDBOX = choose("bubblewrap")

CHANNELS = {
    "mapping": ("SHARED = mmap.mmap(-1, 64)", "SHARED[:1] = b'x'", "SHARED[:1] == b'x'"),
    "unlinked file": ("F = tempfile.TemporaryFile()", "F.write(b'x'); F.flush()", "os.fstat(F.fileno()).st_size > 0"),
    "file offset": ("F = os.open(__file__, os.O_RDONLY)", "os.read(F, 1)", "os.lseek(F, 0, os.SEEK_CUR) > 0"),
    "pipe": (
        "R, W = os.pipe(); os.set_blocking(R, False)",
        "os.write(W, b'x')",
        "select.select([R], [], [], 0)[0] != []",
    ),
    "pipe over known numbers": (
        "R, W = os.pipe(); os.dup2(R, 0); os.dup2(W, 2); os.close(R); os.close(W)",
        "os.write(2, b'x')",
        "select.select([0], [], [], 0)[0] != []",
    ),
    "thread": (
        "BOX = []\ndef serve():\n    s = socket.socket(socket.AF_UNIX)\n    s.bind(chr(0) + 'keeper')\n    s.listen()\n"
        "    while True:\n        c = s.accept()[0]\n        w = c.recv(9)\n"
        "        if w == b'put': BOX.append(1)\n        c.send(b'%d' % len(BOX))\n        c.close()\n"
        "def talk(w):\n    c = socket.socket(socket.AF_UNIX)\n    c.connect(chr(0) + 'keeper')\n    c.send(w)\n"
        "    return c.recv(9)\n"
        "threading.Thread(target=serve, daemon=True).start()\ntime.sleep(0.05)",
        "talk(b'put')",
        "talk(b'get') != b'0'",
    ),
}


@pytest.mark.parametrize("name", CHANNELS)
async def test_a_channel_opened_while_loading_carries_nothing(name: str) -> None:
    load, put, seen = CHANNELS[name]
    source = (
        f"import mmap, os, select, socket, tempfile, threading, time\n{load}\n"
        f"def solve(input):\n    if input == 0:\n        {put}\n        return 'put'\n    return bool({seen})\n"
    )
    found = {}
    for allowed in (False, True):
        executor = LocalExecutor(_SANDBOX, 1, spares=1, fork_sharing=allowed)
        try:
            replies = await run(executor, job(source, [0, 1, 1]))
            assert [r.message for r in replies] == [""] * 3
            found[allowed] = [r.answer.value for r in replies]
        finally:
            await executor.close()
    assert found[False] == ["put", False, False]
    # The control: where such a program is forked all the same, the second trial sees what the first one left.
    assert found[True][:2] == ["put", True]


async def test_a_clean_program_is_forked() -> None:
    source = (
        "import os, json, re, random, collections\nMARK = os.urandom(8).hex()\ndef solve(input):\n    return MARK\n"
    )
    executor = LocalExecutor(_SANDBOX, 1, spares=0)
    try:
        assert len({r.answer.value for r in await run(executor, job(source, range(5)))}) == 1
    finally:
        await executor.close()


async def test_a_trial_cannot_look_into_the_supervisor_or_write_into_the_loaded_program() -> None:
    source = """
import os
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
def solve(input):
    loaded = os.getppid()
    with open(f"/proc/{loaded}/status") as status:
        supervisor = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
    places = []
    for pid in (supervisor, loaded):
        places += [f"/proc/{pid}/{name}" for name in ("mem", "environ", "maps")]
        try:
            places += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            places += [f"/proc/{pid}/fd/{fd}" for fd in (0, 1, 2, 200, 201)]
    modes = (os.O_RDONLY, os.O_WRONLY)
    return [len(places), sorted({attempt(lambda: os.open(place, mode)) for place in places for mode in modes})]
"""
    executor = LocalExecutor(_SANDBOX, 1, spares=0)
    try:
        (reply,) = await run(executor, job(source, [1]))
    finally:
        await executor.close()
    count, errors = reply.answer.value
    assert count > 10
    assert errors == ["PermissionError"]


async def test_without_a_sandbox_programs_run_and_the_hosts_folders_are_left_alone(tmp_path: Path) -> None:
    plain = ProgramEnvironment(interpreter=sys.executable)
    precious = Path("/tmp") / f"leadscrew-test-{tmp_path.name}"
    precious.write_text("x")
    executor = LocalExecutor(choose("none"), 1, spares=0)
    try:
        assert [r.answer.value for r in await run(executor, job(GOOD, environment=plain))] == [2, 3]
        train = tuple(Item(f"i{n}", n, n) for n in range(3))
        learned = await run(executor, job(LEARNER, interface=Interface("predict"), train=train, environment=plain))
        assert [r.answer.value for r in learned] == [None, 0, 1, 2, 2]
        assert precious.read_text() == "x"
    finally:
        await executor.close()
        precious.unlink()
