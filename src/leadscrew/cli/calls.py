"""The command `calls`: the model calls of a run, and one of them in full."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from leadscrew.cli.output import money, print_fields, print_json, print_table
from leadscrew.errors import UsageError
from leadscrew.report import calls as view

_HEADS = (
    "number", "role", "plan", "candidate", "instance", "model", "source", "status", "in", "out", "paid", "attempts",
    "message",
)  # fmt: skip


def calls(args: argparse.Namespace) -> int:
    """The recorded model calls, or one whole request and reply."""
    if args.number is not None:
        if args.candidate or args.failed:
            raise UsageError("--number names one call; leave the candidate and --failed out.")
        _one(view.call(args.run, args.number), as_json=args.json)
        return 0
    rows = view.calls(args.run, args.candidate, failed=args.failed)
    if args.json:
        print_json(rows)
    elif not rows:
        print("no such model calls are recorded")
    else:
        print_table(_HEADS, [_cells(row) for row in rows])
    return 0


def _one(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    plan = "final test" if found["plan"] is None else found["plan"]
    print_fields(
        [
            ("call", f"{found['number']} of the role {found['role']} to {found['model']}"),
            ("for", f"plan {plan}, candidate {found['candidate'] or '-'}, instance {found['instance'] or '-'}"),
            ("status", f"{found['status']} ({found['source'] or 'no reply'})"),
            ("message", found["message"]),
            ("tokens, whoever paid", f"{found['tokens_in']} in, {found['tokens_out']} out"),
            ("figures", "" if found["usage"] in (None, "reported") else f"{found['usage']}: a bound was taken"),
            ("paid", money(found["micro_usd"])),
            ("attempts", f"{found['attempts']} ({found['uncertain']} may be billed without an answer)"),
            ("prompt", found["prompt"]),
            ("response", found["response"]),
            ("request", json.dumps(found["request_body"], ensure_ascii=False)),
            ("reply", json.dumps(found["reply_body"], ensure_ascii=False) if found["reply_body"] else ""),
        ]
    )


def _cells(row: Mapping[str, Any]) -> list[object]:
    plan = "final" if row["plan"] is None else row["plan"]
    names = [row[key] for key in ("candidate", "instance", "model", "source", "status", "tokens_in", "tokens_out")]
    return [row["number"], row["role"], plan, *names, money(row["micro_usd"]), row["attempts"], row["message"][:80]]
