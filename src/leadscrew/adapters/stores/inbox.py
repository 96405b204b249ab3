"""The inbox of a run: how other processes speak to the writer without touching the database.

One JSON file per message, `RUN/inbox/<id>.json`, written under another name and renamed; files that travel with it lie
in `RUN/inbox/<id>/`, in place before the message is. The writer copies each message into the database when it was acted
on and then moves its files to `RUN/inbox/taken/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leadscrew.adapters.stores import codec
from leadscrew.adapters.stores.content import sync, write_file
from leadscrew.core.program import Program
from leadscrew.engine.folders import read_folder, write_folder
from leadscrew.errors import InfrastructureError, NotFoundError
from leadscrew.ports import Message

MAX_MESSAGE = 4 * 1024 * 1024
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,120}")


def post(folder: Path, kind: str, data: Mapping[str, Any], files: Program | None = None) -> str:
    """Leave a message for the writer of the run in `folder`, durably; return its id. Ids sort by time of posting.

    `files` is a tree that travels with it (a submission). Raises `NotFoundError` if there is no run and
    `InfrastructureError` if the disk refuses.
    """
    folder = Path(folder)
    if not (folder / "run.db").is_file():
        raise NotFoundError(f"there is no run in {str(folder)!r} to send a message to.", name=str(folder))
    text = codec.dumps({"kind": kind, "data": dict(data)})
    inbox, name = folder / "inbox", f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    try:
        inbox.mkdir(exist_ok=True)
        if files is not None:
            draft = inbox / f".{name}"
            _lay_out(files, draft)
            os.rename(draft, inbox / name)
        write_file(inbox / f"{name}.json", text.encode("ascii"))
    except OSError as error:
        raise InfrastructureError(
            f"the message could not be left in {str(inbox)!r} ({error}): nothing was sent. Free disk space or get the "
            "right to write there, then send it again."
        ) from error
    return name


def pending(inbox: Path) -> list[str]:
    """Return the ids of the messages that lie in an inbox, oldest first."""
    try:
        with os.scandir(inbox) as entries:
            names = [e.name[:-5] for e in entries if e.name.endswith(".json") and not e.name.startswith(".")]
    except FileNotFoundError:
        return []
    return sorted(names)


def read(inbox: Path, name: str) -> Message | str:
    """Read one message; return the text of its fault if it is malformed."""
    path = inbox / f"{name}.json"
    if not _NAME.fullmatch(name):
        return f"the name {name!r} is no message id (letters, digits, '-', '_' and '.')"
    try:
        content = json.loads(_read_plain(path, MAX_MESSAGE))
    except (OSError, ValueError, RecursionError) as error:
        return f"it cannot be read as JSON ({error})"
    if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
        return "it is no mapping with a text 'kind'"
    if not isinstance(content.get("data", {}), dict):
        return f"'data' is {type(content['data']).__name__}, not a mapping"
    return Message(name, content["kind"], content.get("data", {}))


def files_of(inbox: Path, name: str) -> Program | None:
    """Return the tree that travels with a message, or None; raises `ProgramError` if it cannot become a program."""
    for root in (inbox / name, inbox / "taken" / name):
        if root.is_dir() and not root.is_symlink():
            return read_folder(root)
    return None


def stored_name(name: str) -> str:
    """Return the name under which a message is recorded: its id, or a digest of a name that is no id."""
    return name if _NAME.fullmatch(name) else "odd-" + hashlib.sha256(os.fsencode(name)).hexdigest()


def archive(inbox: Path, name: str) -> None:
    """Move a message that was acted on, and its files, out of the way."""
    taken = inbox / "taken"
    taken.mkdir(exist_ok=True)
    for part in (f"{name}.json", name):
        try:
            os.replace(inbox / part, taken / part)
        except OSError:
            # Gone already, or something of that name lies there: the message itself is in the database.
            continue


def _read_plain(path: Path, limit: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no plain file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit} bytes")
    return data


def _lay_out(files: Program, root: Path) -> None:
    write_folder(files, root)
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))
