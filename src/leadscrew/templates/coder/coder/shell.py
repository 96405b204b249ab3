"""The shell tool: one bash for the whole session, its time limits, and what happens when it goes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from coder import processes
from coder.bash import Bash


@dataclass(frozen=True)
class Outcome:
    """How a command ended. `code` is None if it was killed. `note` says what happened to the shell, if anything did."""

    code: int | None
    output: str
    note: str = ""
    before: str = ""
    """What background jobs printed since the last command."""


class Shell:
    """The shell as the tool uses it: a bash, and another one when it has gone."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._home = folder
        self._bashes: list[Bash] = []

    def run(self, command: str, seconds: float) -> Outcome:
        """Run one command for at most so many seconds.

        Raises `ValueError` for a command that bash cannot be given, and `OSError` if there is no bash.
        """
        if "\0" in command:
            raise ValueError("the command holds a NUL character, which no shell can be given")
        if not command.strip():
            raise ValueError("the command is empty")
        try:
            command.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError("the command holds half a character (a lone surrogate)") from None
        bash = self._bash()
        before = processes.all_pids()
        earlier = bash.take_output()
        bash.ask(command)
        answer = bash.answer(seconds)
        if answer is not None:
            code, self.folder = answer
            return Outcome(code, bash.take_output(), before=earlier)
        if not bash.alive:
            code = bash.process.wait()
            output = bash.take_output()
            self._renew()
            how = f"was ended by signal {-code}" if code < 0 else "was ended by the command (exit, exec or set -e)"
            note = f"the shell {how}; a new one was started in {self.folder}, variables and functions are gone"
            return Outcome(code, output, note, earlier)
        answer = bash.interrupt(before)
        output = bash.take_output()
        if answer is not None:
            self.folder = answer[1]
            note = "the shell goes on with its folder and variables"
        else:
            self._renew()
            note = f"the shell too: a new one was started in {self.folder}, variables and functions are gone"
        note = f"killed after {seconds:g} s with everything it had started; {note}"
        return Outcome(None, output, note, earlier)

    def _bash(self) -> Bash:
        if not self._bashes:
            self._bashes.append(Bash(self.folder))
        return self._bashes[-1]

    def _renew(self) -> None:
        """Start another bash where the last one was, or where the first one was if that folder has gone.

        Earlier background jobs go on.
        """
        if not os.path.isdir(self.folder):
            self.folder = self._home
        self._bashes.append(Bash(self.folder))

    def close(self) -> None:
        """End the shell and everything that was ever started from it."""
        for bash in self._bashes:
            bash.end()
        self._bashes.clear()
