"""The command models: what can be asked, and fetching the small one."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from leadscrew.cli.output import print_json
from leadscrew.errors import UsageError


def models(args: argparse.Namespace) -> int:
    """List models, or fetch one."""
    from leadscrew import models as library
    from leadscrew.config import load_config

    if args.what == "get":
        return _get(args)
    if args.model:
        raise UsageError(f"models {args.what} {args.model}: only `leadscrew models get NAME` takes a second word.")
    found = library.listing(load_config(args.what) if args.what else None)
    if args.json:
        print_json(found)
        return 0
    for role, model in found["roles"].items():
        print(f"{role}: {model}")
    if found["roles"]:
        print()
    width = max(len(row["name"]) for row in found["models"])
    for row in found["models"]:
        state = "ready" if row["usable"] else f"no: {row['why']}"
        print(f"{row['name']:<{width}}  {state}{_price(row)}")
    return 0


def _price(row: dict[str, Any]) -> str:
    if row["input_price"] is None:
        return "" if row["name"].endswith("/...") else "; price unknown"
    if not row["input_price"] and not row["output_price"]:
        return "; free"
    return f"; {row['input_price']:g} USD per million tokens in, {row['output_price']:g} out"


def _get(args: argparse.Namespace) -> int:
    from leadscrew import models as library

    name = args.model or "smollm2"
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // total if total else done >> 20
        if percent // 10 != shown:
            shown = percent // 10
            print(f"fetching {name}: {percent} {'%' if total else 'MiB'}", file=sys.stderr)

    file = library.get(name, progress=progress)
    print_json({"model": f"local/{name}", "file": str(file)}) if args.json else print(f"local/{name} is in {file}")
    return 0
