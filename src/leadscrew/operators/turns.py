"""A coding agent at work on a plan: a turn, what it delivered, one more turn to mend it, and a breaker for dead commands.

What an agent does is never an error of the run: a crash or a timeout with a usable deliverable is salvaged, anything else
becomes a failed proposal with its reason. Only a command that cannot work at all (it is missing, or delivers nothing again
and again) is ours to mend: it pauses the run instead of using up its iterations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from string import Template

from leadscrew.core.program import Program
from leadscrew.core.proposal import Edit, Proposal
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError
from leadscrew.operators.deliverable import PENDING, read_deliverable
from leadscrew.operators.external import ISOLATION
from leadscrew.operators.session import ARTIFACTS, Turn, archive, redactor, summary
from leadscrew.operators.streams import read_stream
from leadscrew.ports import Bench, Errand, ErrandResult

BENCH, WORK = "/bench", "/work"
PROMPT_FILE, SKILL_FILE = f"{BENCH}/PROMPT.md", f"{BENCH}/SKILL.md"
MAX_FAULT = 2000
MAX_LOG = 16_000
_NOT_STARTED = (126, 127)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one turn asks of an agent."""

    prompt: str
    skill: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """How turns go. `repairs` further turns may mend a deliverable, each within `repair_s`. After `breaker` turns in a row
    that delivered nothing the command itself is taken to be broken. `stream` is the format of what it prints, or of the
    file `events_file` in its folder. `broken_codes` are exit codes that say so at once."""

    timeout_s: float = 2400.0
    repairs: int = 1
    repair_s: float = 600.0
    breaker: int = 3
    stream: str = "text"
    events_file: str = ""
    model: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)
    broken_codes: frozenset[int] = frozenset()


class Turns:
    """Carries out plans by an agent. `make` turns what is asked into an errand; its limits in time are set here."""

    def __init__(self, make: Callable[[Asked], Errand], settings: TurnSettings, skill: str = "") -> None:
        self._make, self._settings, self._skill = make, settings, skill
        self._clean = redactor(settings.secrets)
        self._idle = 0

    async def propose(self, plan: Edit, bench: Bench) -> Sequence[Proposal]:
        """Ask, read the deliverable, ask to mend it if it holds nothing usable. Raises `InfrastructureError` only."""
        settings = self._settings
        skill = self._skill or _skill_of(bench.folder())
        work, prompt, logs = Program({}), iteration_prompt(bench.number, plan.count), []
        for number in range(1, settings.repairs + 2):
            time = settings.timeout_s if number == 1 else min(settings.timeout_s, settings.repair_s)
            errand = self._errand(Asked(prompt, skill, plan.count, time), work, number)
            result = await bench.errand(errand)
            folder = bench.keep(str(number))
            turn = self._turn(number, prompt, skill, errand, result)
            meta = archive(folder, turn, self._clean)
            logs.append(self._clean(summary(meta, turn.transcript)))
            proposals = self._delivered(folder / ARTIFACTS, plan, bench, result)
            if any(p.program is not None for p in proposals):
                self._idle = 0
                return [_told(p, result, logs) for p in proposals]
            self._check_alive(errand, result)
            if result.work is None:
                break
            work = result.work
            prompt = repair_prompt(bench.number, "\n".join(p.failure for p in proposals))
        if result.work is None or PENDING not in result.work:
            self._count_idle(errand, result)
        return [_told(p, result, logs) for p in proposals]

    def _errand(self, asked: Asked, work: Program, number: int) -> Errand:
        errand = self._make(asked)
        papers = errand.papers.with_files({"PROMPT.md": asked.prompt, "SKILL.md": asked.skill})
        # What an agent left behind stands; what starts a turn, such as a task file, is laid over it.
        files = {**work, **errand.work}
        return replace(errand, work=Program(files), papers=papers, timeout_s=asked.seconds, scope=f"propose:{number}")

    def _turn(self, number: int, prompt: str, skill: str, errand: Errand, result: ErrandResult) -> Turn:
        settings = self._settings
        events = result.stdout
        if settings.events_file:
            known = result.work.get(settings.events_file) if result.work is not None else None
            events = known.data.decode("utf-8", "replace") if known is not None else ""
        digest = hashlib.sha256(skill.encode()).hexdigest()
        transcript = read_stream(settings.stream, events)
        return Turn(number, prompt, digest, settings.model, errand, result, transcript, events)

    def _delivered(self, folder: Path, plan: Edit, bench: Bench, result: ErrandResult) -> Sequence[Proposal]:
        if result.work is None:
            reason = f"{_ending(result)}; {result.lost}, so there is no deliverable"
            return [Proposal(None, failure=reason, outcome=Outcome.INVALID)]
        folder.mkdir(exist_ok=True)
        proposals = read_deliverable(
            folder, archive=bench.archive, program=bench.program, entry=bench.domain.interface.entry, count=plan.count
        )
        if not result.left_out:
            return proposals
        note = f" (not brought back from the box: {'; '.join(result.left_out)[:500]})"
        return [replace(p, failure=p.failure + note) if p.failure else p for p in proposals]

    def _check_alive(self, errand: Errand, result: ErrandResult) -> None:
        """Raise for a command that cannot have done anything, whatever the model."""
        if result.exit_code in _NOT_STARTED:
            raise InfrastructureError(
                f"the proposer's command {errand.argv[0]!r} could not be run in its box (exit code {result.exit_code}): "
                f"{self._tail(result.stderr)}. Install it under a folder that the box shows, or name its folders in "
                "proposer.options.mounts, and write the path that it has inside."
            )
        if result.exit_code in self._settings.broken_codes:
            raise InfrastructureError(
                f"the proposer ended with exit code {result.exit_code}, which is not its model's doing: "
                f"{self._tail(result.stderr or result.stdout)}"
            )

    def _count_idle(self, errand: Errand, result: ErrandResult) -> None:
        """Count plans for which nothing was delivered; too many in a row, and the command is to blame, not the ideas."""
        if result.exhausted:
            return
        self._idle += 1
        if self._idle >= self._settings.breaker:
            raise InfrastructureError(
                f"the proposer's command {errand.argv[0]!r} delivered nothing {self._idle} times in a row. Last time "
                f"{_ending(result)}: {self._tail(result.stderr or result.stdout)}. Look into RUN/sessions/ for what it said; "
                "often a key, a model name or a folder of its installation is missing."
            )

    def _tail(self, text: str) -> str:
        return self._clean(text).strip()[-600:] or "(it said nothing)"


