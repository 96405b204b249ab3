"""What every sandbox must do, as tests to subclass. For authors of plug-ins; needs pytest and pytest-asyncio.

::

    class TestMine(SandboxSuite):
        def make(self):
            return MySandbox()

Boxes offer Python at `/py/bin/python3`. What only an isolating sandbox can keep is checked where `probe` says `isolated`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError
from leadscrew.ports import Box, BoxSpec, Mount, Sandbox

PYTHON = ("/py/bin/python3", "-s", "-P", "-c")
LIMITS = Limits(cpu_s=20, wall_s=60, load_s=20, memory_mb=256, processes=32, file_mb=8, workspace_mb=16)


def spec(code: str, *, mounts: tuple[Mount, ...] = (), limits: Limits = LIMITS, **more: Any) -> BoxSpec:
    """Return a box that runs a piece of Python."""
    return BoxSpec("evaluate", limits, argv=(*PYTHON, code), mounts=mounts, **more)


async def finish(box: Box, data: bytes = b"") -> tuple[int, str, str]:
    """Send `data`, close the pipe, and return exit code, standard output and standard error; the box is gone afterwards."""
    try:
        box.stdin.write(data)
        box.stdin.close()
        out, err = await asyncio.gather(box.stdout.read(), box.stderr.read())
        return await box.wait(), out.decode(), err.decode()
    finally:
        await box.kill()


class SandboxSuite(ABC):
    """Subclass it under a name that starts with `Test` and implement `make`."""

    @abstractmethod
    def make(self) -> Sandbox:
        """Return a fresh sandbox."""

    async def run(self, code: str, data: bytes = b"", **more: Any) -> tuple[int, str, str]:
        """Run a piece of Python in a box of a fresh sandbox."""
        sandbox = self.make()
        try:
            return await finish(await sandbox.open(spec(code, **more)), data)
        finally:
            await sandbox.close()

    async def test_probe_reports_every_limit(self) -> None:
        report = self.make().probe()
        assert report.name == self.make().name
        assert {"memory", "processes", "cpu", "wall", "file_size", "workspace", "network"} <= set(report.limits)
        assert report.isolated or report.warnings

    async def test_pipes_and_exit_code(self) -> None:
        code = "import sys; sys.stdout.write(sys.stdin.read()[::-1]); sys.stderr.write('note'); sys.exit(7)"
        assert await self.run(code, b"abc") == (7, "cba", "note")

    async def test_a_signal_is_a_negative_code(self) -> None:
        assert (await self.run("import os; os.kill(os.getpid(), 9)"))[0] == -signal.SIGKILL

    async def test_much_output_passes(self) -> None:
        code, out, _ = await self.run("print('x' * 3_000_000)")
        assert (code, len(out)) == (0, 3_000_001)

    async def test_the_environment_is_what_the_spec_says(self, monkeypatch: Any) -> None:
        monkeypatch.setenv("LEADSCREW_SECRET_KEY", "sk-host")
        code = "import os, json; print(json.dumps(dict(os.environ)))"
        status, out, err = await self.run(code, env={"GIVEN": "yes"})
        assert status == 0, err
        seen = json.loads(out)
        assert seen["GIVEN"] == "yes"
        assert seen["PYTHONHASHSEED"] == "0"
        assert "LEADSCREW_SECRET_KEY" not in seen
        assert "sk-host" not in out

    async def test_hashes_are_the_same_everywhere(self) -> None:
        assert await self.run("print(hash('leadscrew'))") == await self.run("print(hash('leadscrew'))")

    async def test_work_is_writable_and_fresh(self) -> None:
        sandbox = self.make()
        code = "import os; print(sorted(os.listdir('.'))); open('left', 'w').write('x'); print(os.listdir('.'))"
        try:
            for _ in range(2):
                assert await finish(await sandbox.open(spec(code))) == (0, "[]\n['left']\n", "")
        finally:
            await sandbox.close()

    async def test_files_written_to_a_mount_later_are_seen(self, tmp_path: Path) -> None:
        sandbox = self.make()
        try:
            mounts = (Mount(str(tmp_path), "/program"),)
            code = "import sys; print(sys.stdin.readline() and open(sys.argv[1]).read())"
            box = await sandbox.open(spec(code, mounts=mounts))
            await finish(box)
            translate = getattr(box, "path", str)
            shown = spec(code, mounts=mounts)
            box = await sandbox.open(
                BoxSpec("evaluate", LIMITS, argv=(*shown.argv, "/program/sub/main.py"), mounts=mounts)
            )
            assert translate("/program").endswith("program")
            (tmp_path / "sub").mkdir()
            (tmp_path / "sub" / "main.py").write_text("late")
            assert await finish(box, b"go\n") == (0, "late\n", "")
        finally:
            await sandbox.close()

    async def test_a_writable_mount_reaches_the_host(self, tmp_path: Path) -> None:
        os.chmod(tmp_path, 0o777)
        code = "import sys; open(sys.argv[1], 'w').write('made')"
        sandbox = self.make()
        argv = (*PYTHON, code, "/out/file")
        try:
            mounts = (Mount(str(tmp_path), "/out", writable=True),)
            done = await finish(await sandbox.open(BoxSpec("propose", LIMITS, argv=argv, mounts=mounts)))
            assert done == (0, "", "")
            assert (tmp_path / "file").read_text() == "made"
        finally:
            await sandbox.close()

    async def test_a_missing_mount_is_our_failure(self) -> None:
        sandbox = self.make()
        said = ""
        try:
            await sandbox.open(spec("pass", mounts=(Mount("/nowhere/at/all", "/program"),)))
        except InfrastructureError as error:
            said = str(error)
        finally:
            await sandbox.close()
        assert "/nowhere/at/all" in said

    async def test_the_worker_starts_without_argv(self) -> None:
        sandbox = self.make()
        try:
            box = await sandbox.open(BoxSpec("evaluate", LIMITS))
            box.stdin.write(b'{"op": "hello", "id": 1, "nonce": "n"}\n')
            await box.stdin.drain()
            line = json.loads(await asyncio.wait_for(box.stdout.readline(), 30))
            assert (line["id"], line["nonce"], "hello" in line) == (1, "n", True)
            assert await finish(box) == (0, "", "")
        finally:
            await sandbox.close()

    async def test_wall_time_ends_a_sleeper(self) -> None:
        limits = Limits(cpu_s=5, wall_s=0.4, load_s=0)
        await self._breaks(limits, "import time; time.sleep(60)", Outcome.TIMEOUT)

    async def _breaks(self, limits: Limits, code: str, outcome: Outcome) -> None:
        sandbox = self.make()
        try:
            box = await sandbox.open(spec(code, limits=limits))
            assert await asyncio.wait_for(box.wait(), 30) != 0
            assert box.breach() is outcome
            await box.kill()
            assert box.breach() is outcome
        finally:
            await sandbox.close()

    async def test_no_breach_of_a_box_that_ended_by_itself(self) -> None:
        sandbox = self.make()
        try:
            box = await sandbox.open(spec("raise SystemExit(3)"))
            assert await box.wait() == 3
            assert box.breach() is None
            await box.kill()
            assert box.breach() is None
            assert box.usage().wall_ms >= 1
        finally:
            await sandbox.close()

    async def test_kill_ends_daemons_and_may_be_repeated(self) -> None:
        mark = f"leadscrew-mark-{os.getpid()}-{time.monotonic_ns()}"
        code = (
            "import os, sys, time\n"
            "for _ in range(3):\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n"
            "        if os.fork() == 0:\n"
            "            time.sleep(600)\n"
            "        os._exit(0)\n"
            "    os.wait()\n"
            f"{mark!r}\n"
            "print('up', flush=True)\n"
            "time.sleep(600)\n"
        )
        sandbox = self.make()
        try:
            box = await sandbox.open(spec(code))
            assert await asyncio.wait_for(box.stdout.readline(), 30) == b"up\n"
            assert len(processes(mark)) >= 4
            await box.kill()
            await box.kill()
            assert processes(mark) == []
            assert await box.wait() != 0
        finally:
            await sandbox.close()

    async def test_close_kills_what_is_open(self) -> None:
        mark = f"leadscrew-mark-{os.getpid()}-{time.monotonic_ns()}"
        sandbox = self.make()
        for _ in range(3):
            box = await sandbox.open(spec(f"{mark!r}; print('up', flush=True); import time; time.sleep(600)"))
            assert await asyncio.wait_for(box.stdout.readline(), 30) == b"up\n"
        assert len(processes(mark)) >= 3
        await sandbox.close()
        assert processes(mark) == []

    async def test_an_isolating_box_keeps_to_itself(self, tmp_path: Path) -> None:
        if not self.make().probe().isolated:
            return
        secret = tmp_path / "secret"
        secret.write_text("gold")
        code = (
            "import os, socket, sys\n"
            f"print(os.path.exists({str(secret)!r}), os.path.exists('/root'), os.path.exists('/home'))\n"
            "for path in ('/program/x', '/py/x', '/guest/x', '/x', '/etc/x'):\n"
            "    try:\n"
            "        open(path, 'w')\n"
            "        print('wrote', path)\n"
            "    except OSError:\n"
            "        pass\n"
            "s = socket.socket(); s.settimeout(3)\n"
            "try:\n"
            "    s.connect(('192.0.2.1', 80)); print('connected')\n"
            "except OSError as error:\n"
            "    print(type(error).__name__)\n"
        )
        program = tmp_path / "program"
        program.mkdir()
        status, out, err = await self.run(code, mounts=(Mount(str(program), "/program"),))
        assert (status, out) == (0, "False False False\nOSError\n"), err


def processes(mark: str) -> list[int]:
    """Return the processes of this machine whose command line holds `mark`, zombies left out."""
    found, needle = [], mark.encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b") ")[2][:1]
            except OSError:
                continue
            if needle in line and state not in (b"Z", b"X"):
                found.append(int(name))
    return found
