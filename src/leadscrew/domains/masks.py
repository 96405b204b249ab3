"""Host paths from which a built-in domain's gold could be rebuilt."""

from __future__ import annotations

import glob
import os
import site
import sys
import sysconfig
from pathlib import Path

# Packages that carry copies of standard-library sources with their documentation.
_COPIES = (
    "_distutils_hack", "backports", "distlib", "importlib_metadata", "importlib_resources", "pip", "pkg_resources",
    "setuptools", "typing_extensions.py", "virtualenv",
)  # fmt: skip


def cache_folder() -> Path:
    """Return the folder where built data sets are kept: `$XDG_CACHE_HOME/leadscrew`, else `~/.cache/leadscrew`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "leadscrew"


def standard_library_texts() -> list[str]:
    """Return existing paths that hold the standard library's documentation: every Python at hand, and manuals."""
    patterns = [
        sysconfig.get_path("stdlib"),
        "/usr/lib/python3*",
        "/usr/lib64/python3*",
        "/usr/local/lib/python3*",
        "/usr/share/doc/python3",
        "/usr/share/doc/python3.*",
        "/opt/*/lib/python3*",
    ]
    # Version managers keep their interpreters side by side; the running one shows where.
    base = Path(os.path.realpath(sys.base_prefix))
    for prefix in {base, Path(sys.base_prefix)}:
        if prefix not in (Path("/usr"), Path("/usr/local")):
            beside = glob.escape(str(prefix.parent))
            patterns += [f"{glob.escape(str(prefix))}/lib/python3*", f"{beside}/*[0-9].[0-9]*/lib/python3*"]
    home = glob.escape(str(Path.home()))
    patterns += [f"{home}/.local/share/uv/python/*/lib/python3*", f"{home}/*conda*/lib/python3*"]
    for folder in {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")}:
        patterns += [f"{glob.escape(folder)}/{name}" for name in _COPIES]
    return existing(patterns)


def existing(patterns: list[str]) -> list[str]:
    """Return the existing paths that match, sorted, without those inside another."""
    found = sorted({os.path.abspath(path) for pattern in patterns if pattern for path in glob.glob(pattern)})
    kept: list[str] = []
    for path in found:
        if not any(path.startswith(outer + os.sep) for outer in kept):
            kept.append(path)
    return kept
