"""Prompts from text files: `{{name}}` is replaced, and a name without a value, or a value without a name, is an error."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_NAME = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class PromptError(Exception):
    """A template and its values do not fit."""


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with its values. What is put in is not looked at again.

    >>> fill("Work in {{folder}}.", {"folder": "/work/{{x}}"})
    'Work in /work/{{x}}.'
    """
    wanted = set(_NAME.findall(template))
    if wanted != set(values):
        missing, unused = sorted(wanted - set(values)), sorted(set(values) - wanted)
        raise PromptError(f"the template lacks values for {missing} and has no place for {unused}")
    return _NAME.sub(lambda m: values[m[1]], template)


def system_prompt(values: Mapping[str, str]) -> str:
    """Return the system text from `prompt.md` beside this file."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "prompt.md"), encoding="utf-8") as file:
        return fill(file.read(), values).strip() + "\n"
