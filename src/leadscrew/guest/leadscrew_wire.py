"""Frames between the processes of a box, and what all of them need: limits on JSON, pipes, a look at the process tree.

A frame is one letter, a length (4 bytes, little endian) and that many bytes. Letters from the supervisor: C configure,
I input of a train item, R its label, B a batch of labelled items, G go (freeze), T trial, N next observation. Letters
from the program's side: A answer, F failure (first byte tells the kind), L log, S step (an action), K done.
"""

from __future__ import annotations

import _json
import fcntl
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEADER = 5
FAILURES = {
    b"i": "invalid",
    b"c": "crash",
    b"t": "timeout",
    b"o": "oom",
    b"b": "bad_output",
}
MESSAGE_CHARS = 4000
MAX_DEPTH = 64
MAX_DIGITS = 4000


class Invalid(Exception):
    """The program does not offer what its interface asks for."""


class BadOutput(Exception):
    """The program returned what no answer can be."""


class _Rules:
    """How the C scanner of the standard library is to read; the `json` package itself costs a box 8 ms."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _no_json(value: object) -> object:
    raise TypeError(f"a value of type {type(value).__name__}, which JSON cannot hold")


_scan = _json.make_scanner(_Rules())  # type: ignore[arg-type]
_encode = _json.make_encoder(None, _no_json, _json.encode_basestring_ascii, None, ":", ",", False, False, True)
_encode_any = _json.make_encoder(None, repr, _json.encode_basestring_ascii, None, ":", ",", False, False, True)


def loads(data: bytes) -> Any:
    """Read one JSON text; raises `ValueError` or `RecursionError` for anything else."""
    text = data.decode("utf-8").strip()
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("this is no JSON") from None
    if end != len(text):
        raise ValueError("something follows the JSON")
    return value


def dumps(value: object, *, anything: bool = False) -> bytes:
    """Return one line of ASCII JSON; `anything` turns what JSON cannot hold into its `repr`."""
    return "".join((_encode_any if anything else _encode)(value, 0)).encode("ascii")


def write_all(fd: int, data: bytes) -> None:
    """Write everything to a blocking pipe."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def send(fd: int, letter: bytes, payload: bytes = b"") -> None:
    """Send one frame."""
    write_all(fd, letter + len(payload).to_bytes(4, "little") + payload)


def read_exactly(fd: int, count: int) -> bytes:
    """Read `count` bytes; raises `EOFError` at the end."""
    parts = []
    while count:
        try:
            data = os.read(fd, min(count, 1 << 20))
        except BlockingIOError:
            os.set_blocking(fd, True)  # the flag belongs to the pipe: a trial may have set it for all who share it
            continue
        if not data:
            raise EOFError
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


def receive(fd: int) -> tuple[bytes, bytes]:
    """Read one frame from a trusted writer."""
    head = read_exactly(fd, HEADER)
    return head[:1], read_exactly(fd, int.from_bytes(head[1:], "little"))


def json_fault(value: Any) -> str | None:
    """Say why `value` is no acceptable JSON answer, or None. The host applies the same rule again."""
    stack = [(value, 0)]
    limit = 10**MAX_DIGITS
    while stack:
        item, depth = stack.pop()
        if depth > MAX_DEPTH:
            return f"nesting deeper than {MAX_DEPTH}"
        if item is None or isinstance(item, (bool, str)):
            continue
        if isinstance(item, int):
            if not -limit < item < limit:
                return f"an integer of more than {MAX_DIGITS} digits"
        elif isinstance(item, float):
            if item != item or item in (float("inf"), float("-inf")):
                return "a number that is not finite"
        elif isinstance(item, (list, tuple)):
            stack.extend((child, depth + 1) for child in item)
        elif isinstance(item, dict):
            for key, child in item.items():
                if not isinstance(key, str):
                    return f"a key of type {type(key).__name__}; keys must be text"
                stack.append((child, depth + 1))
        else:
            return f"a value of type {type(item).__name__}, which JSON cannot hold"
    return None


def identity(fd: int) -> list[int]:
    """Return mount and inode number of an open file, as others see them in /proc; [-1, -1] on kernels before 5.14."""
    info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        words = os.read(info, 4096).split()
    finally:
        os.close(info)
    if b"mnt_id:" not in words or b"ino:" not in words:
        return [-1, -1]
    return [int(words[words.index(name) + 1]) for name in (b"mnt_id:", b"ino:")]


def pipe_state(fds: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return what processes that share these descriptors could change about them: flags and the size of a pipe."""
    out = []
    for fd in fds:
        try:
            size = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
        except OSError:
            size = 0
        out.append((fd, fcntl.fcntl(fd, fcntl.F_GETFL), size))
    return out


def restore_pipes(state: list[tuple[int, int, int]]) -> None:
    """Undo whatever a trial changed about the descriptors it shared, so that it tells the next one nothing."""
    for fd, flags, size in state:
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            fcntl.fcntl(fd, fcntl.F_SETOWN, 0)
            fcntl.fcntl(fd, fcntl.F_SETSIG, 0)
            if size and fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) != size:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
        except OSError:
            continue  # the program closed or replaced it while loading


def cut(value: Any, limit: int) -> Any:
    """Shorten the texts in a JSON-like value to `limit` characters each, keeping head and tail."""
    if isinstance(value, str) and len(value) > limit:
        half = max(limit // 2, 1)
        return f"{value[:half]}\n[... {len(value) - 2 * half} characters cut ...]\n{value[-half:]}"
    if isinstance(value, dict):
        return {str(k): cut(v, limit) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [cut(v, limit) for v in value]
    return value


def describe(error: BaseException) -> str:
    """The tail of the traceback, without our own frames."""
    trace = error.__traceback__
    while trace is not None and os.path.basename(trace.tb_frame.f_code.co_filename).startswith("leadscrew_"):
        trace = trace.tb_next
    kept, sys.stderr = sys.stderr, io.StringIO()
    try:
        sys.__excepthook__(type(error), error.with_traceback(trace), trace)
        text = sys.stderr.getvalue()
    except BaseException as second:  # an exception whose own text cannot be made
        text = f"{type(error).__name__} (no text: {type(second).__name__})"
    finally:
        sys.stderr = kept
    return text[-MESSAGE_CHARS:].strip() or type(error).__name__


def children(pid: int) -> list[int]:
    """Return the live or dead direct children of a process (of all its threads)."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            fd = os.open(f"/proc/{pid}/task/{task}/children", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while data := os.read(fd, 1 << 16):
                    found.extend(int(p) for p in data.split())
            finally:
                os.close(fd)
    except OSError:
        return found or _children_by_scan(pid)
    return found


def _children_by_scan(pid: int) -> list[int]:
    # Kernels without CONFIG_PROC_CHILDREN, or a process that ended while we looked.
    if not os.path.exists(f"/proc/{pid}"):
        return []
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat(int(name))
            if fields and int(fields[1]) == pid:
                out.append(int(name))
    return out


def stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on (state, parent, ...), or an empty list."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        data = os.read(fd, 4096)
    except OSError:
        return []
    finally:
        os.close(fd)
    return data[data.rfind(b")") + 2 :].split()


def descendants(pid: int) -> list[int]:
    """Return every process below `pid`, nearest first."""
    out: list[int] = []
    queue = [pid]
    while queue and len(out) < 100_000:
        below = children(queue.pop(0))
        out.extend(below)
        queue.extend(below)
    return out
