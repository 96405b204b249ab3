"""Fake coding agents: scripts that print and write as the real ones do, without a model."""

from __future__ import annotations

import json
from typing import Any

COMMON = r"""
import json, os, sys

def read(path):
    return open(path).read()

def deliver(candidates):
    json.dump({"iteration": 2, "candidates": candidates}, open("/work/pending_eval.json", "w"))

def candidate(name, text, base="0.1"):
    os.makedirs(f"/work/candidates/{name}", exist_ok=True)
    open(f"/work/candidates/{name}/digits.txt", "w").write(text)
    return {"name": name, "file": f"candidates/{name}", "hypothesis": f"{name} is better", "base_system": base}

def say(event):
    print(json.dumps(event), flush=True)

summary = "/bench/history/evolution_summary.jsonl"
rows = [json.loads(line) for line in open(summary)]
"""

GOOD = 'deliver([candidate("first", "012---------"), candidate("second", "0123--------")])'


def agent(style: str, body: str = GOOD) -> str:
    """Return the source of an agent that prints events in a style while it reads the history and then does `body`."""
    return f"{COMMON}\n{_BEFORE[style]}\n{body}\n{_AFTER[style]}\n"


_BEFORE = {
    "claude": """
say({"type": "system", "subtype": "init", "session_id": "s-1", "model": "fable", "tools": ["Bash", "Read"]})
say({"type": "assistant", "message": {"content": [{"type": "text", "text": "I read the history."},
    {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": summary}}]}})
say({"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": read(summary)}]}})
""",
    "codex": """
say({"type": "thread.started", "thread_id": "s-1"})
say({"type": "turn.started"})
say({"type": "item.completed", "item": {"id": "i1", "type": "command_execution", "command": "cat " + summary,
    "aggregated_output": read(summary), "exit_code": 0, "status": "completed"}})
""",
    "opencode": """
say({"type": "step_start", "sessionID": "s-1", "part": {"type": "step-start"}})
say({"type": "tool_use", "sessionID": "s-1", "part": {"tool": "read", "callID": "c1", "state": {
    "status": "completed", "input": {"filePath": summary}, "output": read(summary)}}})
""",
    "mini": "",
    "text": "",
}
_AFTER = {
    "claude": """
say({"type": "result", "subtype": "success", "result": "first second", "is_error": False, "total_cost_usd": 0.25,
    "usage": {"input_tokens": 10, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30, "output_tokens": 7}})
""",
    "codex": """
say({"type": "item.completed", "item": {"id": "i2", "type": "agent_message", "text": "first second"}})
say({"type": "turn.completed", "usage": {"input_tokens": 60, "cached_input_tokens": 30, "output_tokens": 7}})
""",
    "opencode": """
say({"type": "text", "sessionID": "s-1", "part": {"type": "text", "text": "first second"}})
say({"type": "step_finish", "sessionID": "s-1", "part": {"type": "step-finish", "reason": "stop", "cost": 0.25,
    "tokens": {"input": 10, "output": 7, "reasoning": 0, "cache": {"read": 30, "write": 20}}}})
""",
    "mini": """
os.makedirs("/work/.agent", exist_ok=True)
json.dump({"info": {"exit_status": "Submitted", "model_stats": {"instance_cost": 0.25, "api_calls": 2}}, "messages": [
    {"role": "system", "content": "you"}, {"role": "user", "content": "task"},
    {"role": "assistant", "content": "look\\n```mswea_bash_command\\ncat " + summary + "\\n```",
     "extra": {"response": {"usage": {"prompt_tokens": 60, "completion_tokens": 7}}}},
    {"role": "user", "content": read(summary)},
    {"role": "assistant", "content": "first second"}]}, open("/work/.agent/trajectory.json", "w"))
""",
    "text": 'print("first second")',
}


def words(value: Any) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, sort_keys=True)
