"""One bash that lives as long as the session: folder, variables, functions and background jobs stay from call to call.

Each command is handed to it as one quoted text with closed input, and run by `command.sh`. Output comes through one pipe
that a thread empties all the time, the end of a command through a second pipe that commands never see. So nothing has to be
guessed from the output, no command text can break out, and nobody polls. The shell is interactive only in that an interrupt
brings it back to its prompt with everything it knows.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import select
import shlex
import signal
import struct
import subprocess
import termios
import threading

from coder import processes

KEEP = 200_000
"""Bytes of output kept at each end of a command's output."""
GRACE = 0.5
"""Seconds that a shell gets to come back to its prompt before it is killed itself."""
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "command.sh")
_numbers = itertools.count(1)


class Output:
    """Bytes as they come: both ends are kept, the middle is counted."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.lost = 0

    def add(self, data: bytes) -> None:
        """Append bytes."""
        room = KEEP - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * KEEP:
            self.lost += len(self.tail) - KEEP
            del self.tail[:-KEEP]

    def take(self) -> str:
        """Return what came as text, and begin anew. Bytes that are no UTF-8 are written out."""
        self.lost += max(0, len(self.tail) - KEEP)
        del self.tail[:-KEEP]
        gap = f"\n[... {self.lost} bytes left out ...]\n".encode() if self.lost else b""
        text = bytes(self.head + gap + self.tail).decode("utf-8", "backslashreplace")
        self._clear()
        return text


class Bash:
    """One bash process and its pipes."""

    def __init__(self, folder: str) -> None:
        self.mark = f"{os.getpid()}-{next(_numbers)}"
        self.out, out_end = os.pipe()
        self.ends, ends_end = os.pipe()
        self._asked = 0
        self._out_end, self._ends_end = out_end, ends_end
        environment = {**os.environ, "PS1": "", "PS2": "", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}
        environment |= {"HISTFILE": "", "NO_COLOR": "1", processes.MARK: self.mark}
        for name in ("BASH_ENV", "ENV", "PROMPT_COMMAND"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i", "+m", "+o", "history", "+H"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=folder, env=environment, pass_fds=(out_end, ends_end), start_new_session=True,
        )  # fmt: skip
        os.close(out_end)
        os.close(ends_end)
        os.set_blocking(self.out, False)
        self._lock = threading.Lock()
        self._output = Output()
        self._dead, self._dead_end = os.pipe()
        self._stop, self._stop_end = os.pipe()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._pump, self._wait)]
        for thread in self._threads:
            thread.start()

    def _pump(self) -> None:
        """Empty the output pipe whenever something is in it, so that background jobs never stand still."""
        while True:
            if self._stop in select.select([self.out, self._stop], [], [])[0]:
                return
            with self._lock:
                try:
                    data = os.read(self.out, 65536)
                except BlockingIOError:  # the other reader was faster
                    continue
                self._output.add(data)
            if not data:
                return

    def _wait(self) -> None:
        """Tell the end of bash through a pipe, which can be waited for together with others."""
        self.process.wait()
        os.close(self._dead_end)

    def take_output(self) -> str:
        """Return everything that was written before now."""
        with self._lock:
            with contextlib.suppress(OSError):
                waiting = struct.unpack("i", fcntl.ioctl(self.out, termios.FIONREAD, b"\0" * 4))[0]
                if waiting:
                    self._output.add(os.read(self.out, waiting))
            return self._output.take()

    def ask(self, command: str) -> None:
        """Hand a command over; its end is told by `answer`."""
        self._asked += 1
        out, ends = self._out_end, self._ends_end
        run = ""
        if command:
            run = f"CODER_COMMAND={shlex.quote(command)}; "
            run += f"\\builtin source {shlex.quote(SCRIPT)} </dev/null >&{out} 2>&1 {out}>&- {ends}>&-; "
        report = f'\\builtin printf \'%s %s %s\\0\' {self._asked} "$?" "$PWD" >&{ends}'
        line = f"{run}{report}\n"
        data = line.encode("utf-8", "surrogateescape")
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def answer(self, seconds: float) -> tuple[int, str] | None:
        """Wait for the end of the last command: its exit code and the folder; None if time is up or bash is gone."""
        seen = b""
        while select.select([self.ends, self._dead], [], [], seconds)[0]:
            if not select.select([self.ends], [], [], 0)[0]:
                return None
            data = os.read(self.ends, 65536)
            if not data:  # nobody is left who could answer: bash is about to be gone
                select.select([self._dead], [], [], seconds)
                return None
            seen += data
            for part in seen.split(b"\0")[:-1]:
                number, code, folder = part.split(b" ", 2)
                if int(number) == self._asked:
                    return int(code), os.fsdecode(folder)
        return None

    @property
    def alive(self) -> bool:
        """Whether bash still runs."""
        return not select.select([self._dead], [], [], 0)[0]

    def interrupt(self, before: set[int]) -> tuple[int, str] | None:
        """Stop the running command and all processes that are not in `before`; return as `answer` does, None if bash went.

        As a terminal would: bash gives up what it is doing only if what it waits for ends by the interrupt too. They are
        held still meanwhile, so that none of them ends for another reason, such as the end of its neighbour in a pipe.
        """
        pid = self.process.pid
        new = processes.started_by(pid, self.mark) - before
        processes.send(new, signal.SIGSTOP)
        processes.send({pid}, signal.SIGINT)
        processes.send(new, signal.SIGINT)
        processes.send(new, signal.SIGCONT)
        self.ask("")
        answer = self.answer(GRACE)
        if answer is None:
            self.process.kill()
        processes.kill(pid, self.mark, before)
        return answer

    def end(self) -> None:
        """End bash and everything it ever started."""
        self.process.kill()
        self.process.wait()
        processes.kill(self.process.pid, self.mark, set())
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        os.close(self._stop_end)
        for thread in self._threads:
            thread.join()
        for descriptor in (self.out, self.ends, self._dead, self._stop):
            os.close(descriptor)
