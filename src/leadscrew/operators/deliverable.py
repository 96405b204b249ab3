"""The deliverable of proposers that work with files: `pending_eval.json` and the files it names, read with distrust.

Both published shapes are taken (Meta-Harness release): entries with a `file` (text classification), and entries with an
`import_path` (terminal tasks). Every fault becomes a failed proposal with its reason; nothing here raises for what a
proposer wrote, and nothing that it wrote is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program, check_path
from leadscrew.core.proposal import Claim, Edge, Proposal
from leadscrew.core.trial import Outcome
from leadscrew.engine.folders import MAX_FILE_BYTES, read_folder
from leadscrew.errors import ProgramError

PENDING = "pending_eval.json"
MAX_PENDING_BYTES = 1 << 20
MAX_TEXT = 20_000
MAX_CANDIDATES = 64


class _Fault(Exception):
    """Why an entry cannot be taken, in words for the proposer."""


def read_deliverable(
    folder: Path,
    *,
    archive: Archive,
    program: Callable[[str], Program],
    entry: str = "main.py",
    count: int | None = None,
) -> tuple[Proposal, ...]:
    """Read `pending_eval.json` in `folder` and return one proposal per entry, failed ones with their reason.

    A folder named by `file` is a whole tree. A single file becomes `entry` of the base's tree (of an empty tree without
    a base); its other files stay. `base_system` is a candidate id, a system name of the history (`<id>-<label>`) or a
    label, where the newest of that label counts. Entries beyond `count` become one failed proposal.
    """
    try:
        entries = _entries(folder)
    except _Fault as fault:
        return (_failed("", {}, str(fault)),)
    limit = min(count or MAX_CANDIDATES, MAX_CANDIDATES)
    out = [_proposal(folder, item, archive, program, entry) for item in entries[:limit]]
    if len(entries) > limit:
        names = ", ".join(str(_field(item, "name"))[:40] for item in entries[limit : limit + 5])
        reason = f"{PENDING} lists {len(entries)} candidates, but {limit} were asked for; not taken: {names}"
        out.append(_failed("", {}, reason))
    return tuple(out)


def find_candidate(archive: Archive, name: str) -> str | None:
    """Return the id of the candidate that a proposer calls `name`: an id, a system name, or a label (newest first)."""
    name = name.strip()
    for guess in (name, name.split("-", 1)[0]):
        if guess in archive:
            return guess
    labelled = [c.id for c in archive if c.name == name]
    return labelled[-1] if labelled else None


def _entries(folder: Path) -> list[Any]:
    path = folder / PENDING
    if not path.exists() and not path.is_symlink():
        raise _Fault(f"{PENDING} is missing: a deliverable is that file and the candidates it names")
    try:
        data = _single(path, MAX_PENDING_BYTES)[PENDING].data
        given = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ProgramError, OSError) as error:
        raise _Fault(f"{PENDING} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise _Fault(f"{PENDING} is no valid JSON ({str(error)[:200]})") from None
    if not isinstance(given, dict):
        raise _Fault(f"{PENDING} holds {_kind(given)}; it must be an object with a list of candidates")
    iteration = given.get("iteration", 0)
    if isinstance(iteration, bool) or not isinstance(iteration, int):
        raise _Fault(f"{PENDING}: iteration is {_kind(iteration)}; it must be a whole number")
    candidates = given.get("candidates")
    if not isinstance(candidates, list):
        raise _Fault(f"{PENDING}: candidates is {_kind(candidates)}; it must be a list of objects")
    if not candidates:
        raise _Fault(f"{PENDING} lists no candidates")
    return candidates


def _proposal(folder: Path, item: Any, archive: Archive, program: Callable[[str], Program], entry: str) -> Proposal:
    name = ""
    try:
        if not isinstance(item, dict):
            raise _Fault(f"a candidate is {_kind(item)}; it must be an object")
        name = _text(item, "name", required=True)
        claim = _claim(item)
        base_name = _text(item, "base_system")
        base = find_candidate(archive, base_name) if base_name else None
        note = "" if base or not base_name else f"base_system {base_name!r} is no recorded candidate: no base is noted"
        edges = (Edge("base", base),) if base else ()
        base_tree = program(base) if base and archive[base].program else None
        tree = _tree(folder, item, base_tree, entry)
    except _Fault as fault:
        return _failed(name, item, str(fault))
    except (ProgramError, OSError, RecursionError) as error:
        return _failed(name, item, str(error))
    return Proposal(tree, edges, claim, name, log="\n".join(filter(None, (note, _loose(item, "log")))))


def _tree(folder: Path, item: Mapping[str, Any], base: Program | None, entry: str) -> Program:
    place = _place(folder, item)
    # Every folder on the way must be a real one: a link could lead out of the deliverable.
    parts = place.split("/")
    for depth in range(1, len(parts) + 1):
        if (folder / "/".join(parts[:depth])).is_symlink():
            raise _Fault(f"{'/'.join(parts[:depth])!r} is a link; put the files themselves into the deliverable")
    target = folder / place
    if not target.exists():
        raise _Fault(f"the file {place!r} is missing")
    if target.is_dir():
        tree = read_folder(target)
        if not tree:
            raise _Fault(f"the folder {place!r} holds no files")
        return tree
    content = next(iter(_single(target).values()))
    return (base or Program({})).with_files({entry: content})


def _single(path: Path, limit: int = MAX_FILE_BYTES) -> Program:
    """Read one file by the rules of a folder's files: `read_folder` would let a hard link pass as its root."""
    if path.lstat().st_nlink > 1:
        raise _Fault(f"{path.name!r} is a hard link; put a copy of the file into the deliverable")
    return read_folder(path, max_file_bytes=limit)


