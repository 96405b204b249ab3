"""Live progress: a small panel on a terminal, one plain line per plan elsewhere. Always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TextIO

from leadscrew.core.archive import Archive
from leadscrew.core.budget import Spend
from leadscrew.core.proposal import Candidate, Edit
from leadscrew.core.trial import Trial
from leadscrew.engine.meter import Meter
from leadscrew.plugins import load_method
from leadscrew.ports import Event, Observer
from leadscrew.report.estimate import plans_of
from leadscrew.report.numbers import spread


class Progress:
    """What has happened so far, kept up to date by events. It changes nothing.

    `total` is the number of plans that the method may ask for, where that is known.
    """

    def __init__(self, *, total: int | None = None, caps: Mapping[str, float] | None = None) -> None:
        self.total, self.caps = total, dict(caps or {})
        self.trials = self.failed_trials = self.candidates = self.failed = self.plans = self.infra = 0
        self.best: Candidate | None = None
        self.start: Candidate | None = None
        self.phase = "starting"
        self.last = ""
        self._told: set[tuple[str, str]] = set()
        self._meter: Meter | None = None
        self._before: Mapping[str, float | None] | None = None
        self._plans_here = 0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Running time of the run over all its sittings, in seconds; of this sitting while no meter is known."""
        return self._meter.seconds if self._meter is not None else time.monotonic() - self._began

    @property
    def spent_trials(self) -> int:
        """Trials that were run, over all sittings."""
        return self._meter.run.spent.trials if self._meter is not None else self.trials

    def take(self, event: Event) -> None:
        """Take in one event."""
        data = event.data
        if event.kind == "trial":
            trial: Trial = data["trial"]
            self.trials += 1
            self.failed_trials += trial.outcome != "ok"
        elif event.kind == "candidate":
            self._candidate(data["candidate"])
        elif event.kind == "verdict":
            self.phase = "searching"
            self._told.clear()
            self._plans_here += 1
            archive: Archive | None = data.get("archive")
            if archive is not None:
                self.plans = archive.plans_applied
                if self.total is not None:
                    self.total = max(self.total, self.plans)  # submissions come on top of what the method asks for
                self.best = archive.champion
                if self.start is None:
                    self.start = archive.champion
        elif event.kind == "plan":
            plan = data.get("plan")
            if isinstance(plan, Edit) and plan.operator == "external":
                self.last = f"plan {data['number']} waits for a submission: `leadscrew propose` prints its bench"
        elif event.kind == "infra":
            self._infra(data)
        elif event.kind == "note":
            self.last = f"note: {data.get('text', '')}"
        elif event.kind == "final":
            self.phase = str(data.get("state", "testing"))
        elif event.kind == "run":
            self._run(data)
        elif event.kind == "done":
            self.phase = "done"

    def _infra(self, data: Mapping[str, Any]) -> None:
        """A failure of ours: of one model call, told once for each cause; or of a plan, which counts."""
        message, role = str(data.get("message", "")), str(data.get("role", ""))
        if "in_a_row" not in data:
            self.last = "" if (role, message) in self._told else f"a model call of the role {role} failed: {message}"
            self._told.add((role, message))
            return
        self.infra += 1
        if any(told and told in message for _, told in self._told):
            message = f"a model did not answer; {data['in_a_row']} failures in a row"
        self.last = f"our own parts failed (no candidate is blamed): {message}"

    def _run(self, data: Mapping[str, Any]) -> None:
        self._meter = data.get("meter")
        if self._meter is not None:
            self._before = _amounts(self._meter.run.spent)
            self.caps = {name: cap for name, cap in asdict(self._meter.run.caps).items() if cap is not None}
        if data.get("config") is not None:
            self.total = plans_of(load_method(data["config"]))

    def _candidate(self, candidate: Candidate) -> None:
        self.candidates += 1
        if candidate.status == "failed":
            self.failed += 1
            self.last = f"{candidate.id} failed ({candidate.outcome}): {candidate.reason}"

    # -- words ---------------------------------------------------------------------------------

    def headline(self) -> str:
        """The best so far with its interval, and what it began with."""
        if self.best is None or self.best.value is None:
            return "no program could be evaluated yet"
        text = f"best {self.best.id} {self.best.value:.4f}{_interval(self.best)}"
        if self.start is not None and self.start.value is not None and self.start.id != self.best.id:
            text += f", began with {self.start.value:.4f}"
        return text

    def spend(self) -> str:
        """Trials, time and model calls used, against their caps."""
        trials = (
            f"{self.trials} of {self.caps['trials']:g} trials" if "trials" in self.caps else f"{self.trials} trials"
        )
        seconds = f"{self.seconds:.0f}"
        clock = f"{seconds} of {self.caps['seconds']:g} s" if "seconds" in self.caps else f"{seconds} s"
        return ", ".join([trials, clock, *self._model_spend()])

    def _model_spend(self) -> list[str]:
        """Calls, tokens and money paid so far by all sittings, against the caps of the run; nothing without a call."""
        spent = self._meter.run.spent if self._meter is not None else None
        if spent is None or not spent.calls:
            return []
        tokens = spent.tokens_in + spent.tokens_out
        usd = "cost unknown" if spent.micro_usd is None else f"${spent.micro_usd / 1e6:.4g}"
        return [
            f"{spent.calls}{self._of('calls')} calls",
            f"{tokens}{self._of('tokens')} tokens",
            *([f"{usd}{self._of('usd', '$')}"] if spent.micro_usd != 0 or "usd" in self.caps else []),
        ]

    def _of(self, name: str, sign: str = "") -> str:
        return f" of {sign}{self.caps[name]:.10g}" if name in self.caps else ""

    def left(self) -> str:
        """The time left: by the pace so far, cut by the cap in seconds; empty while nothing can be said."""
        here = time.monotonic() - self._began
        caps = []
        if "seconds" in self.caps:
            caps.append(max(0.0, self.caps["seconds"] - self.seconds))
        if "trials" in self.caps and self.trials:
            caps.append(here / self.trials * max(0.0, self.caps["trials"] - self.spent_trials))
        caps += self._until_model_caps(here)
        if self.total and self._plans_here > 1:
            return f"about {min([here / self._plans_here * max(0, self.total - self.plans), *caps]):.0f} s left"
        return f"at most {min(caps):.0f} s left" if caps else ""

    def _until_model_caps(self, here: float) -> list[float]:
        """Seconds until the caps on calls, tokens and money, at the pace of this sitting."""
        if self._meter is None or self._before is None:
            return []
        now, out = _amounts(self._meter.run.spent), []
        for name, cap in self.caps.items():
            used, before = now.get(name), self._before.get(name)
            if used is not None and before is not None and used > before:
                out.append(here / (used - before) * max(0.0, cap - used))
        return out

    def plan_count(self) -> str:
        """Plans judged, of how many."""
        return f"{self.plans} of {self.total} plans" if self.total else f"{self.plans} plans"


