"""A model that works through a list of tool calls, as the built-in coder's scripted counterpart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Step = tuple[str, Mapping[str, Any]]


class Working:
    """Answers the n-th request of a conversation with the n-th step: a tool call, or text after the last one.

    The place in the script is the number of replies of its own that the request holds, so that it has no state to lose:
    a conversation that is asked again goes the same way.
    """

    name = "working"

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self.asked: list[Mapping[str, Any]] = []

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request."""
        self.asked.append(request)
        done = sum(m["role"] == "assistant" for m in request["messages"])
        return reply(self.steps[done] if done < len(self.steps) else ("finish", {"summary": "done"}), done)

    async def close(self) -> None:
        """Nothing is held."""


def reply(step: Step, number: int) -> dict[str, Any]:
    """Return one tool call as a reply in the OpenAI form."""
    name, arguments = step
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "working",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940},
    }


def shell(command: str) -> Step:
    """Return a step that runs a command."""
    return ("shell", {"command": command})


def write(path: str, text: str) -> Step:
    """Return a step that creates a file."""
    return ("editor", {"command": "create", "path": path, "text": text, "overwrite": True})


def deliverable(*entries: Mapping[str, Any]) -> Step:
    """Return the step that writes the list of candidates."""
    return write("pending_eval.json", json.dumps({"iteration": 1, "candidates": list(entries)}))
