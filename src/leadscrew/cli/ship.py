"""Commands that take results out or check things: export, verify, doctor, redteam."""

from __future__ import annotations

import argparse
from pathlib import Path

from leadscrew.cli.output import print_fields, print_json
from leadscrew.errors import UsageError


def export(args: argparse.Namespace) -> int:
    """Write a program as a folder, a git branch or a patch."""
    from leadscrew.report import export as exporting
    from leadscrew.report.reading import run_folder

    folder = run_folder(args.run)
    chosen = [bool(args.folder), bool(args.git), args.patch]
    if sum(chosen) != 1:
        raise UsageError("say where to: a FOLDER, or --git REPO, or --patch; exactly one of them.")
    if args.patch:
        patch = exporting.patch(folder, args.candidate, against=args.against)
        print_json({"patch": patch}) if args.json else print(patch, end="")
        return 0
    if args.git:
        said = exporting.to_git(folder, args.git, branch=args.branch, candidate=args.candidate)
        text = f"{said['candidate']} is commit {said['commit'][:12]} on branch {said['branch']} of {args.git}"
    else:
        said = exporting.to_folder(folder, args.folder, candidate=args.candidate)
        text = f"{said['candidate']} is in {said['folder']} ({said['files']} files)"
    print_json(said) if args.json else print(text)
    return 0


def verify(args: argparse.Namespace) -> int:
    """Re-check chain, rows and blobs."""
    from leadscrew import runs
    from leadscrew.report.reading import run_folder

    found = runs.verify(run_folder(args.run))
    if args.json:
        print_json(found)
    else:
        print_fields([("verified", "every link, row and blob is as it was written"), *found.items()])
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Say what works on this machine; 1 if no sandbox does."""
    from leadscrew import runs

    found = runs.doctor()
    if args.json:
        print_json(found)
    else:
        print_fields([(key, _flat(value)) for key, value in found.items()])
    return 0 if found.get("ok", True) else 1


def redteam(args: argparse.Namespace) -> int:
    """Attack the sandbox; 1 if a breach or a failed control is found."""
    import sys

    from leadscrew.testing import redteam as attacks

    return 0 if attacks.run(sys.stdout, as_json=args.json, only=tuple(args.only), user=args.user).passed else 1


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "\n".join(str(item) for item in value)
    return str(Path(value)) if isinstance(value, Path) else str(value)
