"""The archive of one turn of a coding agent: what it was asked, did, read, wrote and said, as files for people.

`RUN/sessions/<plan>-<turn>/` holds `meta.json`, `prompt.md`, `response.md`, `events.jsonl` (what it printed), `stderr.txt`,
`artifacts/` (its folder as it was left) and `tools/NNN_<tool>.txt`. The folder is a projection and may be deleted; what the
history needs of it stands in the store, in the log of the turn's proposals. Times stand in `meta.json` only.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leadscrew.engine.folders import write_folder
from leadscrew.operators.streams import ToolUse, Transcript
from leadscrew.ports import Errand, ErrandResult

ARTIFACTS = "artifacts"
_READERS = frozenset(("read", "view", "read_file", "open", "notebookread"))
_WRITERS = frozenset(
    (
        "write",
        "edit",
        "multiedit",
        "create",
        "str_replace",
        "insert",
        "file_change",
        "apply_patch",
        "patch",
        "write_file",
    )
)
_SHELLS = frozenset(("bash", "shell", "run", "execute", "command_execution"))
_PATH = re.compile(r"(?:/[\w.@+-]+)*/(?:bench|work|tools)/[\w./@+*-]+")
_TOOL_CHARS = 200_000


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn and what came of it."""

    number: int
    prompt: str
    skill_digest: str
    model: str
    errand: Errand
    result: ErrandResult
    transcript: Transcript
    events: str


def redactor(secrets: Mapping[str, str]) -> Callable[[str], str]:
    """Return what replaces the values of `secrets` by their names; values of less than 8 characters are no secrets.

    >>> redactor({"KEY": "sk-123456"})("it is sk-123456")
    'it is [redacted KEY]'
    """

    def clean(text: str) -> str:
        for name, value in secrets.items():
            if len(value) >= 8:
                text = text.replace(value, f"[redacted {name}]")
        return text

    return clean


def archive(folder: Path, turn: Turn, clean: Callable[[str], str]) -> dict[str, Any]:
    """Write the files of a turn into `folder` and return its `meta.json`. Every text goes through `clean` first."""
    result, found = turn.result, turn.transcript
    meta: dict[str, Any] = json.loads(clean(json.dumps(_meta(turn))))
    _write(folder / "meta.json", json.dumps(meta, indent=1, ensure_ascii=False) + "\n")
    _write(folder / "prompt.md", clean(turn.prompt))
    _write(folder / "response.md", clean(found.response))
    _write(folder / "events.jsonl", clean(turn.events))
    _write(folder / "stderr.txt", clean(result.stderr))
    (folder / "tools").mkdir(exist_ok=True)
    for n, use in enumerate(found.tools, 1):
        name = re.sub(r"[^\w-]", "_", use.name)[:40] or "tool"
        _write(folder / "tools" / f"{n:03d}_{name}.txt", clean(_tool_text(use)))
    if result.work is not None:
        write_folder(result.work, folder / ARTIFACTS)
    return meta


def summary(meta: Mapping[str, Any], found: Transcript) -> str:
    """Return what of a turn goes into the log of its proposals: no times, so that equal runs have equal archives."""
    kept = ("turn", "outcome", "exit_code", "model", "skill", "lost", "left_out", "exhausted", "read_share", "tools")
    facts = {key: meta[key] for key in kept if meta.get(key) not in (None, "", [], {})}
    facts["files_read"], facts["files_written"] = len(meta["files_read"]), len(meta["files_written"])
    lines = [json.dumps(facts, ensure_ascii=False)]
    if found.faults:
        lines.append("faults: " + "; ".join(found.faults)[:1000])
    if found.response:
        lines.append("said: " + found.response[-2000:])
    return "\n".join(lines)


def read_statistics(sessions: Path) -> dict[str, Any]:
    """Return, over all archived turns below `sessions`: how many there are, the median of files read, and the shares of
    reads by kind of file. Turns whose folder was deleted do not count."""
    metas = [json.loads(path.read_text("utf-8")) for path in sorted(sessions.glob("*/meta.json"))]
    read: dict[str, dict[str, int]] = {}
    for n, meta in enumerate(metas):
        read |= {f"{n}:{path}": row for path, row in meta["files_read"].items()}
    counts = [len(meta["files_read"]) for meta in metas]
    return {
        "turns": len(metas),
        "median_files_read": statistics.median(counts) if counts else None,
        "read_share": shares(read),
    }


