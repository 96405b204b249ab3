"""Errands: a command run in a proposer's box on a bench, with files in and files out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from leadscrew.core.budget import Spend
from leadscrew.core.program import Program
from leadscrew.core.task import Limits

ERRAND_LIMITS = Limits(cpu_s=3600.0, wall_s=2400.0, memory_mb=4096, processes=512, workspace_mb=256)


@dataclass(frozen=True, slots=True)
class Errand:
    """A command for a proposer's box. It sees the bench read-only at `/bench`, `tools` read-only at `/tools`, and works in
    `/work`, which starts with the files of `work` and whose content comes back.

    Standard input is closed, the environment is cleared but for `env` and the addresses of the gateway. `role` is whose
    model it may call; an empty one has no way to any. `scope` tells the errands of one plan apart in the record of calls.
    After `timeout_s` wall seconds, or `limits.cpu_s` CPU seconds, the whole tree is killed; what lies in `/work` comes back
    even then. Paths in `argv`, `env` and the texts of `work` and `papers` are written as they are in a box; a sandbox
    without mounts has them rewritten. `${OPENAI_BASE_URL}` and `${ANTHROPIC_BASE_URL}` in `argv` become the addresses of the
    gateway, which are known inside only.
    """

    argv: tuple[str, ...]
    scope: str = "propose"
    role: str = "proposer"
    work: Program = field(default_factory=lambda: Program({}))
    tools: Program = field(default_factory=lambda: Program({}))
    papers: Program = field(default_factory=lambda: Program({}))
    """Files to lay over the top level of the bench: instructions that this errand has and others have not."""
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = ERRAND_LIMITS
    timeout_s: float = 2400.0
    mounts: tuple[tuple[str, str], ...] = ()
    """Host files and folders to show read-only: (source, target). For installed command-line agents and interpreters."""
    on_output: Callable[[bytes], None] | None = None
    """Gets standard output as it comes, for a live view."""


@dataclass(frozen=True, slots=True)
class ErrandResult:
    """How an errand ended. `work` is `/work` as it was left, None if it could not be brought back (`lost` says why).

    `exit_code` is None if the command was killed at a limit; a negative one is a signal. Of long output the middle is left
    out, and its text says how much. `left_out` names what did not come back from `/work`: links, devices, what is too
    large, and why. `exhausted` says that the command wanted more model calls than it was allowed. `spend` and `calls` are
    those of the model and the box; `seconds` is wall time.
    """

    outcome: Literal["ok", "crash", "timeout", "oom"]
    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float
    work: Program | None
    lost: str = ""
    left_out: tuple[str, ...] = ()
    exhausted: str = ""
    isolated: bool = True
    spend: Spend = field(default_factory=Spend)
    calls: tuple[Mapping[str, Any], ...] = ()
