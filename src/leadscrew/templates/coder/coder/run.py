"""Starts a session on a task file and turns its end into an exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback

from coder import task as tasks
from coder.budget import Budget
from coder.client import Client
from coder.context import Context
from coder.ends import BAD_TASK, DONE, MEANING, STOPPED, End
from coder.events import Events
from coder.files import Places
from coder.loop import Session
from coder.native import Native
from coder.prompt import system_prompt
from coder.shell import Shell
from coder.speech import Speech
from coder.tags import Tags
from coder.talk import Turn
from coder.task import Task
from coder.tools import Toolbox

RESULT_CHARS = 16_000


def main(arguments: list[str]) -> int:
    """Carry out the task named on the command line; return the exit code."""
    if len(arguments) != 1:
        print("usage: python main.py TASK.json", file=sys.stderr)
        return BAD_TASK
    try:
        task = tasks.load(arguments[0])
    except End as end:
        print(end, file=sys.stderr)
        return end.code
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    events = Events(os.path.join(task.work, ".coder", "transcript.jsonl"))
    try:
        return work(task, events)
    finally:
        events.close()


def _stop(number: int, _: object) -> None:
    """End the session in good order, once."""
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    raise End(STOPPED, signal.Signals(number).name)


def work(task: Task, events: Events) -> int:
    """Let the model work on a task; the last event is always `end`."""
    shell = Shell(task.work)
    budget = Budget(task.tool_calls, task.tokens, task.seconds)
    session = None
    code, detail, words = 1, "", ""
    try:
        session = build(task, shell, budget, events)
        words = session.run()
        code = DONE
    except End as end:
        code, detail = end.code, end.detail
        words = session.last_words if session else ""
        print(f"{MEANING[code]}: {detail}" if detail else MEANING[code], file=sys.stderr)
    except Exception:
        detail = traceback.format_exc()
        raise
    finally:
        shell.close()
        events.write(
            "end",
            code=code,
            reason=MEANING.get(code, "a fault of the coder itself"),
            detail=detail,
            text=words,
            calls=budget.calls_used,
            tokens=budget.tokens_used,
            seconds=round(budget.seconds - budget.seconds_left, 3),
        )
    return code


def build(task: Task, shell: Shell, budget: Budget, events: Events) -> Session:
    """Put the parts of a session together."""
    speech: Speech = Tags() if task.protocol == "tags" else Native()
    reply = min(task.reply_tokens, task.window // 2)
    places = Places(task.work, task.read)
    skill = f"# Standing orders\n\n{task.skill.strip()}" if task.skill.strip() else ""
    system = system_prompt(
        {
            "work": task.work,
            "read": ", ".join(f"`{folder}`" for folder in task.read) or "nothing else",
            "protocol": speech.about,
            "finish": speech.finish,
            "skill": skill,
        }
    )
    # A result may take an eighth of what the model can see, at three characters a token.
    most = max(600, min(RESULT_CHARS, (task.window - reply) * 3 // 8))
    return Session(
        system=system,
        turns=[Turn("user", f"{task.prompt.strip()}\n\n[{budget.line()}]")],
        speech=speech,
        ask=Client(task.dialect, task.endpoint).complete,
        toolbox=Toolbox(places, shell, task.command_seconds, most),
        budget=budget,
        context=Context(task.window, reply),
        events=events,
        dialect=task.dialect,
        model=task.model,
        reply_tokens=reply,
        most_failures=task.failures,
    )
