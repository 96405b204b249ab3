"""No isolation: a box is a plain process of the user. Only when asked for by name; the certificate says so."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from leadscrew.adapters.sandboxes import tree
from leadscrew.adapters.sandboxes.layout import EVERYWHERE, GUEST, WORKER
from leadscrew.adapters.sandboxes.limits import Watchdog, describe_common, launcher
from leadscrew.adapters.sandboxes.packages import site_folders
from leadscrew.adapters.sandboxes.process import ProcessBox
from leadscrew.errors import InfrastructureError
from leadscrew.ports import BoxSpec, SandboxReport

PYTHON = "/py/bin/python3"
"""Where boxes have their interpreter; here it stands for the host's."""
_TAG = "LEADSCREW_BOX"
"""A variable with a random value marks the processes of a box, wherever they move to."""


class PlainSandbox:
    """Runs programs as processes of the user, with per-process limits, a watchdog, and everything in their reach.

    A temporary folder stands for the root of the box; it holds `work`, `tmp`, `guest` and a link for every mount. Words
    of `argv` that name such a place are rewritten; `box.path` tells where it is.
    """

    name = "none"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._boxes: set[ProcessBox] = set()

    def probe(self) -> SandboxReport:
        """Say that nothing is isolated; never raises."""
        limits = {
            "memory": "watchdog every 50 ms over the processes that can be found, RLIMIT_DATA per process",
            "processes": "watchdog over the processes that can be found",
            **describe_common("watchdog"),
            "workspace": "not kept",
            "network": "not kept",
            "system_calls": "not filtered",
        }
        return SandboxReport(
            self.name, "-", limits, isolated=False,
            warnings=(
                "no sandbox: programs reach the network and whatever this user can read or write",
                "a program may outlive an engine that is killed",
            ),
        )  # fmt: skip

    def exposes(self, spec: BoxSpec) -> Sequence[str]:
        """Return nothing: everything the user can read is exposed, and no scan could make that good."""
        return ()

    async def open(self, spec: BoxSpec) -> ProcessBox:
        """Start a plain process."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix="leadscrew-box-", dir=self._folder))
        try:
            _fill(root, spec)
            interpreter = spec.environment.interpreter or sys.executable
            tops = {"/guest", "/work", "/tmp"} | {m.target.rstrip("/") for m in spec.mounts}

            def place(path: str) -> str:
                inside = any(path == top or path.startswith(top + "/") for top in tops)
                return str(root / path.lstrip("/")) if inside else path

            words = [place(word) for word in spec.argv or (PYTHON, "-s", "-P", WORKER)]
            if words[0] == PYTHON:
                words[0] = interpreter
            tag = f"{_TAG}={secrets.token_hex(12)}"
            meter = Watchdog(spec.limits, lambda pid: _members(pid, tag))
            box = await ProcessBox.start(
                launcher(words, spec.limits, meter),
                spec.limits,
                meter,
                env=self._environment(spec, root, tag),
                cwd=place(spec.cwd),
                places=place,
                cleanup=lambda box: self._free(box, root),
            )
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        self._boxes.add(box)
        return box

    def _environment(self, spec: BoxSpec, root: Path, tag: str) -> dict[str, str]:
        out = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(root / "work"),
            "TMPDIR": str(root / "tmp"),
            **EVERYWHERE,
            _TAG: tag.split("=")[1],
        }
        if spec.environment.packages:
            out["PYTHONPATH"] = os.pathsep.join(site_folders(spec.environment.interpreter))
        return out | dict(spec.env)

    def _free(self, box: ProcessBox, root: Path) -> None:
        self._boxes.discard(box)
        shutil.rmtree(root, ignore_errors=True)

    async def close(self) -> None:
        """Kill every box that is still open and remove its folder."""
        await asyncio.gather(*(box.kill() for box in tuple(self._boxes)))


def _fill(root: Path, spec: BoxSpec) -> None:
    for name in ("work", "tmp"):
        (root / name).mkdir()
    (root / "guest").symlink_to(GUEST)
    for mount in spec.mounts:
        if not os.path.exists(mount.source):
            raise InfrastructureError(f"{mount.source!r} was to be shown to a box at {mount.target!r}, but is missing.")
        place = root / mount.target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        place.symlink_to(os.path.abspath(mount.source))


def _members(pid: int, tag: str) -> list[int]:
    return list(dict.fromkeys([*tree.descendants(pid), *tree.tagged(tag)]))
