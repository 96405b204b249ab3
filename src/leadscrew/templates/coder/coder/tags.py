"""Tool calls as tags in the text, for models without native ones. Values are written as they are, nothing is escaped.

::

    <call tool="editor">
    <arg name="command">create</arg>
    <arg name="path">main.py</arg>
    <arg name="text">
    print("hello")
    </arg>
    </call>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from coder.speech import Read, broken
from coder.talk import Call, Reply, Turn
from coder.tools import BY_NAME, TOOLS, Tool, example_of

_OPEN = re.compile(r"""^[ \t]*<call\s+tool\s*=\s*["']?([^"'>\n]*)["']?\s*>""", re.MULTILINE)
_CLOSE = re.compile(r"\s*</call>")
_ARG = re.compile(r"""\s*<arg\s+name\s*=\s*["']?([^"'>\s]*)["']?(?:\s+end\s*=\s*["']([^"'\n]+)["'])?\s*>""")
_END = re.compile(r"</arg>(?=(?:[ \t]*\r?\n\s*)?(?:<arg\s+name\b|</call>|\Z))")
_LEFTOVER = re.compile(r"""^[ \t]*</?(?:call|arg)\b""", re.MULTILINE)
EXACT = ("text", "old", "new", "command", "pattern", "summary")
"""Arguments whose white space counts."""

ABOUT = """You work by calling tools. A call is written like this, beginning on a line of its own:

```
{example}
```

* Write values as they are: nothing is escaped or quoted, and line ends count.
* A value that begins right behind its tag ends right before `</arg>`. One that begins on the next line consists of whole
  lines, the line end of the last one included.
* A value that itself contains the closing tag followed by another tag gets a mark of its own:
  `<arg name="text" end="E1">` then ends at `</arg E1>`.
* Stop after `</call>`: what follows is dropped, and the result is given to you in the next message.

The tools:

{tools}"""


class Tags:
    """The protocol for models that only write text."""

    finish = "When the task is done and checked, call `finish` with a short summary. A reply without a call ends the session too."

    def __init__(self) -> None:
        self.about = ABOUT.format(example=self.example("editor"), tools="\n".join(_described(tool) for tool in TOOLS))

    def tools(self) -> list[dict[str, Any]]:
        """Return none: the tools stand in the system text."""
        return []

    def turns(self, turns: list[Turn]) -> list[Turn]:
        """Return the conversation as plain text turns of user and assistant."""
        plain = []
        for turn in turns:
            if turn.role == "results":
                plain.append(Turn("user", "\n\n".join(result.text for result in turn.results)))
            elif turn.role == "assistant" and turn.shortened:
                calls = [written(call.tool, call.arguments) for call in turn.calls]
                plain.append(Turn("assistant", "\n".join([turn.text, *calls]).strip()))
            else:
                plain.append(Turn(turn.role, turn.text))
        return plain

    def read(self, reply: Reply) -> Read:
        """Make out what a reply asks for: its first call counts, what follows it is dropped."""
        text = reply.text
        opened = _OPEN.search(text)
        trouble = broken(reply, opened is not None)
        if trouble:
            return Read(Turn("assistant", text or "(nothing)"), problem=trouble)
        if opened is None:
            left = _LEFTOVER.search(text)
            problem = f"a tag stands where no call was begun: {left[0].strip()}" if left else ""
            return Read(Turn("assistant", text), problem=problem)
        call, end = _call(text, opened)
        kept = text[:end]
        return Read(Turn("assistant", kept, (call,)), (call,), dropped=bool(_OPEN.search(text, end)))

    def example(self, tool: str) -> str:
        """Return a right call of a tool, as text."""
        return written(*example_of(tool))


def _call(text: str, opened: re.Match[str]) -> tuple[Call, int]:
    """Return the call that begins at a match, and where it ends. What cannot be read becomes its problem."""
    tool = opened[1].strip()
    values: dict[str, Any] = {}
    at = opened.end()
    while argument := _ARG.match(text, at):
        name, mark = argument[1], argument[2]
        closing = re.compile(re.escape(f"</arg {mark}>")) if mark else _END
        closed = closing.search(text, argument.end())
        if closed is None:
            wanted = f"</arg {mark}>" if mark else "</arg>"
            return Call("", tool, values, f"the argument '{name}' is not closed by {wanted} before the next tag"), len(
                text
            )
        if name in values:
            return Call("", tool, values, f"the argument '{name}' is given twice"), closed.end()
        values[name] = _value(tool, name, text[argument.end() : closed.start()])
        at = closed.end()
    close = _CLOSE.match(text, at)
    if close is None and text[at:].strip():
        rest = text[at:].strip().splitlines()[0][:80]
        return Call("", tool, values, f"</call> or <arg name=...> is expected where there stands: {rest!r}"), len(text)
    return Call("", tool, values), close.end() if close else len(text)


def _value(tool: str, name: str, raw: str) -> object:
    """Return a value in the type that the tool wants, if it can be read as one."""
    value = raw[1:] if raw.startswith("\n") else raw[2:] if raw.startswith("\r\n") else raw
    field = BY_NAME[tool].fields.get(name) if tool in BY_NAME else None
    exact = name in EXACT and not (tool == "editor" and name == "command")
    if field is None or exact:
        return value
    plain = value.strip()
    if field.kind == "integer" and re.fullmatch(r"-?\d{1,12}", plain):
        return int(plain)
    if field.kind == "boolean" and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    return plain


def written(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as tags, so that `Tags.read` gets it back.

    >>> print(written("read", {"path": "a.py", "start": 3}))
    <call tool="read">
    <arg name="path">a.py</arg>
    <arg name="start">3</arg>
    </call>
    """
    lines = [f'<call tool="{tool}">']
    for name, value in arguments.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        number = 1
        while f"</arg E{number}>" in text:
            number += 1
        mark = f"E{number}" if "</arg>" in text else ""
        block = "\n" if text.endswith("\n") or text.startswith(("\n", "\r\n")) else ""
        opening = f'<arg name="{name}" end="{mark}">' if mark else f'<arg name="{name}">'
        lines.append(f"{opening}{block}{text}{f'</arg {mark}>' if mark else '</arg>'}")
    return "\n".join([*lines, "</call>"])


def _described(tool: Tool) -> str:
    lines = [f"* `{tool.name}`: {tool.about}"]
    for name, field in tool.fields.items():
        kind = field.kind if not field.choices else " or ".join(field.choices)
        lines.append(f"  - `{name}` ({kind}{'' if field.needed else ', may be left out'}): {field.about}")
    return "\n".join(lines)
