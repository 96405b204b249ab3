"""Speaking to a run from outside: stop it, leave a note, decide on held candidates, lay out a bench, hand in a program.

Each call leaves a message in the run's inbox (`propose` only lays out files). The process that writes the run takes it
up within a second, or at the next resume.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leadscrew.core.program import File, Program
from leadscrew.core.proposal import Candidate, Edit
from leadscrew.errors import NotFoundError, RefusedError, UsageError
from leadscrew.report.reading import Reading, held, is_running, reading, run_folder

PENDING = "pending_eval.json"


def stop(run: str | Path, reason: str = "") -> dict[str, Any]:
    """Ask a running search to stop; finished trials stay and `resume` goes on. Raises `RefusedError` if none runs."""
    folder = run_folder(run)
    if not is_running(folder):
        raise RefusedError(f"nothing is running in {str(folder)!r}, so there is nothing to stop.")
    return _post(
        folder, "stop", {"text": reason or "asked to stop"}, "asked the run to stop; `leadscrew resume` goes on"
    )


def note(run: str | Path, text: str) -> dict[str, Any]:
    """Leave a word for the proposers; those that read notes see it from the next plan on."""
    if not text.strip():
        raise UsageError("the note is empty: write what proposers should know.")
    return _post(run_folder(run), "note", {"text": text.strip()}, "noted")


def approve(run: str | Path, candidate: str, *, reason: str = "") -> dict[str, Any]:
    """Let a held candidate be evaluated, in a plan of its own. Raises `RefusedError` if it is not held."""
    return _decide(run, "approve", candidate, reason, f"approved {candidate}; it is evaluated as a new candidate")


def reject(run: str | Path, candidate: str, *, reason: str = "") -> dict[str, Any]:
    """Turn down a held candidate; it stays on record, unevaluated. Raises `RefusedError` if it is not held."""
    return _decide(run, "reject", candidate, reason, f"turned down {candidate}")


def propose(run: str | Path) -> dict[str, Any]:
    """Return the bench of a plan that waits for a submission; where none waits, lay one out.

    A bench holds history, programs and instructions.

    The result has `folder`, `plan` (None for a bench of one's own) and `next`, the command that hands it in.
    """
    with reading(run) as r:
        _check_open(r)
        judged = {number for number, _, _ in r.store.judgements()}
        for stored in r.store.plans():
            waits = isinstance(stored.plan, Edit) and stored.plan.operator == "external" and stored.number not in judged
            folder = r.folder / "benches" / str(stored.number)
            if waits and folder.is_dir():
                return _bench(r, folder, stored.number)
        return _bench(r, _lay_out(r), None)


def submit(
    run: str | Path, folder: str | Path, *, base: str | None = None, name: str = "", hypothesis: str = ""
) -> dict[str, Any]:
    """Hand in a bench with its `pending_eval.json`, or any folder (or file) as one whole new program.

    `base` names the candidate that it was made from. Raises `UsageError` for what cannot be a program; anything else
    that is wrong becomes a failed candidate with its reason.
    """
    place = Path(folder)
    if not place.exists():
        raise NotFoundError(f"there is no folder {str(place)!r} to hand in.", name=str(place))
    with reading(run) as r:
        _check_open(r)
        if base:
            r.candidate(base)
        where = r.folder
    files = _taken(place)
    what = "handed in " + (
        f"{PENDING} and {len(files) - 1} files" if PENDING in files else f"{len(files)} files as one program"
    )
    data = {key: value for key, value in (("base", base), ("name", name), ("hypothesis", hypothesis)) if value}
    return _post(where, "submit", data, what, files)


# -- details -------------------------------------------------------------------------------------


def _post(folder: Path, kind: str, data: Mapping[str, Any], text: str, files: Program | None = None) -> dict[str, Any]:
    from leadscrew.wire import post

    message = post(folder, kind, data, files)
    running = is_running(folder)
    if not running:
        text += f". Nothing is running there: `leadscrew resume {folder}` takes it up"
    return {"message": message, "kind": kind, "running": running, "text": text}


def _check_open(r: Reading) -> None:
    if any(True for _ in r.store.events("opening")):
        raise RefusedError(
            "the test split of this run was opened, so nothing can be added to it. Fork the run to search on."
        )


def _decide(run: str | Path, kind: str, candidate: str, reason: str, text: str) -> dict[str, Any]:
    with reading(run) as r:
        _check_open(r)
        chosen: Candidate = r.candidate(candidate)
        if chosen.id not in held(r):
            state = "decided on already" if chosen.status == "held" else chosen.status
            raise RefusedError(f"candidate {candidate} is not held (it is {state}), so there is nothing to decide.")
        folder = r.folder
    return _post(folder, kind, {"candidate": candidate, "text": reason}, text)


def _bench(r: Reading, folder: Path, plan: int | None) -> dict[str, Any]:
    return {"folder": str(folder), "plan": plan, "next": f"leadscrew submit {r.folder} {folder}"}


def _lay_out(r: Reading) -> Path:
    """A bench outside the run's plans, for somebody who wants to try something."""
    from leadscrew.plugins import load_domain, load_method
    from leadscrew.wire import hand_bench

    benches = r.folder / "benches"
    benches.mkdir(exist_ok=True)
    number = 1
    while (benches / f"hand-{number}").exists():
        number += 1
    folder = benches / f"hand-{number}"
    hand_bench(r.store, r.archive, load_domain(r.config), load_method(r.config), folder)
    return folder


def _taken(place: Path) -> Program:
    """A bench's pending file and what it names, the rest of the bench staying where it is; else the whole folder."""
    from leadscrew.engine.folders import read_folder

    pending = place / PENDING
    if not pending.is_file():
        program = read_folder(place)
        if not program:
            raise UsageError(f"{str(place)!r} holds no file that could be a program.")
        return program
    files: dict[str, File] = {PENDING: File(pending.read_bytes())}
    try:
        entries = json.loads(files[PENDING].data).get("candidates", [])
    except (ValueError, AttributeError, RecursionError):
        entries = []  # the run records the fault, with its reason, as a failed candidate
    for entry in entries if isinstance(entries, list) else []:
        for path in _named(entry):
            target = place / path
            if not target.resolve().is_relative_to(place.resolve()) or not target.exists():
                continue
            found = read_folder(target)
            prefix = f"{path.rstrip('/')}/" if target.is_dir() else path.removesuffix(target.name)
            files |= {f"{prefix}{inner}": file for inner, file in found.items()}
    return Program(files)


def _named(entry: object) -> list[str]:
    if not isinstance(entry, dict):
        return []
    names = []
    if isinstance(entry.get("file"), str):
        names.append(os.path.normpath(entry["file"]))
    if isinstance(entry.get("import_path"), str):
        stem = entry["import_path"].partition(":")[0].replace(".", "/")
        names += [stem, f"{stem}.py"]
    return [name for name in names if name and not name.startswith(("/", ".."))]