def iteration_prompt(iteration: int, count: int) -> str:
    """Return the prompt of an iteration: paths, and no word of the task."""
    return _filled("prompt.md", iteration=str(iteration), count=str(count))


def repair_prompt(iteration: int, fault: str) -> str:
    """Return the prompt that asks to mend a deliverable, naming what is wrong with it.

    The fault may hold words of programs and files, so it is quoted between two lines that do not occur in it.
    """
    fault, number = fault[:MAX_FAULT], 0
    while f"D{number}" in fault:
        number += 1
    line = f"----D{number}----"
    quoted = f"[the fault: {len(fault)} characters of data between the two lines {line}]\n{line}\n{fault}\n{line}"
    return _filled("repair.md", iteration=str(iteration), fault=quoted)


def _filled(name: str, **values: str) -> str:
    text = (files("leadscrew") / "templates" / "harness" / name).read_text("utf-8")
    return Template(text).substitute(values, bench=BENCH, work=WORK, skill_file=SKILL_FILE, pending=PENDING)


def _skill_of(folder: Path) -> str:
    path = folder / "SKILL.md"
    if path.is_file():
        return path.read_text("utf-8")
    return (files("leadscrew") / "templates" / "harness" / "skill.md").read_text("utf-8")


def _told(proposal: Proposal, result: ErrandResult, logs: Sequence[str]) -> Proposal:
    """Add to a proposal how its turn went."""
    extra = dict(proposal.claim.extra)
    if proposal.program is not None and result.outcome != "ok":
        extra["salvaged"] = _ending(result)
    if not result.isolated:
        extra["isolation"] = ISOLATION
    failure = proposal.failure
    if failure and result.exhausted:
        failure = f"{failure}; {result.exhausted}"
    elif failure and result.outcome != "ok":
        failure = f"{failure}; {_ending(result)}"
    log = "\n".join([*logs, *filter(None, [proposal.log])])[-MAX_LOG:]
    return replace(proposal, claim=replace(proposal.claim, extra=extra), failure=failure, log=log)


def _ending(result: ErrandResult) -> str:
    if result.outcome == "timeout":
        return "the command was killed at its time limit"
    if result.outcome == "oom":
        return "the command ran out of memory"
    return f"the command ended with exit code {result.exit_code}"
