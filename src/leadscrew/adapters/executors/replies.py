"""Turning what a box says into replies. Everything in it is the program's word and is checked here again."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from leadscrew.core.budget import Spend
from leadscrew.core.canonical import json_fault
from leadscrew.core.program import File, Program
from leadscrew.core.task import Answer, Interface
from leadscrew.core.trial import Outcome, Trace
from leadscrew.errors import ProgramError
from leadscrew.ports import BoxReply

CANDIDATES_OWN = frozenset(o for o in Outcome if o not in (Outcome.INFRA, Outcome.CHEATED))
MAX_CALLS = 10_000


class Unacceptable(Exception):
    """The text of a program's answer is no JSON that may go on to a scorer."""


def parse(text: str) -> Any:
    """Read a program's JSON text; raises `Unacceptable` with the reason.

    >>> parse('[1, "a"]')
    [1, 'a']
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise Unacceptable("the answer is nested too deeply") from None
    except ValueError as error:
        raise Unacceptable(f"the answer is no JSON: {error}") from None
    fault = json_fault(value)
    if fault is not None:
        raise Unacceptable(f"the answer holds {fault}")
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Unacceptable("the answer holds text with half a surrogate pair, which no file can take") from None
    return value


def reply_of(
    key: str,
    said: Mapping[str, Any],
    files: Mapping[int, list[str]],
    interface: Interface,
    *,
    train: bool = False,
    extra_cpu_ms: int = 0,
) -> BoxReply:
    """Build the reply to one trial from the supervisor's report and the file pieces that came before it."""
    outcome, message, answer = Outcome.BAD_OUTPUT, str(said.get("message", "")), Answer()
    if said.get("outcome") in CANDIDATES_OWN:
        outcome = Outcome(said["outcome"])
    if outcome is Outcome.OK:
        try:
            if interface.operation == "workspace":
                answer = Answer(files=_tree(said.get("files", ()), files))
            elif interface.operation != "act":
                answer = Answer(parse(said["raw"]))
        except (Unacceptable, ProgramError) as error:
            outcome, message = Outcome.BAD_OUTPUT, str(error)
    trace = Trace(
        answer=answer.value,
        stdout=clean(said.get("stdout", "")),
        stderr=clean(said.get("stderr", "")),
        calls=tuple(_call(text) for text in said.get("calls", ())[:MAX_CALLS]),
    )
    spend = Spend(
        trials=0 if train else 1,
        cpu_ms=int(said.get("cpu_ms", 0)) + extra_cpu_ms,
        wall_ms=int(said.get("wall_ms", 0)),
    )
    return BoxReply(key, outcome, answer, clean(message), trace, spend, train)


def _tree(listed: Any, pieces: Mapping[int, list[str]]) -> Program:
    out: dict[str, File] = {}
    for index, entry in enumerate(listed):
        try:
            data = b"".join(base64.b64decode(piece) for piece in pieces.get(index, ()))
        except binascii.Error as error:
            raise Unacceptable(f"a file arrived broken: {error}") from None
        if len(data) != entry["size"]:
            raise Unacceptable(f"the file {entry['path']!r} arrived with {len(data)} of {entry['size']} bytes")
        out[entry["path"]] = File(data, entry["executable"])
    return Program(out)


def _call(text: str) -> Mapping[str, Any]:
    try:
        value = parse(text)
    except Unacceptable as error:
        return {"unreadable": str(error), "text": clean(text[:2000])}
    return value if isinstance(value, dict) else {"value": value}


def clean(text: str) -> str:
    """Return text that UTF-8 can hold.

    >>> clean("a\\ud800b")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode("utf-8")
