"""Run attacks: each once with the defences up, and once with its defence off."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TextIO

from leadscrew.adapters.sandboxes import choose
from leadscrew.errors import NotFoundError
from leadscrew.ports import Sandbox
from leadscrew.testing.redteam.arena import new_arena
from leadscrew.testing.redteam.attack import Attack, Report, Row, Sighting

FAMILIES = (
    "lookups",
    "secrets",
    "protocol",
    "state",
    "resources",
    "survival",
    "network",
    "neighbours",
    "trees",
    "answers",
    "grading",
    "allowances",
    "identities",
    "keys",
    "caches",
    "leaks",
    "outages",
    "injections",
    "floods",
)
"""The files of this folder that hold attacks."""


def family(name: str) -> tuple[Attack, ...]:
    """Return the attacks of one file."""
    found: tuple[Attack, ...] = import_module(f"leadscrew.testing.redteam.{name}").ATTACKS
    return found


def attacks() -> tuple[Attack, ...]:
    """Return every attack, family by family."""
    return tuple(attack for name in FAMILIES for attack in family(name))


def select(only: Sequence[str], *, slow: bool = True) -> tuple[Attack, ...]:
    """Return the attacks whose name or family is in `only` (all if it is empty).

    Raises `NotFoundError` for a name that is neither.
    """
    known = attacks()
    names = {a.name for a in known} | {a.family for a in known}
    for name in only:
        if name not in names:
            families = ", ".join(dict.fromkeys(a.family for a in known))
            raise NotFoundError(
                f"there is no attack {name!r}; give a family ({families}) or a name such as {known[0].name!r}.",
                name=name,
            )
    chosen = [a for a in known if not only or a.name in only or a.family in only]
    return tuple(a for a in chosen if slow or not a.slow)


async def strike(attack: Attack, sandbox: Sandbox, *, defended: bool) -> Sighting:
    """Carry an attack out once. An error of the host is a breach: the attack broke what should have held it."""
    with new_arena(sandbox, defended=defended) as arena:
        try:
            return await attack.strike(arena)
        except Exception as error:
            # A hostile program must never be able to raise in its host. In a control only what it does to the naive
            # harness counts, not a failure of our own.
            counts = defended or isinstance(error, (ValueError, RecursionError))
            return Sighting(counts, f"the host failed: {type(error).__name__}: {error}"[:300])
        finally:
            await arena.close()


async def run_attack(attack: Attack, sandbox: Sandbox) -> Row:
    """Carry an attack out and its positive control, and return how it went."""
    start = time.monotonic()
    skipped = attack.obstacle()
    if skipped:
        return Row(attack.name, attack.family, attack.about, attack.defence, True, True, "", "", 0.0, skipped)
    attempt = await strike(attack, sandbox, defended=True)
    control = await strike(attack, sandbox, defended=False)
    seconds = round(time.monotonic() - start, 2)
    return Row(
        attack.name, attack.family, attack.about, attack.defence,
        not attempt.breached, control.breached, attempt.seen, control.seen, seconds,
    )  # fmt: skip


async def run_all(chosen: Sequence[Attack], told: Callable[[Row], None], at_once: int) -> tuple[tuple[Row, ...], str]:
    """Run attacks, `at_once` at a time; `told` gets each row as it ends. Raises `SandboxUnavailable` if no box can run."""
    sandbox = choose("auto")
    report = await asyncio.to_thread(sandbox.probe)
    free = asyncio.Semaphore(at_once)

    async def one(attack: Attack) -> Row:
        async with free:
            row = await run_attack(attack, sandbox)
        told(row)
        return row

    try:
        rows = await asyncio.gather(*(one(attack) for attack in chosen))
    finally:
        await sandbox.close()
    return tuple(rows), f"{report.name} {report.version}"


def run(
    out: TextIO | None = None,
    *,
    as_json: bool = False,
    only: Sequence[str] = (),
    slow: bool = True,
    at_once: int = 4,
    user: str = "",
) -> Report:
    """Try every hostile program against this machine's sandbox and return the report.

    With `out`, each attack is printed as it ends and a summary last, or with `as_json` the whole report as one object.
    `only` names attacks or families; `at_once` of them go at a time, since most wait most of the time. `user` has root
    attack as that ordinary user instead. Raises `SandboxUnavailable` where no sandbox can run, `NotFoundError` for an
    unknown name, and `UsageError` where that user cannot be had.
    """
    start = time.monotonic()
    chosen = select(only, slow=slow)

    def told(row: Row) -> None:
        if out is not None and not as_json:
            print(line(row), file=out, flush=True)

    if user:
        from leadscrew.testing.redteam.other_user import run_as

        report = run_as(user, only)
        for row in report.rows:
            told(row)
    else:
        rows, sandbox = asyncio.run(run_all(chosen, told, at_once))
        report = Report(rows, sandbox, pwd.getpwuid(os.geteuid()).pw_name, time.monotonic() - start)
    if out is not None:
        print(json.dumps(report.to_json(), indent=1) if as_json else summary(report), file=out, flush=True)
    return report


def line(row: Row) -> str:
    """Return a row as one line of text."""
    if row.skipped:
        return f"skipped    {row.name:32} {row.skipped}"
    state = "held      " if row.held else "BREACHED  "
    control = "" if row.controlled else "  NO CONTROL: with the defence off it did not succeed either"
    told = row.seen if not row.held else row.control_seen if not row.controlled else ""
    return f"{state} {row.name:32} {row.about}{control}" + (f"\n           {told}" if told else "")


def summary(report: Report) -> str:
    """Return the last line of a report: attempts, controls, breaches."""
    return (
        f"\n{report.attempts} attempts, {report.controls} controls, {report.breaches} breaches "
        f"as {report.user} in {report.sandbox}, {report.seconds:.0f} s"
    )
