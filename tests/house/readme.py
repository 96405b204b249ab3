"""Run the README's two commands, word for word, in a fresh copy of the project: `python readme.py FOLDER`.

The first shell block with `leadscrew demo` installs and runs it; the first one with `pytest` runs the tests. Both run
where a reader would type them: at the root of a checkout, without a terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv",
    "venv",
    "__pycache__",
    "*.egg-info",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "dist",
    "build",
    "runs",
)


def shell_blocks(text: str) -> list[str]:
    """Return the fenced `sh`, `bash` and `console` blocks of a Markdown text, prompts removed."""
    blocks = re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in blocks]


def commands(text: str) -> tuple[str, str]:
    """Return the README's command 1 (install and demo) and command 2 (tests)."""
    blocks = shell_blocks(text)
    demo = next((b for b in blocks if "leadscrew demo" in b), "")
    tests = next((b for b in blocks if "pytest" in b), "")
    if not demo or not tests:
        raise SystemExit("README.md needs a shell block with 'leadscrew demo' and one with 'pytest'")
    return demo, tests


def main(folder: Path) -> int:
    """Copy the project into `folder` and run both commands there; return the first exit code that is not 0."""
    copy = folder / "checkout"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
    outside = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")}
    active = os.environ.get("VIRTUAL_ENV")
    if active:
        outside["PATH"] = os.pathsep.join(p for p in outside["PATH"].split(os.pathsep) if p != f"{active}/bin")
    for command in commands((ROOT / "README.md").read_text(encoding="utf-8")):
        print(f"\n$ {command.strip()}", flush=True)
        start = time.monotonic()
        code = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=copy, env=outside, stdin=subprocess.DEVNULL, check=False
        ).returncode
        print(f"-- exit code {code} after {time.monotonic() - start:.0f} s", flush=True)
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
