"""Runs one command in a proposer's box: the host's order comes on standard input, the report goes out as JSON lines.

Every line carries the order's nonce. The command has neither the pipes nor a look into this process (PR_SET_DUMPABLE 0);
as the first process of the box this one cannot be killed from inside. It keeps the time, kills the whole tree at the end,
and only then reads what the command left.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from leadscrew.guest import leadscrew_wire as wire
    from leadscrew.guest.leadscrew_supervisor import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, prctl

    Json = dict[str, Any]
else:
    import leadscrew_wire as wire
    from leadscrew_supervisor import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, prctl

CHUNK = 192 * 1024
TICK = 0.1
KILL_SECONDS = 10.0
MAX_ENTRIES = 100_000
NOISE = frozenset(("__pycache__", ".git", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv"))
FIRST = "pending_eval.json"
NAMED = 50
"""Of how much that does not come back the names are told."""
MAX_PATH = 240
"""Bytes of a path; a program has no longer ones."""


class Stream:
    """One output of the command: the first half of what is kept goes to the host at once, the last half at the end."""

    def __init__(self, name: str, fd: int, limit: int, say: Say) -> None:
        self.name, self.fd, self.say = name, fd, say
        self.room = self.kept = limit // 2
        self.tail = bytearray()
        self.total = 0
        self.open = True
        os.set_blocking(fd, False)

    def take(self) -> bool:
        """Read once; False if nothing is there now."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.open = False
            return False
        self.total += len(data)
        head, rest = data[: self.room], data[self.room :]
        self.room -= len(head)
        if head:
            self.say({self.name: _text(head)})
        self.tail += rest
        if len(self.tail) > 2 * self.kept + (1 << 16):
            del self.tail[: len(self.tail) - self.kept]
        return True

    def end(self) -> Json:
        """Send the tail; return how many bytes there were, and how many of them were left out."""
        tail = bytes(self.tail[-self.kept :]) if self.kept else b""
        for start in range(0, len(tail), CHUNK):
            self.say({self.name + "_tail": _text(tail[start : start + CHUNK])})
        return {"total": self.total, "cut": self.total - (self.kept - self.room) - len(tail)}


class Say:
    """Writes lines to the host. A host that is gone ends the box."""

    def __init__(self, sink: int, nonce: str) -> None:
        self.sink, self.nonce = sink, nonce

    def __call__(self, line: Json) -> None:
        try:
            wire.write_all(self.sink, json.dumps({"nonce": self.nonce, **line}).encode() + b"\n")
        except OSError:
            os._exit(1)


class Command:
    """The command and everything below it."""

    def __init__(self, order: Json, say: Say) -> None:
        self.order = order
        self.me = os.getpid()
        self.ticks = os.sysconf("SC_CLK_TCK")
        self.status: int | None = None
        self.pid = 0
        self.streams: list[Stream] = []
        environment = {**os.environ, **order["env"]}
        order["argv"] = [_expanded(word, environment) for word in order["argv"]]
        try:
            process = subprocess.Popen(
                order["argv"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=order["cwd"],
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            # As a shell would say it.
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self.status = code << 8
            say({"err": _text(f"{order['argv'][0]}: {error}\n".encode("utf-8", "replace"))})
            return
        self.pid = process.pid
        _first_to_go(self.pid)
        process.returncode = 0  # this process waits for all its children itself
        assert process.stdout is not None
        assert process.stderr is not None
        # The descriptors are duplicated because the file objects close theirs when they are collected.
        self.streams = [
            Stream("out", os.dup(process.stdout.fileno()), order["stdout_bytes"], say),
            Stream("err", os.dup(process.stderr.fileno()), order["stderr_bytes"], say),
        ]
        process.stdout.close()
        process.stderr.close()

    def run(self) -> str:
        """Wait for the end of the command; return why it was killed, or nothing. Nothing of the tree is left afterwards."""
        limit = time.monotonic() + self.order["seconds"]
        killed = ""
        looked = 0.0
        poll = select.poll()
        for stream in self.streams:
            poll.register(stream.fd, select.POLLIN)
        while self.status is None:
            ready = {fd for fd, _ in poll.poll(TICK * 1000)}
            for stream in self.streams:
                if stream.open and stream.fd in ready:
                    stream.take()
                    if not stream.open:
                        poll.unregister(stream.fd)
            if not any(stream.open for stream in self.streams):
                time.sleep(TICK)
            self.reap()
            now = time.monotonic()
            if self.status is None and now > limit:
                killed = "wall"
                break
            if now > looked + 5 * TICK:
                looked = now
                if self.status is None and self.cpu_s() > self.order["cpu_s"]:
                    killed = "cpu"
                    break
        self.kill()
        for stream in self.streams:
            while stream.open and stream.take():
                continue
            os.close(stream.fd)
        return killed

    def reap(self) -> None:
        """Take the status of every child that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = status

    def kill(self) -> None:
        """Kill everything below this process and wait until it is gone."""
        until = time.monotonic() + KILL_SECONDS
        while below := wire.descendants(self.me):
            for pid in below:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.reap()
            if time.monotonic() > until:
                return  # the host kills the box
            time.sleep(0.005)
        self.reap()

    def cpu_s(self) -> float:
        """CPU seconds of the whole tree, ended processes included."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = used.ru_utime + used.ru_stime
        for pid in wire.descendants(self.me):
            fields = wire.stat(pid)
            total += sum(int(f) for f in fields[11:15]) / self.ticks if fields else 0.0
        return total


def main() -> None:
    """Carry out the one order that the host sends."""
    sys.dont_write_bytecode = True
    # The first process of a box gets only the signals that it handles, and Python handles this one: a command could end us.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    source = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 100)
    sink = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 100)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_DUMPABLE, 0)
    with os.fdopen(source, "rb") as stream:
        order = json.loads(stream.readline())
    say = Say(sink, order["nonce"])
    try:
        shutil.copytree(order["given"], order["work"], dirs_exist_ok=True)
        order["env"] = {**_addresses(order.get("socket", "")), **order["env"]}
    except (OSError, ImportError, shutil.Error) as error:
        say({"broken": f"{type(error).__name__}: {error}"})
        return
    say({"started": True})
    command = Command(order, say)
    killed = command.run()
    streams = {stream.name: stream.end() for stream in command.streams}
    status = command.status if not killed else None
    say({"ended": killed, "status": status, "streams": streams, "cpu_s": round(command.cpu_s(), 3)})
    files, left_out = gather(order["work"], order["back_bytes"], order["back_files"])
    say({"files": files, "left_out": left_out})
    for index, file in enumerate(files):
        _send(order["work"], index, file, say)
    say({"done": True})


