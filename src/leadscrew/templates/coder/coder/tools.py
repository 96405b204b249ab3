"""The tools: their names, what they take, and how a call is checked and carried out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coder import reader, search
from coder.editor import Editor
from coder.fence import cut, fenced, visible
from coder.files import FileProblem, Places
from coder.shell import Shell

FINISH = "finish"


@dataclass(frozen=True)
class Field:
    """One argument of a tool. `kind` is `string`, `integer` or `boolean`."""

    kind: str
    about: str
    needed: bool = True
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """A tool as a model sees it, with an example of a right call."""

    name: str
    about: str
    fields: Mapping[str, Field]
    example: Mapping[str, Any]

    def problems(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the arguments of a call; empty if nothing is."""
        found = [f"'{name}' is missing" for name, f in self.fields.items() if f.needed and name not in arguments]
        for name, value in arguments.items():
            if name not in self.fields:
                found.append(f"there is no argument '{name}'; it takes {', '.join(self.fields)}")
                continue
            field = self.fields[name]
            if not isinstance(value, KINDS[field.kind]) or (field.kind == "integer" and isinstance(value, bool)):
                found.append(f"'{name}' must be of type {field.kind}, not {type(value).__name__}")
            elif field.choices and value not in field.choices:
                found.append(f"'{name}' must be one of {', '.join(field.choices)}, not {value!r}")
        return found


KINDS: dict[str, type] = {"string": str, "integer": int, "boolean": bool}


@dataclass(frozen=True)
class Answer:
    """What a tool gives back: `data` from the world, `note` in our own words."""

    data: str
    note: str
    ok: bool = True


