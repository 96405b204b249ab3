"""Native tool calls: the model's side knows about tools, and calls come apart from the text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from coder.speech import Read, broken
from coder.talk import Call, Reply, Turn
from coder.tools import TOOLS, as_json, described, example_of

ABOUT = "You work by calling tools. They are described to you apart from this text."
FINISH = "When the task is done and checked, call `finish` with a short summary. A reply without a call ends the session too."


class Native:
    """The protocol for models that know tool calls."""

    about = ABOUT
    finish = FINISH

    def tools(self) -> list[dict[str, Any]]:
        """Return name, description and schema of each tool, for the dialect to wrap."""
        return [{"name": t.name, "description": t.about, "schema": described(t)} for t in TOOLS]

    def turns(self, turns: list[Turn]) -> list[Turn]:
        """Return the conversation as the dialect is to write it: here, as it is."""
        return turns

    def read(self, reply: Reply) -> Read:
        """Make out what a reply asks for."""
        trouble = broken(reply, bool(reply.calls))
        if trouble:
            return Read(Turn("assistant", reply.text or "(nothing)", thinking=reply.thinking), problem=trouble)
        return Read(Turn("assistant", reply.text, reply.calls, thinking=reply.thinking), reply.calls)

    def example(self, tool: str) -> str:
        """Return a right call of a tool, as text."""
        name, arguments = example_of(tool)
        return f"{name} with the arguments {as_json(arguments)}"


def call_of(name: str, arguments: Any) -> Call:
    """Return the call that a dialect found; arguments come as JSON text or as an object. The loop gives it its id."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return Call("", name, {"malformed": arguments[:200]}, f"the arguments are no valid JSON ({error})")
    if not isinstance(arguments, Mapping):
        given = type(arguments).__name__
        return Call("", name, {"malformed": str(arguments)[:200]}, f"the arguments must be a JSON object, not {given}")
    if re.search("[\ud800-\udfff]", as_json(arguments)):
        return Call(
            "", name, {}, "the arguments hold half a character (a lone surrogate), which nothing can be done with"
        )
    return Call("", name, dict(arguments))
