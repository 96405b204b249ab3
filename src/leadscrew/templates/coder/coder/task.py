"""The task file: what is to be done, by which model, within which limits."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from coder.ends import BAD_TASK, End

MOST = 1_000_000_000


@dataclass(frozen=True)
class Task:
    """One task. Sizes are in tokens, times in seconds. Paths in the file are relative to its folder, `work`."""

    prompt: str
    work: str
    skill: str = ""
    protocol: str = "native"
    dialect: str = "openai"
    model: str = "model"
    tool_calls: int = 40
    tokens: int = 1_000_000
    seconds: int = 1800
    window: int = 32_000
    reply_tokens: int = 4_096
    failures: int = 5
    command_seconds: int = 120
    read: tuple[str, ...] = field(default=("/bench",))
    endpoint: str = ""


NUMBERS = ("tool_calls", "tokens", "seconds", "window", "reply_tokens", "failures", "command_seconds")
CHOICES = {"protocol": ("native", "tags"), "dialect": ("openai", "anthropic")}
KEYS = {*NUMBERS, *CHOICES, "prompt", "prompt_file", "system_file", "model", "read", "endpoint"}


def load(path: str) -> Task:
    """Read a task file; raises `End` with BAD_TASK and what to write instead."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise End(BAD_TASK, f"cannot read the task {path}: {error}") from None
    if not isinstance(found, dict):
        raise End(BAD_TASK, f"the task {path} must be a JSON object with at least 'prompt' or 'prompt_file'")
    unknown = sorted(set(found) - KEYS)
    if unknown:
        raise End(BAD_TASK, f"unknown keys {unknown} in the task; known are {sorted(KEYS)}")
    work = os.path.dirname(os.path.realpath(path))
    values: dict[str, Any] = {"work": work}
    for key in NUMBERS:
        if key in found:
            values[key] = _number(key, found[key])
    for key, allowed in CHOICES.items():
        if key in found:
            values[key] = _choice(key, found[key], allowed)
    for key in ("model", "endpoint"):
        if key in found:
            values[key] = _text(key, found[key])
    if "read" in found:
        if not isinstance(found["read"], list):
            raise End(BAD_TASK, f"'read' must be a list of folders, not {found['read']!r}")
        values["read"] = tuple(_text("read", folder) for folder in found["read"])
    if ("prompt" in found) == ("prompt_file" in found):
        raise End(BAD_TASK, "write either 'prompt' (a text) or 'prompt_file' (a path), and not both")
    values["prompt"] = _text("prompt", found["prompt"]) if "prompt" in found else _file(work, found["prompt_file"])
    if found.get("system_file"):
        values["skill"] = _file(work, found["system_file"])
    return Task(**values)


def _number(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MOST:
        raise End(BAD_TASK, f"'{key}' must be a number from 1 to {MOST}, not {value!r}")
    return int(value)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise End(BAD_TASK, f"'{key}' must be a text that is not empty, not {value!r}")
    return value


def _choice(key: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise End(BAD_TASK, f"'{key}' must be one of {list(allowed)}, not {value!r}")
    return str(value)


def _file(work: str, name: object) -> str:
    path = os.path.join(work, _text("prompt_file or system_file", name))
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise End(BAD_TASK, f"cannot read {path}: {error}") from None