def _place(folder: Path, item: Mapping[str, Any]) -> str:
    file, import_path = _text(item, "file"), _text(item, "import_path")
    if file:
        return check_path(file.removeprefix("./").rstrip("/"))
    if not import_path:
        raise _Fault("the candidate names neither a file nor an import_path")
    module, _, symbol = import_path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), symbol or "x")):
        raise _Fault(f"import_path {import_path[:100]!r} is not of the form package.module:Class")
    stem = check_path(module.replace(".", "/"))
    return stem if (folder / stem).is_dir() else f"{stem}.py"


def _claim(item: Mapping[str, Any]) -> Claim:
    components = item.get("components", [])
    if not isinstance(components, list) or not all(isinstance(c, str) for c in components):
        raise _Fault(f"components is {_kind(components)}; it must be a list of texts")
    expected = _text(item, "expected") or _text(item, "expected_efficiency")
    tags = tuple(c[:200] for c in components[:50])
    return Claim(_text(item, "hypothesis"), tags, expected, _extra(item))


def _extra(item: Mapping[str, Any]) -> dict[str, Any]:
    """Whatever else the proposer said, cut to a length: `axis`, `changes`, `import_path`, `base_system`, ..."""
    kept: dict[str, Any] = {}
    for key, value in list(item.items())[:50]:
        if key in ("name", "hypothesis", "components", "log", "expected", "expected_efficiency", "flags", "roles"):
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=str)[:MAX_TEXT]
        kept[key[:100].encode("utf-8", "replace").decode()] = text[:MAX_TEXT].encode("utf-8", "replace").decode()
    return kept


def _text(item: Mapping[str, Any], key: str, *, required: bool = False) -> str:
    value = item.get(key)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value.strip()):
        raise _Fault(f"{key} is {_kind(value)}; it must be a text" + (" that is not empty" if required else ""))
    if len(value) > MAX_TEXT:
        raise _Fault(f"{key} has {len(value)} characters; at most {MAX_TEXT} are taken")
    return _clean(value).strip()


def _clean(value: str) -> str:
    # JSON escapes can smuggle in half a surrogate pair, which no UTF-8 text can hold.
    return value.encode("utf-8", "replace").decode()


def _field(item: Any, key: str) -> Any:
    return item.get(key, "") if isinstance(item, dict) else ""


def _loose(item: Any, key: str) -> str:
    value = _field(item, key)
    return _clean(value[:MAX_TEXT]) if isinstance(value, str) else ""


def _failed(name: str, item: Any, reason: str) -> Proposal:
    claim = Claim(_loose(item, "hypothesis"))
    return Proposal(None, (), claim, name or _loose(item, "name")[:200], reason, Outcome.INVALID, _loose(item, "log"))


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
    return "missing" if value is None else kinds.get(type(value), "a number")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
