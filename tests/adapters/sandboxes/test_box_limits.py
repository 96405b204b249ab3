"""The limits of boxes, kept by control groups (where the host lets us make them) and by the watchdog."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from leadscrew.adapters.sandboxes import cgroups
from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox, exit_code
from leadscrew.adapters.sandboxes.limits import Keeping
from leadscrew.adapters.sandboxes.process import ProcessBox
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome
from leadscrew.errors import SandboxUnavailable
from leadscrew.testing.sandbox import finish, processes, spec

no_groups = pytest.mark.skipif(cgroups.find() is None, reason="no control group can be made here")
both = pytest.mark.parametrize("keeping", [pytest.param("cgroup", marks=no_groups), "watchdog"])
PATIENCE_S = 60

HUNGRY_FAMILY = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        block = bytearray(40 << 20)
        for i in range(0, len(block), 4096):
            block[i] = 1
        time.sleep(600)
time.sleep(600)
"""


async def broken(code: str, limits: Limits, keeping: Keeping) -> ProcessBox:
    """Run code until a limit ends it."""
    sandbox = BubblewrapSandbox(limits=keeping)
    try:
        box = await sandbox.open(spec(code, limits=limits))
        await asyncio.wait_for(box.wait(), PATIENCE_S)
        await box.kill()
        return box
    finally:
        await sandbox.close()


async def out(code: str, limits: Limits, keeping: Keeping = "auto") -> str:
    sandbox = BubblewrapSandbox(limits=keeping)
    try:
        status, text, err = await finish(await sandbox.open(spec(code, limits=limits)))
    finally:
        await sandbox.close()
    assert status == 0, err
    return text


@both
async def test_memory_counts_the_whole_tree_and_ends_it(keeping):
    """No single process is above the limit."""
    box = await broken(HUNGRY_FAMILY, Limits(memory_mb=100, workspace_mb=1), keeping)
    assert (box.breach(), box.reason) == (Outcome.OOM, "memory")


@both
async def test_memory_below_the_limit_is_left_alone(keeping):
    assert await out("b = bytearray(60 << 20); print(len(b))", Limits(memory_mb=100), keeping) == f"{60 << 20}\n"


@no_groups
async def test_a_fork_bomb_meets_the_limit_of_the_group():
    code = """
import os, time
count = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(600)
        count += 1
except BlockingIOError:
    print(count)
"""
    sandbox = BubblewrapSandbox(limits="cgroup")
    box = await sandbox.open(spec(code, limits=Limits(processes=10)))
    try:
        assert 8 <= int(await asyncio.wait_for(box.stdout.readline(), PATIENCE_S)) <= 11
    finally:
        await sandbox.close()


async def test_a_fork_bomb_meets_the_watchdog():
    code = """
import os, time
for _ in range(40):
    if os.fork() == 0:
        time.sleep(600)
time.sleep(600)
"""
    box = await broken(code, Limits(processes=10), "watchdog")
    assert (box.breach(), box.reason) == (Outcome.CRASH, "processes")


@both
async def test_cpu_seconds_of_all_processes_together(keeping):
    code = """
import os
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            pass
while True:
    pass
"""
    box = await broken(code, Limits(cpu_s=0.5, load_s=0, wall_s=PATIENCE_S), keeping)
    assert (box.breach(), box.reason) == (Outcome.TIMEOUT, "cpu")
    assert 400 <= box.usage().cpu_ms < 5000


@both
async def test_cpu_seconds_of_ended_children_count(keeping):
    code = """
import os, time
for _ in range(400):
    if os.fork() == 0:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        os._exit(0)
    os.wait()
time.sleep(600)
"""
    box = await broken(code, Limits(cpu_s=0.3, load_s=0, wall_s=PATIENCE_S), keeping)
    assert (box.breach(), box.reason) == (Outcome.TIMEOUT, "cpu")


@both
async def test_a_sleeper_uses_no_cpu_and_meets_the_wall(keeping):
    box = await broken("import time; time.sleep(600)", Limits(cpu_s=5, load_s=0, wall_s=0.3), keeping)
    assert (box.breach(), box.reason) == (Outcome.TIMEOUT, "wall")
    assert box.usage().wall_ms >= 300


@both
async def test_an_allowance_can_be_renewed_and_taken_off(keeping):
    code = "import sys, time; sys.stdin.readline(); print('ok', flush=True); time.sleep(600)"
    sandbox = BubblewrapSandbox(limits=keeping)
    try:
        box = await sandbox.open(spec(code, limits=Limits(cpu_s=5, load_s=0, wall_s=0.5)))
        box.allow(None, None)
        await asyncio.sleep(0.7)
        assert box.breach() is None
        box.stdin.write(b"go\n")
        assert await asyncio.wait_for(box.stdout.readline(), PATIENCE_S) == b"ok\n"
        box.allow(5, 0.05)
        await asyncio.wait_for(box.wait(), PATIENCE_S)
        assert box.breach() is Outcome.TIMEOUT
    finally:
        await sandbox.close()


async def test_one_file_may_not_grow_beyond_its_limit():
    code = """
import errno, os
try:
    with open('/tmp/big', 'wb') as f:
        for _ in range(8):
            f.write(b'x' * (1 << 20))
            f.flush()
except OSError as error:
    print(errno.errorcode[error.errno], os.path.getsize('/tmp/big') >> 20)
"""
    assert await out(code, Limits(file_mb=3, workspace_mb=64)) == "EFBIG 3\n"


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
async def test_the_workspace_has_a_size(folder):
    code = f"""
import errno
try:
    for n in range(20):
        open('{folder}/' + str(n), 'wb').write(b'x' * (1 << 20))
except OSError as error:
    print(errno.errorcode[error.errno], n)
"""
    assert await out(code, Limits(file_mb=64, workspace_mb=5)) == "ENOSPC 5\n"


