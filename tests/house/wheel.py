"""Check that a package installed with `pip --target FOLDER` has every file of the source: `python wheel.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def listing(package: Path) -> set[str]:
    """Return the files of a package folder, byte code left out."""
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(package)) for path in files}


def main(folder: Path) -> int:
    """Print what is missing from the installed package, or should not be in it; return 1 if anything is."""
    source, installed = listing(ROOT / "src" / "leadscrew"), listing(folder / "leadscrew")
    for path in sorted(source - installed):
        print(f"missing from the wheel: {path}")
    for path in sorted(installed - source):
        print(f"in the wheel but not in the source: {path}")
    print(f"{len(installed)} files in the wheel")
    return int(source != installed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
