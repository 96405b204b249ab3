"""What works on this machine: the sandbox tried for real, what it enforces, and the optional parts."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leadscrew.errors import LeadscrewError


def examine(cache: Path) -> dict[str, Any]:
    """Try what a run needs. `ok`: whether programs can be run in isolation here; each fault comes with its remedy."""
    sandbox = _sandbox()
    return {
        "ok": sandbox["works"],
        "version": version("leadscrew"),
        "python": f"{platform.python_version()} at {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {os.cpu_count()} processors, user {os.getuid()}",
        "sandbox": sandbox,
        "optional": {
            "numpy and scipy (circle-packing)": _installed("numpy", "scipy", remedy="pip install 'leadscrew[circles]'"),
            "git (init --from-git, export --git)": "found" if shutil.which("git") else "missing: install git",
        },
        "cache": f"{cache}{'' if _writable(cache) else ', NOT WRITABLE: set XDG_CACHE_HOME to a folder that is'}",
    }


def _sandbox() -> dict[str, Any]:
    from leadscrew.config import config_from
    from leadscrew.wire import start_sandbox

    with tempfile.TemporaryDirectory(prefix="leadscrew-doctor-") as folder:
        try:
            _, report = start_sandbox(config_from({"domain": {"name": "docstrings"}}), Path(folder))
        except LeadscrewError as error:
            return {"works": False, "reason": str(error)}
    return {
        "works": True,
        "name": f"{report.name} {report.version}".strip(),
        "isolated": report.isolated,
        **{f"limit {name}": how for name, how in report.limits.items()},
        **({"warnings": list(report.warnings)} if report.warnings else {}),
    }


def _installed(*packages: str, remedy: str) -> str:
    missing = [name for name in packages if find_spec(name) is None]
    return f"missing {', '.join(missing)}: {remedy}" if missing else "found"


def _writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, may be written."""
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)
