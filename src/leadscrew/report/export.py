"""Taking a program out of a run: as a folder, as a branch of a git repository, or as a patch."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from leadscrew.core.program import File, Program, unified
from leadscrew.core.proposal import Candidate
from leadscrew.engine.folders import read_folder, write_folder
from leadscrew.errors import NotFoundError, UsageError
from leadscrew.report.reading import Reading, reading


def to_folder(run: str | Path, folder: str | Path, *, candidate: str = "") -> dict[str, Any]:
    """Write a candidate's files into `folder`, which must be absent or empty."""
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{str(target)!r} exists and is not empty; nothing was written. Name a new folder.")
    with reading(run) as r:
        chosen, program = _program(r, candidate)
    write_folder(program, target)
    return {"candidate": chosen.id, "folder": str(target), "files": len(program)}


def patch(run: str | Path, candidate: str = "", *, against: str | Path | None = None) -> str:
    """Return a patch that `git apply` takes: from the program the run began with, or from the checkout `against`.

    Files that only the checkout has stay as they are if the run never had them.
    """
    with reading(run) as r:
        _, program = _program(r, candidate)
        _, seed = _program(r, "seed")
    if against is None:
        return unified(seed, program)
    checkout = _files_of(Path(against), {*seed, *program})
    return unified(checkout, program)


def to_git(run: str | Path, repository: str | Path, *, branch: str = "", candidate: str = "") -> dict[str, Any]:
    """Commit a candidate's files to a new branch of `repository`. Neither its checkout nor its index is touched.

    The branch starts at HEAD where there is one; files of HEAD that the run never had are kept.
    """
    repo = Path(repository)
    if not repo.is_dir():
        raise NotFoundError(f"there is no folder {str(repo)!r}. Name a git repository.", name=str(repo))
    with reading(run) as r:
        chosen, program = _program(r, candidate)
        _, seed = _program(r, "seed")
        name = branch or f"leadscrew/{r.folder.name}-{chosen.id}"
        said = f"{chosen.claim.hypothesis or chosen.name or 'Program found by search'}"
        value = chosen.value
    _git(repo, "check-ref-format", "--branch", name)
    if _git(repo, "rev-parse", "--verify", "--quiet", f"refs/heads/{name}", check=False):
        raise UsageError(f"the branch {name!r} exists already in {str(repo)!r}. Name another one with --branch.")
    head = _git(repo, "rev-parse", "--verify", "--quiet", "HEAD", check=False)
    with tempfile.TemporaryDirectory() as scratch:
        env = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        if head:
            _git(repo, "read-tree", head, env=env)
        gone = b"".join(f"{path}\0".encode() for path in seed if path not in program)
        _git(repo, "update-index", "-z", "--force-remove", "--stdin", env=env, data=gone)
        lines = []
        for path, file in program.items():
            blob = _git(repo, "hash-object", "-w", "--stdin", data=file.data)
            lines.append(f"{'100755' if file.executable else '100644'} {blob}\t{path}")
        _git(repo, "update-index", "-z", "--index-info", env=env, data=b"".join(f"{x}\0".encode() for x in lines))
        tree = _git(repo, "write-tree", env=env)
    message = (
        f"{said}\n\nCandidate {chosen.id} of the run {Path(str(run)).name}, {value} on val.\nProgram {program.digest}\n"
    )
    parent = ("-p", head) if head else ()
    identity = _identity(repo)
    commit = _git(repo, "commit-tree", tree, *parent, "-F", "-", env=identity, data=message.encode())
    _git(repo, "update-ref", f"refs/heads/{name}", commit, "")
    return {"candidate": chosen.id, "repository": str(repo), "branch": name, "commit": commit, "files": len(program)}


def _program(r: Reading, candidate: str) -> tuple[Candidate, Program]:
    chosen = r.candidate(candidate)
    if not chosen.program:
        raise NotFoundError(f"candidate {chosen.id} has no program: {chosen.reason}.", name=chosen.id)
    return chosen, r.store.program(chosen.program)


def _files_of(folder: Path, paths: set[str]) -> Program:
    if folder.is_file():
        return read_folder(folder)
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {str(folder)!r} to make the patch for.", name=str(folder))
    found = {}
    for path in paths:
        place = folder / path
        if place.is_file() and not place.is_symlink():
            found[path] = File(place.read_bytes(), os.access(place, os.X_OK))
    return Program(found)


def _identity(repo: Path) -> dict[str, str]:
    """The user's own identity where git knows one, else a plain one, so that a commit is always possible."""
    if _git(repo, "config", "user.email", check=False):
        return {}
    return {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "leadscrew"), ("EMAIL", "leadscrew@localhost"))
    }


def _git(
    repo: Path, *args: str, env: dict[str, str] | None = None, data: bytes | None = None, check: bool = True
) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(repo), *args],
            input=data if data is not None else b"",
            capture_output=True,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except FileNotFoundError:
        raise UsageError("--git needs the command `git`, which is not installed here.") from None
    if done.returncode != 0:
        if not check:
            return ""
        reason = done.stderr.decode("utf-8", "replace").strip() or f"git {args[0]} failed"
        raise UsageError(f"git in {str(repo)!r}: {reason}")
    return done.stdout.decode("utf-8", "replace").strip()
