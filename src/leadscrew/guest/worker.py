"""The first process of a box that runs programs. Started as `python -I -S worker.py`, spoken to in JSON lines.

Two processes from here on: the *supervisor* (this one; it keeps the host's pipes and never imports a program) and the
*zygote*, forked before anything is read from the host, which loads the program and forks one process per trial.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False


def main() -> None:
    """Move the host's pipes out of the programs' reach, fork the zygote, and serve."""
    sys.dont_write_bytecode = True
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:
        sys.path.insert(0, here)
    if TYPE_CHECKING:
        from leadscrew.guest import leadscrew_supervisor
    else:
        import leadscrew_supervisor
    leadscrew_supervisor.start()


if __name__ == "__main__":
    main()
