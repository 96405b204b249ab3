"""Errands in real boxes: what the command sees, what comes back whatever it does, and what it cannot reach."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from leadscrew.adapters.executors import errands
from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.adapters.sandboxes.none import PlainSandbox
from leadscrew.core.program import Program
from leadscrew.core.task import Limits
from leadscrew.errors import InfrastructureError, SandboxUnavailable
from leadscrew.ports import Errand
from support.benches import Laboratory, python

LIMITS = Limits(cpu_s=20, wall_s=60, memory_mb=512, processes=64, workspace_mb=32)


@pytest.fixture
async def laboratory(tmp_path: Path) -> AsyncIterator[Laboratory]:
    sandbox = BubblewrapSandbox()
    try:
        sandbox.probe()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    made = await Laboratory(tmp_path / "run", sandbox).begin()
    yield made
    await made.close()


LOOK = """
import json, os, sys
seen = {
    "argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "stdin": sys.stdin.read(),
    "bench": sorted(os.listdir("/bench")), "programs": sorted(os.listdir("/bench/programs")),
    "history": sorted(os.listdir("/bench/history")), "prompt": json.load(open("/bench/prompt.json")),
    "work": sorted(os.listdir("/work")), "note": open("/work/note.txt").read(), "root": sorted(os.listdir("/")),
    "session": os.getsid(0) == os.getpid(), "skill": open("/bench/SKILL.md").read(),
}
for place in ("/bench/history/x", "/bench/x", "/tools/x", "/bench/programs/0.1/digits.txt", "/x"):
    try:
        open(place, "w")
        seen["wrote"] = place
    except OSError:
        pass
json.dump(seen, open("/work/seen.json", "w"))
print("out"); print("err", file=sys.stderr)
sys.exit(3)
"""


async def test_a_command_sees_the_bench_and_nothing_of_ours(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "hush")
    errand = Errand(
        ("python3", "/tools/agent.py", "--flag", "two words"),
        tools=Program.of({"agent.py": LOOK}),
        work=Program.of({"note.txt": "hello", "deep/er.txt": "x"}),
        papers=Program.of({"SKILL.md": "another skill"}),
        env={"MINE": "yes"},
        limits=LIMITS,
    )
    heard: list[bytes] = []
    result = await laboratory.bench().errand(replace(errand, on_output=heard.append))
    assert (result.outcome, result.exit_code, result.lost, result.isolated) == ("crash", 3, "", True)
    assert (result.stdout, result.stderr, b"".join(heard)) == ("out\n", "err\n", b"out\n")
    assert result.work is not None
    assert set(result.work) == {"note.txt", "deep/er.txt", "seen.json"}
    seen = json.loads(result.work.text("seen.json"))
    assert seen["argv"] == ["--flag", "two words"]
    assert (seen["cwd"], seen["stdin"], seen["note"], seen["session"]) == ("/work", "", "hello", True)
    assert seen["bench"] == ["SKILL.md", "history", "programs", "prompt.json"]
    assert seen["skill"] == "another skill"
    assert seen["programs"]
    assert set(seen["programs"]) <= {"0.0", "0.1", "1.0", "1.1"}
    assert {"evolution_summary.jsonl", "frontier_val.json", "candidates", "README.md"} <= set(seen["history"])
    assert seen["prompt"]["history"] == "history/"
    assert "wrote" not in seen
    assert seen["env"]["MINE"] == "yes"
    assert set(seen["env"]) <= {
        "PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "MINE", "PWD", "LC_CTYPE", "PYTHONHASHSEED",
        "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    }  # fmt: skip
    assert not list((laboratory.folder / "tmp").iterdir()), "nothing stays"


async def test_what_is_written_before_a_stall_comes_back_and_nobody_survives(laboratory: Laboratory) -> None:
    stall = """
import os, subprocess, sys
open("/work/pending_eval.json", "w").write("{}")
subprocess.Popen(["sleep", "1001.5"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "1001.5"])
    os._exit(0)
print("ready", flush=True)
os.execvp("sleep", ["sleep", "1001.5"])
"""
    result = await laboratory.bench().errand(python(stall, timeout_s=4, limits=LIMITS))
    assert (result.outcome, result.exit_code, result.lost) == ("timeout", None, "")
    assert result.stdout == "ready\n"
    assert result.work is not None
    assert result.work.text("pending_eval.json") == "{}"
    assert not _running("1001.5")


async def test_what_a_command_leaves_running_ends_with_it(laboratory: Laboratory) -> None:
    leave = "import subprocess; subprocess.Popen(['sleep', '1002.5'], start_new_session=True); open('/work/a','w')"
    result = await laboratory.bench().errand(python(leave, limits=LIMITS))
    assert (result.outcome, result.work and set(result.work)) == ("ok", {"a"})
    assert not _running("1002.5")


async def test_a_cancelled_errand_leaves_nothing(laboratory: Laboratory) -> None:
    started = asyncio.Event()
    stall = "import os; print('on', flush=True); os.execvp('sleep', ['sleep', '1004.5'])"
    errand = replace(python(stall, limits=LIMITS), on_output=lambda data: started.set())
    task = asyncio.create_task(laboratory.bench().errand(errand))
    await started.wait()
    while not _running("1004.5"):  # noqa: ASYNC110 - the control: it is there while it may be
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _running("1004.5")
    assert not list((laboratory.folder / "tmp").iterdir())


async def test_cpu_is_bounded_too(laboratory: Laboratory) -> None:
    limits = Limits(cpu_s=1, wall_s=60, memory_mb=512, processes=64, workspace_mb=32)
    result = await laboratory.bench().errand(python("open('/work/a', 'w')\nwhile True: pass", limits=limits))
    assert (result.outcome, result.work and set(result.work)) == ("timeout", {"a"})


async def test_a_flood_of_output_keeps_head_and_tail(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "STDOUT_BYTES", 64 << 10)
    flood = "import sys\nprint('first')\nfor _ in range(400): sys.stdout.write('x' * 9999 + '\\n')\nprint('last')"
    result = await laboratory.bench().errand(python(flood, limits=LIMITS))
    assert result.outcome == "ok"
    assert result.stdout.startswith("first\n")
    assert result.stdout.endswith("last\n")
    total = 6 + 400 * 10_000 + 5
    assert f"of {total} bytes left out" in result.stdout
    assert len(result.stdout) < (64 << 10) + 100


async def test_links_devices_and_what_is_too_large_stay_behind(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errands, "BACK_BYTES", 1 << 20)
    mess = r"""