def _first_to_go(pid: int) -> None:
    """If memory runs out, the command goes rather than this process, which still has its files to bring back."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as stream:
            stream.write("1000")
    except OSError:
        return  # it has ended already, or the kernel keeps its own choice


def _expanded(word: str, environment: dict[str, str]) -> str:
    """Put the gateway's addresses into a command that takes them as arguments; they are known in here only."""
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        word = word.replace("${" + name + "}", environment.get(name, ""))
    return word


def _addresses(socket_path: str) -> dict[str, str]:
    """Start the forwarder to the gateway; return the variables that tell clients of it."""
    if not socket_path:
        return {}
    if TYPE_CHECKING:
        from leadscrew.guest import leadscrew_forward
    else:
        import leadscrew_forward
    found: dict[str, str] = leadscrew_forward.environment(leadscrew_forward.start(socket_path), socket_path)
    return found


def gather(folder: str, limit: int, most: int) -> tuple[list[Json], list[str]]:
    """List the regular files under `folder` that come back, the list of the deliverable first and then the small ones,
    and say of the others why they do not. Call it when the command is dead."""
    found: list[Json] = []
    refused: list[str] = []
    entries = 0
    stack = [""]
    while stack:
        inside = stack.pop()
        for name, path in _names(folder, inside, refused):
            entries += 1
            if entries > MAX_ENTRIES:
                refused.append(f"everything beyond {MAX_ENTRIES} entries")
                stack.clear()
                break
            if name in NOISE:
                continue
            if len(os.fsencode(path)) > MAX_PATH:
                refused.append(f"{path[:80]}...: the path is too long")
                continue
            info = os.lstat(os.path.join(folder, path))
            if stat.S_ISDIR(info.st_mode):
                stack.append(path)
            elif stat.S_ISREG(info.st_mode):
                found.append({"path": path, "size": info.st_size, "executable": bool(info.st_mode & 0o100)})
            else:
                refused.append(f"{path}: {'a link' if stat.S_ISLNK(info.st_mode) else 'no regular file'}")
    found.sort(key=lambda file: (file["path"] != FIRST, file["size"], file["path"]))
    kept: list[Json] = []
    for file in found:
        limit -= file["size"]
        if limit < 0 or len(kept) >= most:
            refused.append(f"{file['path']}: too much to bring back ({file['size']} bytes)")
        else:
            kept.append(file)
    if len(refused) > NAMED:
        refused[NAMED:] = [f"and {len(refused) - NAMED} more"]
    return kept, refused


def _names(folder: str, inside: str, refused: list[str]) -> list[tuple[str, str]]:
    place = os.path.join(folder, inside)
    try:
        os.chmod(place, 0o700)
        names = sorted(os.listdir(place))
    except OSError as error:
        refused.append(f"{inside or '.'}: {error.strerror}")
        return []
    return [(name, f"{inside}/{name}" if inside else name) for name in names]


def _send(folder: str, index: int, file: Json, say: Say) -> None:
    path = os.path.join(folder, file["path"])
    try:
        os.chmod(path, 0o600)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        say({"file": index, "fault": str(error.strerror)})
        return
    try:
        left = file["size"]
        while left and (data := os.read(fd, min(left, CHUNK))):
            left -= len(data)
            say({"file": index, "data": _text(data)})
    finally:
        os.close(fd)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    main()
