"""Commands that speak to a run: stop, note, approve, propose, submit."""

from __future__ import annotations

import argparse

from leadscrew import control
from leadscrew.cli.output import print_json
from leadscrew.report.reading import run_folder


def stop(args: argparse.Namespace) -> int:
    """Ask a run to stop."""
    return _said(control.stop(run_folder(args.run)), args)


def note(args: argparse.Namespace) -> int:
    """Leave a note for the proposers."""
    return _said(control.note(run_folder(args.run), args.text), args)


def approve(args: argparse.Namespace) -> int:
    """Approve or turn down a held candidate."""
    decide = control.reject if args.reject else control.approve
    return _said(decide(run_folder(args.run), args.candidate, reason=args.reason), args)


def propose(args: argparse.Namespace) -> int:
    """Lay out a bench and print where it is."""
    bench = control.propose(run_folder(args.run))
    if args.json:
        print_json(bench)
    else:
        print(bench["folder"])
    return 0


def submit(args: argparse.Namespace) -> int:
    """Hand in a folder."""
    said = control.submit(run_folder(args.run), args.folder, base=args.base, name=args.name, hypothesis=args.hypothesis)
    return _said(said, args)


def _said(said: dict[str, object], args: argparse.Namespace) -> int:
    if args.json:
        print_json(said)
    else:
        print(said["text"])
    return 0