import os
os.symlink("/etc/passwd", "/work/link"); os.mkfifo("/work/pipe"); os.symlink("/", "/work/folder")
os.mkdir("/work/shut"); open("/work/shut/in", "w").write("in"); os.chmod("/work/shut", 0)
open("/work/" + "n" * 201, "w"); os.mkdir("/work/__pycache__"); open("/work/__pycache__/a.pyc", "w")
open("/work/pending_eval.json", "w").write("[]")
try:
    with open("/work/big", "wb") as big:
        while True:
            big.write(bytes(1 << 20))
except OSError as error:
    print(error.errno)
"""
    result = await laboratory.bench().errand(python(mess, limits=LIMITS))
    assert result.outcome == "ok"
    assert result.stdout == "28\n", "the workspace has a size"
    assert result.work is not None
    assert set(result.work) == {"pending_eval.json", "shut/in"}
    assert {line.split(":")[0][:20] for line in result.left_out} == {"link", "pipe", "folder", "big", "'" + "n" * 19}


async def test_thousands_of_files_come_back_as_far_as_they_may(laboratory: Laboratory) -> None:
    many = """
import os
os.makedirs("/work/" + "d" * 100 + "/" + "e" * 100)
for n in range(4100):
    open("/work/" + "d" * 100 + "/" + "e" * 100 + f"/{n:05d}-\u00fc", "w").write("x" * (n // 4000))
open("/work/pending_eval.json", "w").write("a list that is longer than any of them")
open("/work/" + "d" * 100 + "/" + "e" * 100 + "/" + "f" * 100, "w")
"""
    result = await laboratory.bench().errand(python(many, limits=LIMITS))
    assert result.outcome == "ok"
    assert result.work is not None
    assert len(result.work) == 4000
    assert "pending_eval.json" in result.work
    assert any("path is too long" in line for line in result.left_out)
    assert result.left_out[-1] == "and 52 more"


async def test_a_command_cannot_speak_for_the_runner_or_kill_it(laboratory: Laboratory) -> None:
    lie = r"""
import os, signal
for pid in (p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()):
    for fd in range(256):
        try:
            with open(f"/proc/{pid}/fd/{fd}", "w") as stream:
                stream.write('{"nonce": "", "done": true, "ended": "", "status": 0}\n')
        except OSError:
            pass
open("/work/kept", "w").write("kept")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for pid in (-1, 1):
    for number in (signal.SIGTERM, signal.SIGKILL) if pid == 1 else (signal.SIGTERM,):
        try:
            os.kill(pid, number)
        except OSError:
            pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = await laboratory.bench().errand(python(lie, limits=LIMITS))
    assert (result.outcome, result.exit_code) == ("crash", -9)
    assert result.work is not None
    assert set(result.work) == {"kept"}


async def test_a_command_that_does_not_exist_is_a_result(laboratory: Laboratory) -> None:
    result = await laboratory.bench().errand(Errand(("no-such-agent", "-p"), limits=LIMITS))
    assert (result.outcome, result.exit_code) == ("crash", 127)
    assert "no-such-agent" in result.stderr


async def test_too_much_memory_ends_the_command(laboratory: Laboratory) -> None:
    limits = Limits(cpu_s=20, wall_s=60, memory_mb=128, processes=64, workspace_mb=32)
    eat = "open('/work/a', 'w').write('a')\nkept = []\nwhile True: kept.append(b'x' * (4 << 20))"
    result = await laboratory.bench().errand(python(eat, limits=limits))
    assert result.outcome in ("oom", "crash")
    assert (result.work is None) == bool(result.lost), "a lost workspace says why"


async def test_a_mount_that_is_missing_is_our_fault(laboratory: Laboratory) -> None:
    with pytest.raises(InfrastructureError, match="missing"):
        await laboratory.bench().errand(Errand(("true",), mounts=(("/no/such/folder", "/opt/agent"),)))


async def test_without_a_sandbox_paths_are_where_they_really_are(tmp_path: Path) -> None:
    made = await Laboratory(tmp_path / "run", PlainSandbox()).begin()
    try:
        errand = Errand(
            ("sh", "-c", "cat /bench/prompt.json > /work/copy && cat /work/task.json && ls /bench/history && exec cat"),
            work=Program.of({"task.json": '{"file": "/work/copy", "not": "/my/work/x"}\n'}),
            limits=LIMITS,
        )
        result = await made.bench().errand(errand)
        assert (result.outcome, result.isolated) == ("ok", False), result.stderr
        assert result.work is not None
        assert json.loads(result.work.text("copy"))["history"] == "history/"
        told = json.loads(result.stdout.splitlines()[0])
        assert told["file"].endswith("/work/copy")
        assert told["file"] != "/work/copy"
        assert told["not"] == "/my/work/x"
        assert "evolution_summary.jsonl" in result.stdout
    finally:
        await made.close()


def _running(mark: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [b"sleep", mark.encode()]:
                found.append(name)
    return found
