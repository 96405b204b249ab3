"""The built-in coder, started on one task: `python main.py TASK.json`.

Reads the task, lets a model work on it with a shell, an editor, search and reading, and ends with one of the exit codes
of `coder/ends.py`. README.md says what a task holds and which events are printed.
"""

from __future__ import annotations

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from coder.run import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
