"""Progress from events: one plain line per plan, a panel on a terminal, and nothing but reading."""

from __future__ import annotations

import io
from array import array
from dataclasses import replace
from typing import Any

from leadscrew.core.archive import Archive
from leadscrew.core.budget import Caps, Spend
from leadscrew.core.proposal import Candidate, Edit, Verdict
from leadscrew.core.task import Aggregate, Objective
from leadscrew.core.trial import Evaluation, Outcome, Purpose, Trial
from leadscrew.engine.meter import Meter
from leadscrew.ports import Event
from leadscrew.report.live import Progress, watch


def candidate(name: str, value: float) -> Candidate:
    """A candidate with four val instances."""
    values = array("d", [value, value, value + 0.1, value - 0.1])
    val = Evaluation(name, "val", 0, 4, ("a", "b", "c", "d"), values, Aggregate(value, {}, {}))
    plan, _, index = name.partition(".")
    return Candidate(
        name, int(plan), int(index), name, "", "genetic", "evaluated", Outcome.OK, evaluations={"val": val}
    )


def events() -> list[Event]:
    """What a run of two plans tells."""
    archive = Archive((Objective("score"),))
    trial = Trial("k", "p", "a", "val", "main", 0, Purpose.SEARCH, Outcome.OK, score=1.0)
    out = [Event("plan", {"number": 0, "plan": Edit("found"), "origin": "method"})]
    for made in (candidate("0.0", 0.5), candidate("1.0", 0.625)):
        archive.add(made)
        archive.judge(Verdict(made.id, "promoted", "", champion=True))
        archive.plan_applied()
        out += [Event("trial", {"trial": replace(trial, key=f"{made.id}{n}")}) for n in range(4)]
        out.append(Event("candidate", {"candidate": made, "verdict": None}))
        out.append(Event("verdict", {"plan": made.plan, "judgement": None, "archive": archive.snapshot()}))
    failed = Candidate("2.0", 2, 0, "", "", "genetic", "failed", Outcome.CRASH, "boom")
    out.append(Event("candidate", {"candidate": failed, "verdict": None}))
    out.append(Event("infra", {"message": "disk full", "in_a_row": 1}))
    out.append(Event("done", {"stopped": ""}))
    return out


def test_progress_counts_and_names_the_best() -> None:
    progress = Progress(total=4, caps={"trials": 20})
    for event in events():
        progress.take(event)
    assert (progress.plans, progress.trials, progress.candidates, progress.failed, progress.infra) == (2, 8, 3, 1, 1)
    assert progress.headline().startswith("best 1.0 0.6250 (0.")
    assert progress.headline().endswith(", began with 0.5000")
    assert progress.spend().startswith("8 of 20 trials, ")
    assert progress.left().startswith("about ")
    assert progress.plan_count() == "2 of 4 plans"
    assert progress.phase == "done"


def test_plain_lines_one_per_plan() -> None:
    stream = io.StringIO()
    with watch(stream=stream) as observe:
        for event in events():
            observe(event)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("1 plans, best 0.0 0.5000")
    assert lines[1].startswith("2 plans, best 1.0 0.6250")
    assert "disk full" in lines[2]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_panel_on_a_terminal(monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with watch(stream=stream) as observe:
        for event in events():
            observe(event)
    text = stream.getvalue()
    assert "best 1.0 0.6250" in text
    assert "3 candidates (1 failed)" in text
    assert "disk full" in text


def test_an_unknown_event_changes_nothing() -> None:
    progress = Progress()
    progress.take(Event("something", {"else": 1}))
    assert progress.headline() == "no program could be evaluated yet"
    assert progress.left() == ""


def failure(message: str, **more: Any) -> Event:
    """A failed model call; with `in_a_row` a failed plan."""
    return Event("infra", {"message": message, **({"role": "solver"} if not more else {}), **more})


def test_a_failed_call_is_told_once_and_is_no_failure_of_the_run() -> None:
    stream = io.StringIO()
    with watch(stream=stream) as observe:
        for _ in range(5):
            observe(failure("503: overloaded"))
        observe(failure("1 trials could not be run: 503: overloaded", in_a_row=1))
        observe(failure("another"))
    assert stream.getvalue().splitlines() == [
        "a model call of the role solver failed: 503: overloaded",
        "our own parts failed (no candidate is blamed): a model did not answer; 1 failures in a row",
        "a model call of the role solver failed: another",
    ]
    progress = Progress()
    progress.take(failure("503: overloaded"))
    assert progress.infra == 0
    progress.take(failure("disk full", in_a_row=1))
    assert (progress.infra, progress.last) == (1, "our own parts failed (no candidate is blamed): disk full")


def test_calls_tokens_and_money_stand_against_their_caps() -> None:
    clock = iter([0.0, *[10.0] * 20])
    meter = Meter(Caps(calls=100, tokens=2_000_000, usd=1.0), clock=lambda: next(clock))
    progress = Progress()
    progress.take(Event("run", {"meter": meter}))
    assert "calls" not in progress.spend()
    meter.run.spent = Spend(calls=7, tokens_in=900, tokens_out=100, micro_usd=250_000)
    assert progress.spend().endswith("7 of 100 calls, 1000 of 2000000 tokens, $0.25 of $1")
    assert progress.left().startswith("at most ")
    meter.run.spent = Spend(calls=7, micro_usd=None)
    assert progress.spend().endswith("cost unknown of $1")