async def test_no_core_is_written():
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"
    assert await out(code, Limits()) == "(0, 0)\n"


@both
async def test_usage_counts_what_was_burnt(keeping):
    code = "import time\nwhile time.process_time() < 0.3: pass"
    sandbox = BubblewrapSandbox(limits=keeping)
    try:
        box = await sandbox.open(spec(code))
        assert await box.wait() == 0
        await box.kill()
        assert box.usage().wall_ms >= 300
        assert box.usage().cpu_ms >= 200  # the clocks of /proc tick in 10 ms, and start-up was not part of the loop
        assert box.usage() == box.usage()
    finally:
        await sandbox.close()


@no_groups
async def test_groups_are_removed_and_those_of_dead_engines_swept():
    places = cgroups.find()
    assert places is not None

    def mine() -> list[str]:
        return [
            name
            for parent in dict.fromkeys(places.parents.values())
            for name in os.listdir(parent)
            if name.startswith(f"leadscrew-{os.getpid()}-")
        ]

    before = mine()
    sandbox = BubblewrapSandbox(limits="cgroup")
    boxes = [await sandbox.open(spec("import time; time.sleep(600)")) for _ in range(3)]
    assert len(mine()) > len(before)
    await boxes[0].kill()
    await sandbox.close()
    assert mine() == before

    parent = places.parents["pids"]
    left = Path(parent) / "leadscrew-4194999-abc-0"
    left.mkdir()
    cgroups._sweep(places)
    assert not left.exists()


def test_insisting_on_groups_where_there_are_none_is_refused(monkeypatch):
    monkeypatch.setattr(cgroups, "find", lambda: None)
    with pytest.raises(SandboxUnavailable, match="Delegate=yes"):
        BubblewrapSandbox(limits="cgroup").probe()
    report = BubblewrapSandbox().probe()
    assert report.limits["memory"].startswith("watchdog")
    assert any("watchdog" in warning for warning in report.warnings)


def test_exit_codes():
    assert [exit_code(code) for code in (0, 1, 127, 128, 137, 139, 255, -9)] == [0, 1, 127, 128, -9, -11, 255, -9]


def test_places_are_read_from_what_is_mounted(tmp_path):
    top = tmp_path / "unified"
    leaf = top / "user.slice" / "app.slice" / "me.scope"
    leaf.mkdir(parents=True)
    for folder, enabled in ((leaf, ""), (leaf.parent, "cpu memory pids"), (leaf.parent.parent, "memory"), (top, "")):
        (folder / "cgroup.subtree_control").write_text(enabled)
    second = cgroups._candidates(
        f"30 20 0:26 / {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        "0::/user.slice/app.slice/me.scope\n",
    )
    assert [(p.version, p.parents["memory"]) for p in second] == [(2, str(leaf.parent))]

    first = cgroups._candidates(
        "31 20 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n"
        "32 20 0:28 /docker/x /cg/pids rw - cgroup cgroup rw,pids\n"
        "33 20 0:29 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
        "4:memory:/a\n3:pids:/docker/x/b\n2:cpu,cpuacct:/\n",
    )
    assert [(p.version, dict(p.parents)) for p in first] == [
        (1, {"memory": "/cg/memory/a", "pids": "/cg/pids/b", "cpuacct": "/cg/cpu,cpuacct"})
    ]
    assert cgroups._candidates("34 20 0:30 / / rw - ext4 /dev/x rw\n", "0::/\n") == []


def test_a_group_of_version_2_writes_the_limits_and_reads_the_counters(tmp_path):
    places = cgroups.Places(2, dict.fromkeys(("memory", "pids", "cpuacct"), str(tmp_path)))
    group = cgroups.Cgroup(places, Limits(memory_mb=100, workspace_mb=28, processes=10))
    (folder,) = tmp_path.iterdir()
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {
        "memory.max": str(128 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "13",
    }
    assert group.enter == (f"{folder}/cgroup.procs",)
    (folder / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (folder / "memory.events").write_text("low 0\noom 0\noom_kill 0\n")
    assert (group.cpu_s(), group.broken()) == (1.5, None)
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert group.broken() is Outcome.OOM
    (folder / "cgroup.procs").write_text("")
    assert not group.alive()


def test_the_watchdog_divides_shared_pages_before_it_blames(monkeypatch):
    """Ten forks that share one block are not ten blocks."""
    from leadscrew.adapters.sandboxes import tree
    from leadscrew.adapters.sandboxes.limits import Watchdog

    watchdog = Watchdog(Limits(memory_mb=100), lambda pid: [1, 2, 3])
    one = tree.Usage(0, 0, 0.0, 0.0, 1, 60 << 20, False)
    monkeypatch.setattr(tree, "usage", lambda pid: one)
    monkeypatch.setattr(tree, "proportional", lambda pid: 20 << 20)
    watchdog.attach(1)
    assert watchdog.broken() is None
    monkeypatch.setattr(tree, "proportional", lambda pid: 40 << 20)
    assert watchdog.broken() is Outcome.OOM


async def test_many_boxes_open_and_vanish_at_once():
    mark = f"leadscrew-mark-{os.getpid()}-many"
    sandbox = BubblewrapSandbox()
    try:
        code = f"{mark!r}; import sys; print(sys.stdin.read())"
        boxes = await asyncio.gather(*(sandbox.open(spec(code)) for _ in range(12)))
        replies = await asyncio.gather(*(finish(box, str(n).encode()) for n, box in enumerate(boxes)))
        assert replies == [(0, f"{n}\n", "") for n in range(12)]
    finally:
        await sandbox.close()
    assert processes(mark) == []
