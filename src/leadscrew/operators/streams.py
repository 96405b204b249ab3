"""What coding agents print, in one form: the words, the tools they used, what it took. One reader per format.

Formats are those that the agents' documentation describes (2026): `claude` (`--output-format stream-json`), `codex`
(`exec --json`), `opencode` (`run --format json`), `mini` (mini-swe-agent's trajectory file), `coder` (our own), `text`
(anything else: all of it is the answer). Lines that a reader does not know are counted and passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ToolUse:
    """One use of a tool: its name, what it was given, what came back. `ok` is None where the stream does not tell."""

    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    ok: bool | None = None


@dataclass(slots=True)
class Transcript:
    """A turn of an agent. Numbers that the stream does not give are None. `unread` counts lines that were no events."""

    response: str = ""
    tools: list[ToolUse] = field(default_factory=list)
    model: str = ""
    session: str = ""
    messages: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None
    faults: list[str] = field(default_factory=list)
    unread: int = 0

    def add_tokens(self, read: Any, written: Any) -> None:
        """Add to the tokens; what is no number is not added."""
        if isinstance(read, int):
            self.tokens_in = (self.tokens_in or 0) + read
        if isinstance(written, int):
            self.tokens_out = (self.tokens_out or 0) + written


def read_stream(format: str, text: str) -> Transcript:
    """Return what `text` says, read as `format`. Never raises for what an agent wrote.

    >>> read_stream("codex", '{"type":"item.completed","item":{"type":"agent_message","text":"done"}}').response
    'done'
    """
    found = Transcript()
    try:
        FORMATS[format](text, found)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        found.faults.append(f"the rest of the stream could not be read: {type(error).__name__}: {error}")
    return found


def _events(text: str, found: Transcript) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            found.unread += 1
            continue
        if isinstance(event, dict):
            yield event
        else:
            found.unread += 1


def _text(text: str, found: Transcript) -> None:
    found.response = text.strip()


def _claude(text: str, found: Transcript) -> None:
    open_tools: dict[str, ToolUse] = {}
    for event in _events(text, found):
        kind = event.get("type")
        if kind == "system" and event.get("subtype") == "init":
            found.model, found.session = str(event.get("model", "")), str(event.get("session_id", ""))
        elif kind == "assistant":
            found.messages += 1
            for block in _list(_dict(event.get("message")).get("content")):
                if block.get("type") == "text":
                    found.response = str(block.get("text", ""))
                elif block.get("type") == "tool_use":
                    use = ToolUse(str(block.get("name", "")), _dict(block.get("input")))
                    found.tools.append(use)
                    open_tools[str(block.get("id"))] = use
        elif kind == "user":
            for block in _list(_dict(event.get("message")).get("content")):
                known = open_tools.get(str(block.get("tool_use_id")))
                if block.get("type") == "tool_result" and known is not None:
                    known.output, known.ok = _plain(block.get("content")), not block.get("is_error", False)
        elif kind == "result":
            found.response = str(event.get("result") or found.response)
            usage = _dict(event.get("usage"))
            reads = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
            found.add_tokens(sum(_whole(usage.get(name)) for name in reads), usage.get("output_tokens"))
            found.cost_usd = _number(event.get("total_cost_usd"))
            if event.get("is_error"):
                found.faults.append(str(event.get("subtype", "error")))


def _codex(text: str, found: Transcript) -> None:
    for event in _events(text, found):
        kind, item = event.get("type"), _dict(event.get("item"))
        if kind == "thread.started":
            found.session = str(event.get("thread_id", ""))
        elif kind == "item.completed":
            _codex_item(item, found)
        elif kind == "turn.completed":
            usage = _dict(event.get("usage"))
            found.add_tokens(usage.get("input_tokens"), usage.get("output_tokens"))
        elif kind == "turn.failed":
            found.faults.append(str(_dict(event.get("error")).get("message", "")))
        elif kind == "error":
            found.faults.append(str(event.get("message", "")))


def _codex_item(item: Mapping[str, Any], found: Transcript) -> None:
    kind = item.get("type")
    if kind == "agent_message":
        found.messages += 1
        found.response = str(item.get("text", ""))
    elif kind == "command_execution":
        ok = item.get("exit_code") == 0
        output = str(item.get("aggregated_output", ""))
        found.tools.append(ToolUse("shell", {"command": str(item.get("command", ""))}, output, ok))
    elif kind == "file_change":
        for change in _list(item.get("changes")):
            given = {"path": str(change.get("path", "")), "kind": str(change.get("kind", ""))}
            found.tools.append(ToolUse("file_change", given, "", item.get("status") == "completed"))
    elif kind in ("mcp_tool_call", "web_search"):
        given = {k: v for k, v in item.items() if k not in ("id", "type")}
        found.tools.append(ToolUse(str(kind), given))
    elif kind == "error":
        found.faults.append(str(item.get("message", "")))


def _opencode(text: str, found: Transcript) -> None:
    for event in _events(text, found):
        kind, part = event.get("type"), _dict(event.get("part"))
        found.session = found.session or str(event.get("sessionID", ""))
        if kind == "text":
            found.messages += 1
            found.response = str(part.get("text", ""))
        elif kind == "tool_use":
            state = _dict(part.get("state"))
            if state.get("status") in ("pending", "running"):
                continue
            output = _plain(state.get("output") or state.get("error") or "")
            done = state.get("status") in ("completed", "success")
            found.tools.append(ToolUse(str(part.get("tool", "")), _dict(state.get("input")), output, done))
        elif kind == "step_finish":
            tokens = _dict(part.get("tokens"))
            cache = _dict(tokens.get("cache"))
            read = _whole(tokens.get("input")) + _whole(cache.get("read")) + _whole(cache.get("write"))
            found.add_tokens(read, _whole(tokens.get("output")) + _whole(tokens.get("reasoning")))
            cost = _number(part.get("cost"))
            if cost is not None:
                found.cost_usd = (found.cost_usd or 0.0) + cost
        elif kind == "error":
            found.faults.append(json.dumps(event.get("error") or event.get("message")))


def _mini(text: str, found: Transcript) -> None:
    if not text.strip():
        return
    whole = json.loads(text)
    info = _dict(whole.get("info"))
    stats = _dict(info.get("model_stats"))
    found.cost_usd = _number(stats.get("instance_cost"))
    found.model = str(_dict(_dict(info.get("config")).get("model")).get("model_name", ""))
    open_use: ToolUse | None = None
    for message in _list(whole.get("messages")):
        role, content = message.get("role"), _plain(message.get("content"))
        if role == "assistant":
            found.messages += 1
            found.response = content
            usage = _dict(_dict(_dict(message.get("extra")).get("response")).get("usage"))
            found.add_tokens(usage.get("prompt_tokens"), usage.get("completion_tokens"))
            open_use = None
            for command in _mini_commands(message, content):
                open_use = ToolUse("bash", {"command": command})
                found.tools.append(open_use)
        elif open_use is not None and role in ("user", "tool"):
            open_use.output = content
            open_use = None
    if info.get("exit_status") not in ("Submitted", None):
        found.faults.append(str(info["exit_status"]))


def _mini_commands(message: Mapping[str, Any], content: str) -> Iterator[str]:
    actions = _dict(message.get("extra")).get("actions")
    if isinstance(actions, list):
        yield from (str(_dict(a).get("command", "")) for a in actions)
        return
    for fence in ("```mswea_bash_command\n", "```bash\n"):
        if fence in content:
            yield content.split(fence, 1)[1].split("```", 1)[0].strip()
            return


def _coder(text: str, found: Transcript) -> None:
    open_tools: dict[str, ToolUse] = {}
    for event in _events(text, found):
        kind = event.get("type")
        if kind == "message" and event.get("role") == "assistant":
            found.messages += 1
            found.response = str(event.get("text", "")) or found.response
        elif kind == "tool_call":
            use = ToolUse(str(event.get("tool", "")), _dict(event.get("arguments")))
            found.tools.append(use)
            open_tools[str(event.get("id"))] = use
        elif kind == "tool_result":
            known = open_tools.get(str(event.get("id")))
            if known is not None:
                known.output, known.ok = str(event.get("text", "")), bool(event.get("ok"))
        elif kind == "usage":
            found.add_tokens(event.get("prompt_tokens"), event.get("reply_tokens"))
        elif kind == "end":
            found.response = str(event.get("text") or found.response)
            if event.get("code"):
                found.faults.append(f"{event.get('reason', '')} {event.get('detail', '')}".strip())


FORMATS: Mapping[str, Callable[[str, Transcript], None]] = {
    "text": _text,
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "mini": _mini,
    "coder": _coder,
}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _plain(value: Any) -> str:
    """The text of a content: a text itself, or the texts of its blocks."""
    if isinstance(value, str):
        return value
    return "\n".join(str(block["text"]) for block in _list(value) if "text" in block)
