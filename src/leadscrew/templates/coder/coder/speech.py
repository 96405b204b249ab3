"""What a protocol makes of a reply."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from coder.talk import Call, Reply, Turn
from coder.tools import BY_NAME


@dataclass(frozen=True)
class Read:
    """The turn to remember, and either calls, or a `problem` to answer, or neither: then the model is done.

    `dropped` says that text or calls after the first call were left away.
    """

    turn: Turn
    calls: tuple[Call, ...] = ()
    problem: str = ""
    dropped: bool = False


class Speech(Protocol):
    """A protocol: how tools are told, how the conversation is written, how a reply is read."""

    about: str
    finish: str

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools for the dialect; none if they stand in the text."""

    def turns(self, turns: list[Turn]) -> list[Turn]:
        """Return the conversation as the dialect is to write it."""

    def read(self, reply: Reply) -> Read:
        """Make out what a reply asks for."""

    def example(self, tool: str) -> str:
        """Return a right call of a tool, as text."""


_NAMES = "|".join(BY_NAME)
_AS_TEXT = re.compile(
    rf"""<tool_call>|<function_calls?>|^\s*<call\s+tool\b|"(?:name|tool|tool_name)"\s*:\s*"(?:{_NAMES})\"""",
    re.MULTILINE,
)
"""A call in a form that is not ours. To take such a reply for the end would lose the session without a word."""


def broken(reply: Reply, calling: bool) -> str:
    """Return what is wrong with a reply as a whole: cut off, empty, or a call in a foreign form."""
    if reply.stop == "length":
        what = "in the middle of a call, which was not run" if calling else "at the limit of tokens for one reply"
        return f"your reply was cut off {what}. Do less in one reply: write a large file in several calls, explain less"
    if not calling and not reply.text.strip():
        return "your reply was empty"
    if not calling and _AS_TEXT.search(reply.text):
        return "your reply seems to hold a call, but not in the form that calls have here"
    return ""
