"""Any coding agent with a command line as proposer: a template of its command, a box, the bench, files as deliverable."""

from __future__ import annotations

import os
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from leadscrew.core.program import Program
from leadscrew.core.proposal import Edit, Proposal
from leadscrew.errors import ConfigError
from leadscrew.operators.streams import FORMATS
from leadscrew.operators.turns import BENCH, PROMPT_FILE, SKILL_FILE, WORK, Asked, Turns, TurnSettings
from leadscrew.ports import Bench, Errand
from leadscrew.ports.errands import ERRAND_LIMITS

PLACEHOLDERS = ("prompt", "prompt_file", "skill", "skill_file", "bench", "work", "model", "count")
_TAKEN = ("/bench", "/work", "/tools", "/guest", "/given", "/py", "/proc", "/dev", "/run", "/tmp", "/site")
_PRESET_KEYS = frozenset(("command", "env", "files", "stream", "events_file"))


class CommandProposer:
    """Runs a coding agent once per plan, in a box on the bench, and takes what it delivers in `/work/pending_eval.json`.

    `preset` names a known agent (a file in `templates/agents`), whose fields the other options replace. `command` is its
    argument list; each word may hold the placeholders of `PLACEHOLDERS` (`{{` and `}}` are braces). `env` are variables of
    the box, whose values never reach the archive. `files` are texts laid into `/tools`. `mounts` are `source:target`, for
    the folders of the agent and its interpreter. `stream` is the format of what it prints. `model` is for `{model}` only:
    which model answers is pinned by `[models.ROLE]`. `skill` is a file with standing orders in place of ours.
    """

    name = "command"

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        preset: str = "",
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        mounts: Sequence[str] = (),
        stream: str = "",
        events_file: str = "",
        role: str = "proposer",
        model: str = "",
        skill: str = "",
        timeout_s: float = 2400.0,
        repair: int = 1,
        repair_s: float = 600.0,
        breaker: int = 3,
        memory_mb: int = 4096,
        workspace_mb: int = 256,
    ) -> None:
        check_texts(command=command, mounts=mounts)
        check_numbers(timeout_s=timeout_s, repair_s=repair_s, breaker=breaker, memory_mb=memory_mb)
        check_numbers(workspace_mb=workspace_mb, repair=repair + 1 if isinstance(repair, int) else repair)
        known = load_preset(preset) if preset else {}
        self.command = tuple(command) or tuple(known.get("command", ()))
        if not self.command:
            raise _wrong(
                "command", list(command), f"nothing to run; write command = [...] or preset = one of {presets()}"
            )
        self.role, self.model = role, model
        self.mounts = tuple(_mount(text) for text in mounts)
        self._env = {**known.get("env", {}), **(env or {})}
        self._files = Program.of({**known.get("files", {}), **(files or {})})
        stream = stream or known.get("stream", "text")
        if stream not in FORMATS:
            raise _wrong("stream", stream, f"known formats are {', '.join(FORMATS)}")
        if repair > 10:
            raise _wrong("repair", repair, "it must be from 0 to 10")
        for word in self.command:
            fill(word, dict.fromkeys(PLACEHOLDERS, "x"))
        if not model and any("{model}" in word for word in self.command):
            raise _wrong("model", model, "the command names {model}, but no model is configured; write [models.ROLE]")
        self._limits = replace(ERRAND_LIMITS, memory_mb=memory_mb, workspace_mb=workspace_mb, wall_s=timeout_s)
        settings = TurnSettings(
            timeout_s=timeout_s,
            repairs=repair,
            repair_s=repair_s,
            breaker=breaker,
            stream=stream,
            events_file=events_file or known.get("events_file", ""),
            model=model,
            secrets=dict(env or {}),
        )
        self._turns = Turns(self.errand, settings, _skill(skill))

    def errand(self, asked: Asked) -> Errand:
        """Return the errand of one turn."""
        values = {
            "prompt": asked.prompt,
            "prompt_file": PROMPT_FILE,
            "skill": asked.skill,
            "skill_file": SKILL_FILE,
            "bench": BENCH,
            "work": WORK,
            "model": self.model,
            "count": str(asked.count),
        }
        return Errand(
            argv=tuple(fill(word, values) for word in self.command),
            role=self.role,
            tools=self._files,
            env=self._env,
            mounts=self.mounts,
            limits=self._limits,
        )

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Return what the agent delivers, at most `plan.count` usable proposals; failed ones with their reason."""
        return await self._turns.propose(plan, bench)


def fill(word: str, values: Mapping[str, str]) -> str:
    """Put values for the placeholders of one word of a command; raises `ConfigError` for one that there is not.

    >>> fill("--dir={work}", {"work": "/work"}), fill("{{}}", {})
    ('--dir=/work', '{}')
    """
    out = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(word):
            out.append(literal)
            if name is not None:
                if name not in values or spec or conversion:
                    raise ValueError(f"there is no placeholder {{{name}}}")
                out.append(values[name])
    except ValueError as error:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise _wrong(
            "command", word, f"{error}. Known are {known}; braces themselves are written {{{{ and }}}}"
        ) from None
    return "".join(out)


def presets() -> list[str]:
    """Return the names of the known agents."""
    return sorted(entry.name.removesuffix(".toml") for entry in _agents().iterdir() if entry.name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """Return the fields of a known agent; raises `ConfigError` for an unknown one."""
    if name not in presets():
        raise _wrong("preset", name, f"known are {', '.join(presets())}")
    found = tomllib.loads((_agents() / f"{name}.toml").read_text("utf-8"))
    assert found.keys() <= _PRESET_KEYS
    return found


def _agents() -> Any:
    return files("leadscrew") / "templates" / "agents"


def _mount(text: str) -> tuple[str, str]:
    source, _, target = text.partition(":")
    source = os.path.expanduser(source)
    target = target or source
    inside = any(target == place or target.startswith(place + "/") for place in _TAKEN)
    if not os.path.isabs(source) or not os.path.isabs(target) or inside or target == "/":
        raise _wrong("mounts", text, "write 'source:target', both absolute, the target outside the box's own folders")
    return source, target


def _skill(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong("skill", path, f"it cannot be read: {error}") from None


def check_texts(**values: object) -> None:
    """Raise `ConfigError` for an option that is no list of texts; a single text would be taken for its letters."""
    for name, value in values.items():
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise _wrong(name, value, 'write a list of texts, such as ["agent", "--flag"]')


def check_numbers(**values: object) -> None:
    """Raise `ConfigError` for an option that is no number above 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise _wrong(name, value, "write a number above 0")


def _wrong(option: str, value: object, why: str) -> ConfigError:
    key = f"proposer.options.{option}"
    return ConfigError(f"{key} = {value!r}: {why}.", key=key, value=value)