def _amounts(spent: Spend) -> dict[str, float | None]:
    money = None if spent.micro_usd is None else spent.micro_usd / 1e6
    return {"calls": spent.calls, "tokens": spent.tokens_in + spent.tokens_out, "usd": money}


def _interval(candidate: Candidate) -> str:
    bounds = spread(candidate.evaluations.get("val"))
    return f" ({bounds[0]:.4f} to {bounds[1]:.4f})" if bounds else ""


@contextmanager
def watch(*, stream: TextIO | None = None, quiet: bool = False) -> Iterator[Observer]:
    """Return an observer that shows progress on `stream` (standard error) while the block runs."""
    out = stream or sys.stderr
    progress = Progress()
    if quiet:
        yield progress.take
    elif out.isatty():
        with _panel(progress, out) as observer:
            yield observer
    else:
        yield _lines(progress, out)


def _lines(progress: Progress, out: TextIO) -> Observer:
    def observe(event: Event) -> None:
        progress.take(event)
        if event.kind == "verdict":
            parts = [progress.plan_count(), progress.headline(), progress.spend(), progress.left()]
            print(", ".join(p for p in parts if p), file=out, flush=True)
        elif event.kind in ("infra", "note") or (event.kind == "plan" and "waits" in progress.last):
            if progress.last:
                print(progress.last, file=out, flush=True)
            progress.last = ""
        elif event.kind == "final" and event.data.get("state") == "tested":
            print(f"tested {event.data.get('candidate')}: {event.data.get('value')}", file=out, flush=True)

    return observe


@contextmanager
def _panel(progress: Progress, out: TextIO) -> Iterator[Observer]:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def view() -> Group:
        bar = ProgressBar(total=progress.total or 1, completed=progress.plans, width=40, pulse=not progress.total)
        count = Text(
            f"{progress.phase}: {progress.plan_count()}, {progress.candidates} candidates ({progress.failed} failed)"
        )
        row = Table.grid()  # a bar alone would not end its line
        row.add_row(bar)
        lines: list[RenderableType] = [
            count,
            row,
            Text(progress.headline(), style="bold"),
            Text(f"{progress.spend()}  {progress.left()}"),
        ]
        return Group(*lines, Text(progress.last[:200], style="dim")) if progress.last else Group(*lines)

    # The display asks for the view on its own clock: a thousand trials a second cost no more than one.
    with Live(get_renderable=view, console=Console(file=out), refresh_per_second=8, transient=False):
        yield progress.take
