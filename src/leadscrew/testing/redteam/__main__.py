"""`python -m leadscrew.testing.redteam [--json] [NAME ...]`: exit code 1 for a breach or a failed control."""

from __future__ import annotations

import sys

from leadscrew.testing.redteam import run

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--json"]
    sys.exit(0 if run(sys.stdout, as_json="--json" in sys.argv, only=words).passed else 1)
