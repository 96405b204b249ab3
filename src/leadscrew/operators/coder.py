"""Our own coding agent as proposer: it needs a model behind the gateway, and nothing installed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

from leadscrew.core.program import Program
from leadscrew.core.proposal import Edit, Proposal
from leadscrew.errors import ConfigError
from leadscrew.operators.command import check_numbers
from leadscrew.operators.turns import BENCH, PROMPT_FILE, SKILL_FILE, WORK, Asked, Turns, TurnSettings
from leadscrew.ports import Bench, Errand
from leadscrew.ports.errands import ERRAND_LIMITS

BAD_TASK, MODEL_FAILED = 2, 21
"""Exit codes of the coder that are not its model's doing."""


class CoderProposer:
    """Runs the built-in coder once per plan. `role` is whose model it asks, which `[models.ROLE]` pins.

    `protocol` is `native` for models with tool calls and `tags` for those without. `tool_calls`, `tokens` (over all
    requests) and `timeout_s` bound a turn; `window` and `reply_tokens` are the model's, in tokens.
    """

    name = "coder"
    needs_model = True

    def __init__(
        self,
        *,
        role: str = "proposer",
        model: str = "",
        protocol: Literal["native", "tags"] = "native",
        dialect: Literal["openai", "anthropic"] = "openai",
        tool_calls: int = 60,
        tokens: int = 400_000,
        window: int = 32_000,
        reply_tokens: int = 4_096,
        timeout_s: float = 2400.0,
        repair: int = 1,
        repair_s: float = 600.0,
        breaker: int = 3,
    ) -> None:
        if protocol not in ("native", "tags") or dialect not in ("openai", "anthropic"):
            raise ConfigError(
                f"proposer.options: protocol = {protocol!r}, dialect = {dialect!r}; write 'native' or 'tags', and 'openai' "
                "or 'anthropic'.",
                key="proposer.options.protocol",
            )
        check_numbers(tool_calls=tool_calls, tokens=tokens, window=window, reply_tokens=reply_tokens, breaker=breaker)
        check_numbers(timeout_s=timeout_s, repair_s=repair_s, repair=repair + 1 if isinstance(repair, int) else repair)
        self.role, self.model = role, model
        self._task = {
            "system_file": SKILL_FILE,
            "prompt_file": PROMPT_FILE,
            "read": [BENCH],
            "protocol": protocol,
            "dialect": dialect,
            "model": model or "model",
            "tool_calls": tool_calls,
            "tokens": tokens,
            "window": window,
            "reply_tokens": reply_tokens,
        }
        self._limits = replace(ERRAND_LIMITS, wall_s=timeout_s)
        self._tools = _tree(files("leadscrew") / "templates" / "coder")
        settings = TurnSettings(
            timeout_s=timeout_s,
            repairs=repair,
            repair_s=repair_s,
            breaker=breaker,
            stream="coder",
            model=model,
            broken_codes=frozenset((BAD_TASK, MODEL_FAILED)),
        )
        self._turns = Turns(self.errand, settings)

    def errand(self, asked: Asked) -> Errand:
        """Return the errand of one turn. The coder ends by itself a little before its time is up."""
        task = {**self._task, "seconds": max(int(0.95 * asked.seconds), 1)}
        return Errand(
            argv=("python3", "/tools/main.py", f"{WORK}/task.json"),
            role=self.role,
            tools=self._tools,
            work=Program.of({"task.json": json.dumps(task, indent=1) + "\n"}),
            limits=self._limits,
        )

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Return what the coder delivers; failed proposals with their reason."""
        return await self._turns.propose(plan, bench)


def _tree(folder: Traversable, prefix: str = "") -> Program:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                found |= {path: file.data for path, file in _tree(entry, f"{prefix}{entry.name}/").items()}
        else:
            found[prefix + entry.name] = entry.read_bytes()
    return Program.of(found)
