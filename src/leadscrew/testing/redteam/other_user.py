"""Run the red team as an ordinary user, when root asks for it: boxes of theirs keep limits in another way."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from leadscrew.errors import InfrastructureError, NotFoundError, UsageError
from leadscrew.testing.redteam.attack import Report, Row


def run_as(user: str, only: Sequence[str] = ()) -> Report:
    """Run the attacks in a process of `user` with an empty home, and return its report.

    Raises `UsageError` if this process may not become another user or if that user cannot run this Python,
    `NotFoundError` for a name that the machine does not know, `InfrastructureError` if the run itself fails.
    """
    if os.geteuid() != 0:
        raise UsageError(f"only root can attack as {user!r}; run the command as that user instead.")
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise NotFoundError(f"this machine has no user {user!r}; 'nobody' will do.", name=user) from None
    with tempfile.TemporaryDirectory(prefix="leadscrew-home-") as home:
        os.chown(home, entry.pw_uid, entry.pw_gid)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "leadscrew.testing.redteam", "--json", *only],
                user=entry.pw_uid, group=entry.pw_gid, extra_groups=[], cwd="/",
                env={"PATH": os.defpath, "HOME": home, "LANG": "C.UTF-8"},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        except PermissionError:
            raise UsageError(
                f"{user!r} may not run {sys.executable}, which leads into a folder of somebody else. Install leadscrew "
                "with a Python that everybody can read, such as /usr/bin/python3, and call it from there."
            ) from None
    try:
        return report_from(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError):
        raise InfrastructureError(f"the attacks did not run as {user!r}: {done.stderr.strip()[-1000:]}") from None


def report_from(told: dict[str, Any]) -> Report:
    """Read what `Report.to_json` wrote."""
    rows = tuple(Row(**row) for row in told["attacks"])
    return Report(rows, told["sandbox"], told["user"], told["seconds"])