TOOLS = (
    Tool(
        "shell",
        "Run a bash command. It is one shell for the whole session: folder, variables, functions and background jobs stay. "
        "Standard input is closed. You get output and errors together, long ones without their middle, and the exit code.",
        {
            "command": Field("string", "what to run; several lines and here-documents are fine"),
            "timeout": Field("integer", "seconds after which it is killed with all it started", needed=False),
        },
        {"command": "python3 main.py < case.json | tail -n 5"},
    ),
    Tool(
        "read",
        "Show a text file with line numbers, or a folder two levels deep.",
        {
            "path": Field("string", "a file or folder"),
            "start": Field("integer", "first line, from 1", needed=False),
            "end": Field("integer", "last line; -1 is the end of the file", needed=False),
        },
        {"path": "main.py", "start": 1, "end": 80},
    ),
    Tool(
        "search",
        "Find the lines that match a regular expression, in one file or in all files below a folder.",
        {
            "pattern": Field("string", "a regular expression as in Python"),
            "path": Field("string", "file or folder; your own folder if left out", needed=False),
            "glob": Field("string", "only files like this, such as *.py or logs/**/*.jsonl", needed=False),
            "literal": Field("boolean", "take the pattern as plain text", needed=False),
            "ignore_case": Field("boolean", "let upper and lower case be equal", needed=False),
        },
        {"pattern": "def \\w+", "path": ".", "glob": "*.py"},
    ),
    Tool(
        "find",
        "List the files below a folder whose path matches.",
        {
            "glob": Field("string", "such as *.py, or candidates/**/log.jsonl"),
            "path": Field("string", "folder; your own if left out", needed=False),
        },
        {"glob": "**/*.json", "path": "."},
    ),
    Tool(
        "editor",
        "Change files of your own folder. create writes a new file (text; overwrite=true replaces one). str_replace puts "
        "`new` in place of `old`, which must occur exactly once, copied exactly. insert adds `text` after line `line` (0: at "
        "the top). undo takes back the last change of a file. view shows a file.",
        {
            "command": Field("string", "what to do", choices=("view", "create", "str_replace", "insert", "undo")),
            "path": Field("string", "the file"),
            "text": Field("string", "for create and insert", needed=False),
            "overwrite": Field("boolean", "for create", needed=False),
            "old": Field("string", "for str_replace", needed=False),
            "new": Field("string", "for str_replace; may be empty", needed=False),
            "line": Field("integer", "for insert", needed=False),
            "start": Field("integer", "for view: first line", needed=False),
            "end": Field("integer", "for view: last line, -1 is the end", needed=False),
        },
        {"command": "str_replace", "path": "main.py", "old": "k = 3\n", "new": "k = 5\n"},
    ),
    Tool(
        FINISH,
        "End the session. Call it when the task is done and checked.",
        {"summary": Field("string", "what you did and what you know about it, in a few lines")},
        {"summary": "Wrote candidates/a/main.py; it answers the three logged cases correctly."},
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}
EDITS = {
    "view": ((), ("start", "end")),
    "create": (("text",), ("overwrite",)),
    "str_replace": (("old", "new"), ()),
    "insert": (("line", "text"), ()),
    "undo": ((), ()),
}
"""What each command of the editor needs and may take besides the path."""


def problem_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with a call, empty if nothing is."""
    if tool not in BY_NAME:
        return f"there is no tool {tool!r}; there are {', '.join(BY_NAME)}"
    found = BY_NAME[tool].problems(arguments)
    if tool == "editor" and not found:
        command = arguments["command"]
        needed, allowed = EDITS[command]
        found = [f"'{name}' is missing, {command} needs it" for name in needed if name not in arguments]
        extra = set(arguments) - {"command", "path", *needed, *allowed}
        found += [f"'{name}' does not belong to {command}" for name in sorted(extra)]
    return "; ".join(found)


class Toolbox:
    """Carries out calls that have been checked."""

    def __init__(self, places: Places, shell: Shell, command_seconds: float, most_chars: int) -> None:
        self._places = places
        self._shell = shell
        self._editor = Editor(places)
        self._seconds = command_seconds
        self._chars = most_chars

    def run(self, tool: str, arguments: Mapping[str, Any], seconds_left: float) -> Answer:
        """Carry out one call; a failure of the tool is an answer too."""
        work: dict[str, Callable[[Mapping[str, Any], float], Answer]] = {
            "shell": self._run_shell,
            "read": self._read,
            "search": self._search,
            "find": self._find,
            "editor": self._edit,
        }
        try:
            return work[tool](arguments, seconds_left)
        except (FileProblem, ValueError) as problem:
            return Answer("", f"not done: {problem}", ok=False)
        except OSError as problem:
            return Answer("", f"not done, the system says: {problem.strerror or problem}", ok=False)

    def text(self, title: str, answer: Answer) -> str:
        """Return an answer as the model reads it: the data fenced and of bounded length, our note below it.

        A note that names a path is data too: names can say anything, and links lead to names that nobody asked for.
        """
        note = " ".join(visible(answer.note).split())
        if "/" in note:
            data = cut(visible(answer.data), self._chars)
            return fenced(title, f"{data}\n({note})" if data else note)
        if not answer.data:
            return f"[{title}: {note}]"
        return f"{fenced(title, cut(visible(answer.data), self._chars))}\n[{note}]"

    def _run_shell(self, arguments: Mapping[str, Any], seconds_left: float) -> Answer:
        wanted = arguments.get("timeout", self._seconds)
        if wanted <= 0:
            raise ValueError("timeout must be at least 1 second")
        ended = self._shell.run(arguments["command"], max(0.1, min(wanted, seconds_left)))
        notes = [f"exit code {ended.code}" if ended.code is not None else "", ended.note]
        data = ended.output
        if ended.before:
            data = f"(background jobs, before this command:)\n{ended.before}\n(this command:)\n{data}"
        elif not data:
            notes.append("no output")
        elif not data.endswith("\n"):
            notes.append("no line end after the last line")
        return Answer(data.removesuffix("\n"), "; ".join(n for n in notes if n), ok=ended.code == 0)

    def _read(self, arguments: Mapping[str, Any], _: float) -> Answer:
        path = self._places.readable(arguments["path"])
        return Answer(*reader.read(path, arguments.get("start", 1), arguments.get("end"), self._chars))

    def _search(self, arguments: Mapping[str, Any], _: float) -> Answer:
        options = {name: arguments[name] for name in ("glob", "literal", "ignore_case") if name in arguments}
        return Answer(*search.grep(self._places.readable(arguments.get("path", ".")), arguments["pattern"], **options))

    def _find(self, arguments: Mapping[str, Any], _: float) -> Answer:
        return Answer(*search.find(self._places.readable(arguments.get("path", ".")), arguments["glob"]))

    def _edit(self, arguments: Mapping[str, Any], _: float) -> Answer:
        values = {name: value for name, value in arguments.items() if name != "command"}
        if arguments["command"] == "view":
            values["chars"] = self._chars
        return Answer(*getattr(self._editor, arguments["command"])(**values))


def described(tool: Tool) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    properties = {
        name: {"type": f.kind, "description": f.about} | ({"enum": list(f.choices)} if f.choices else {})
        for name, f in tool.fields.items()
    }
    needed = [name for name, f in tool.fields.items() if f.needed]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def example_of(tool: str) -> tuple[str, Mapping[str, Any]]:
    """Return (name, arguments) of a right call of that tool, or of another one if there is no such tool."""
    known = BY_NAME.get(tool) or TOOLS[0]
    return known.name, known.example


def as_json(arguments: Mapping[str, Any]) -> str:
    """Return arguments as one line of JSON."""
    return json.dumps(arguments, ensure_ascii=False)
