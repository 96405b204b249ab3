"""Printing: JSON for programs, tables and plain lines for people, colours only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Print one JSON value, keys in the order given."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values in two columns; empty values are left out."""
    shown = [(name, text) for name, value in fields if (text := "" if value is None else str(value))]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        first, *rest = text.splitlines() or [""]
        print(f"{name:<{width}}  {first}")
        for line in rest:
            print(f"{'':<{width}}  {line}")


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: drawn on a terminal, aligned plain text elsewhere. Numbers stand to the right."""
    texts = [[_cell(value) for value in row] for row in rows]
    right = [
        bool(rows) and all(isinstance(row[i], (int, float)) or row[i] is None for row in rows)
        for i in range(len(heads))
    ]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for head, is_right in zip(heads, right, strict=True):
            table.add_column(head, justify="right" if is_right else "left", overflow="fold")
        for row in texts:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    widths = [max(len(line[i]) for line in [list(heads), *texts]) for i in range(len(heads))]
    for line in [list(heads), *texts]:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        print("  ".join(cells).rstrip())


def print_diff(text: str) -> None:
    """Print a unified diff, coloured on a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    colours = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
    for line in text.splitlines():
        colour = colours.get(line[:1], "")
        print(f"{colour}{line}\x1b[0m" if colour else line)


def number(value: object, digits: int = 4) -> str:
    """Write a number for people: integers whole, others to four digits after the point; '-' for none."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return str(value)


def money(micro_usd: int | None) -> str:
    """Write millionths of a US dollar for people; an unknown price in words, never as nothing.

    >>> money(1_234_500), money(0), money(None)
    ('$1.2345', '$0', 'unknown')
    """
    if micro_usd is None:
        return "unknown"
    return f"${micro_usd / 1e6:.4f}" if micro_usd else "$0"


def _cell(value: object) -> str:
    return number(value) if value is None or isinstance(value, float) else " ".join(str(value).split("\n"))
