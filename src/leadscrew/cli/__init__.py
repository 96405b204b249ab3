"""The command line: each command is a thin skin over one library call of the same name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leadscrew.errors import LeadscrewError

if TYPE_CHECKING:
    import argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or the `exit_code` of the error that ended it."""
    from leadscrew.cli.parser import build_parser

    parser = build_parser()
    args = parser.parse_args(argv)
    if args.handler is None:
        parser.print_help()
        return 2
    try:
        return _handler(args.handler)(args)
    except LeadscrewError as error:
        print(f"leadscrew: {_brief(str(error))}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("leadscrew: interrupted; everything that was finished is stored.", file=sys.stderr)
        return 130


def _brief(text: str) -> str:
    """A message without the tracebacks in it: what was raised last, and where it began."""
    head, mark, rest = text.partition("Traceback (most recent call last):")
    if not mark:
        return text
    import re

    frames = re.findall(r'^  File "([^"]+)", line (\d+)', rest.partition(mark)[0], re.MULTILINE)
    where = f" ({frames[-1][0]}, line {frames[-1][1]})" if frames else ""
    return f"{head.rstrip()} {rest.rstrip().splitlines()[-1].strip()}{where}"


def _handler(name: str) -> Callable[[argparse.Namespace], int]:
    from importlib import import_module

    module, _, function = name.partition(":")
    found: Callable[[argparse.Namespace], int] = getattr(import_module(f"leadscrew.cli.{module}"), function)
    return found
