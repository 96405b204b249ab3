"""No isolation: a box is a plain process of the user. Only when asked for by name; the certificate says so."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from leadscrew.adapters.sandboxes import tree
from leadscrew.adapters.sandboxes.layout import GUEST, WORKER
from leadscrew.adapters.sandboxes.limits import Watchdog, describe_common
from leadscrew.adapters.sandboxes.packages import site_folders
from leadscrew.adapters.sandboxes.process import ProcessBox
from leadscrew.errors import InfrastructureError
from leadscrew.ports import BoxSpec, SandboxReport

_TAG = "LEADSCREW_BOX"
ROOT = "LEADSCREW_ROOT"
"""Names the folder that stands for `/` in a box of this kind; absent in real boxes, where `/` is `/`."""


class PlainSandbox:
    """Runs programs as processes of the user, with per-process limits and a watchdog, and with everything in their reach.

    A temporary folder stands for the root of the box; it holds `work`, `tmp`, `guest` and a link for every mount. A word of
    `argv` that names such a place is rewritten, and the worker finds the folder in the variable `LEADSCREW_ROOT`.
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
            warnings=("programs run without a sandbox: they can read and write whatever this user can, and reach the network",),
        )  # fmt: skip

    async def open(self, spec: BoxSpec) -> ProcessBox:
        """Start a plain process."""
        root = Path(tempfile.mkdtemp(prefix="leadscrew-box-", dir=self._folder))
        try:
            for name in ("work", "tmp"):
                (root / name).mkdir()
            (root / "guest").symlink_to(GUEST)
            for mount in spec.mounts:
                if not os.path.exists(mount.source):
                    raise InfrastructureError(f"{mount.source!r} was to be shown to a box at {mount.target!r} but is missing.")
                place = root / mount.target.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                if place.is_dir() and not place.is_symlink():
                    place.rmdir()
                place.symlink_to(os.path.abspath(mount.source))
            interpreter = spec.environment.interpreter or sys.executable
            argv = spec.argv or (interpreter, "-s", "-P", WORKER)
            tops = {"/guest", "/work", "/tmp"} | {m.target.rstrip("/") for m in spec.mounts}
            words = [_place(word, root, tops, interpreter) for word in argv]
            tag = f"{_TAG}={secrets.token_hex(12)}"
            box = await ProcessBox.start(
                words,
                spec.limits,
                Watchdog(spec.limits, lambda pid: _members(pid, tag)),
                env=self._environment(spec, root, tag),
                cwd=str(root / spec.cwd.lstrip("/")) if (root / spec.cwd.lstrip("/")).is_dir() else str(root / "work"),
                cleanup=lambda: self._free(box, root),
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
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            ROOT: str(root),
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


def _place(word: str, root: Path, tops: set[str], interpreter: str) -> str:
    if word in ("/py/bin/python", "/py/bin/python3"):
        return interpreter
    if any(word == top or word.startswith(top + "/") for top in tops):
        return str(root / word.lstrip("/"))
    return word


def _members(pid: int, tag: str) -> list[int]:
    return list(dict.fromkeys([*tree.descendants(pid), *tree.tagged(tag)]))