def _meta(turn: Turn) -> dict[str, Any]:
    result, found = turn.result, turn.transcript
    read, written = reading(found), writing(found)
    metered = bool(result.spend.calls)
    money = result.spend.micro_usd
    uses: dict[str, int] = {}
    for use in found.tools:
        uses[use.name] = uses.get(use.name, 0) + 1
    return {
        "turn": turn.number,
        "prompt": turn.prompt,
        "skill": turn.skill_digest,
        "model": turn.model or found.model,
        "session": found.session,
        "command": list(turn.errand.argv),
        "outcome": result.outcome,
        "exit_code": result.exit_code,
        "seconds": result.seconds,
        "isolated": result.isolated,
        "lost": result.lost,
        "left_out": list(result.left_out),
        "exhausted": result.exhausted,
        "calls": result.spend.calls if metered else None,
        "tokens": {
            "in": result.spend.tokens_in if metered else found.tokens_in,
            "out": result.spend.tokens_out if metered else found.tokens_out,
            "metered": metered,
        },
        "cost_usd": (None if money is None else money / 1e6) if metered else found.cost_usd,
        "messages": found.messages,
        "tools": uses,
        "files_read": read,
        "files_written": written,
        "read_share": shares(read),
        "faults": found.faults,
        "unread_lines": found.unread,
    }


def reading(found: Transcript) -> dict[str, dict[str, int]]:
    """Return the files that were read, with how often and how many lines; what a shell command names counts as read.

    >>> use = ToolUse("bash", {"command": "grep -c ok /bench/history/candidates/1.0-a/log.jsonl"}, "3")
    >>> reading(Transcript(tools=[use]))
    {'/bench/history/candidates/1.0-a/log.jsonl': {'reads': 1, 'lines': 1}}
    """
    out: dict[str, dict[str, int]] = {}
    for use in found.tools:
        kind = use.name.lower()
        if kind in _READERS or (kind == "editor" and use.input.get("command") == "view"):
            paths = [_path_of(use)]
        elif kind in _SHELLS:
            command = " ".join(str(value) for value in use.input.values())
            paths = sorted({path.rstrip(".") for path in _PATH.findall(command)})
        else:
            continue
        for path in filter(None, paths):
            row = out.setdefault(path, {"reads": 0, "lines": 0})
            row["reads"] += 1
            row["lines"] += len(use.output.splitlines()) if len(paths) == 1 else 0
    return out


def writing(found: Transcript) -> dict[str, dict[str, int]]:
    """Return the files that were written by a tool made for it, with how many lines were handed over."""
    out: dict[str, dict[str, int]] = {}
    for use in found.tools:
        kind = use.name.lower()
        editor = kind == "editor" and use.input.get("command") != "view"
        path = _path_of(use) if kind in _WRITERS or editor else ""
        if path:
            row = out.setdefault(path, {"writes": 0, "lines": 0})
            texts = (use.input.get(k) for k in ("content", "new_string", "newString", "file_text", "new_str", "text"))
            row["writes"] += 1
            row["lines"] += sum(len(t.splitlines()) for t in texts if isinstance(t, str))
    return out


def shares(read: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return which share of the reads went to code, traces, scores and the rest; nothing where nothing was read.

    >>> shares({"/bench/programs/0.0/main.py": {"reads": 3}, "/bench/history/frontier_val.json": {"reads": 1}})
    {'code': 0.75, 'traces': 0.0, 'scores': 0.25, 'other': 0.0}
    """
    total = sum(row["reads"] for row in read.values())
    if not total:
        return {}
    out = dict.fromkeys(("code", "traces", "scores", "other"), 0)
    for path, row in read.items():
        out[kind_of(path)] += row["reads"]
    return {kind: round(n / total, 3) for kind, n in out.items()}


def kind_of(path: str) -> str:
    """Return what a file of the bench is: `code`, `traces`, `scores` or `other`."""
    name = path.rsplit("/", 1)[-1]
    if name in ("log.jsonl", "stderr.txt"):
        return "traces"
    if name in ("evolution_summary.jsonl", "frontier_val.json", "val.json", "proposal.json", "summary.md"):
        return "scores"
    return "code" if "/program" in path or name.endswith(".py") else "other"


def _path_of(use: ToolUse) -> str:
    for key in ("file_path", "filePath", "path", "file", "filename"):
        if isinstance(use.input.get(key), str):
            return str(use.input[key])
    return ""


def _tool_text(use: ToolUse) -> str:
    state = {True: "ok", False: "failed", None: "not told"}[use.ok]
    given = json.dumps(use.input, indent=1, ensure_ascii=False, default=str)
    return f"{use.name}: {state}\n\n{given[:_TOOL_CHARS]}\n\n{use.output[:_TOOL_CHARS]}\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")
