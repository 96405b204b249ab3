"""The host's side of a box, against workers that do not keep to the protocol. They are real processes, without a sandbox."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from leadscrew.adapters.executors import LocalExecutor, boxes
from leadscrew.adapters.sandboxes.limits import Watchdog
from leadscrew.adapters.sandboxes.process import ProcessBox
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError, SandboxUnavailable
from leadscrew.ports import BoxReply, BoxSpec, SandboxReport
from leadscrew.testing.doors import FakeGateway
from leadscrew.testing.executor import GOOD, job
from leadscrew.testing.executor_models import asking

HEAD = """
import json, os, sys, time
def say(request, **more):
    sys.stdout.write(json.dumps({"id": request["id"], "nonce": request["nonce"], **more}) + "\\n")
    sys.stdout.flush()
END = dict(stdout="", stderr="", calls=[], cpu_ms=1, wall_ms=2)
def raw(text):
    sys.stdout.write(text)
    sys.stdout.flush()
for line in sys.stdin:
    r = json.loads(line)
    if r["op"] == "hello":
        say(r, hello=1)
    elif r["op"] == "load":
        say(r, loaded=True, outcome="ok", message="", zygote=0, pipes=[], **END)
    else:
"""


class ScriptBox(ProcessBox):
    blame: Outcome | None = None
    killed = False

    def breach(self) -> Outcome | None:
        return self.blame

    async def kill(self) -> None:
        await super().kill()
        self.killed = True


class ScriptSandbox:
    """Runs a script in place of the guest worker."""

    name = "script"

    def __init__(self, script: str, breach: Outcome | None = None) -> None:
        self.script, self.breach = script, breach
        self.opened: list[ScriptBox] = []

    def probe(self) -> SandboxReport:
        return SandboxReport(self.name, "", {}, isolated=False)

    async def open(self, spec: BoxSpec) -> ScriptBox:
        argv = [sys.executable, "-S", "-c", self.script]
        box = await ScriptBox.start(argv, spec.limits, Watchdog(spec.limits), env={})
        assert isinstance(box, ScriptBox)
        box.blame = self.breach
        self.opened.append(box)
        return box

    async def close(self) -> None:
        for box in self.opened:
            await box.kill()


async def replies(sandbox: ScriptSandbox, limits: Limits | None = None, count: int = 2) -> list[BoxReply]:
    executor = LocalExecutor(sandbox, 1, spares=0)
    made = job(GOOD, range(count))
    made = replace(made, limits=limits or made.limits)
    try:
        return [reply async for reply in executor.run(made)]
    finally:
        await executor.close()
        assert all(box.killed for box in sandbox.opened)


def trial(code: str) -> str:
    return HEAD + "".join(f"        {line}\n" for line in code.strip().split("\n"))


async def test_lines_without_the_nonce_are_dropped() -> None:
    script = trial("""
for number in (r["id"], 0, None):
    for nonce in ("", "0" * 32, None, 5):
        raw(json.dumps({"id": number, "nonce": nonce, "done": True, "outcome": "ok", "raw": "666", **END}) + "\\n")
raw("no json\\n[1]\\n\\n" + "[" * 100000 + "\\n" + '{"id":' + "\\n")
say(r, done=True, outcome="ok", raw="7", **END)
""")
    assert [r.answer.value for r in await replies(ScriptSandbox(script))] == [7, 7]


@pytest.mark.parametrize("block", ["'x' * 65536", "'{}\\n' * 20000"], ids=["one endless line", "endless lines"])
async def test_a_flood_ends_the_box_and_is_the_programs_fault(block: str) -> None:
    sandbox = ScriptSandbox(trial(f"while True: raw({block})"))
    small = Limits(answer_kb=1, output_kb=1, workspace_mb=1, wall_s=60)
    assert [r.outcome for r in await replies(sandbox, small, count=1)] == [Outcome.BAD_OUTPUT]


@pytest.mark.parametrize(
    "answer", ["NaN", "[1e999]", "9" * 5000, "[" * 5000 + "]" * 5000, '"\\ud800"', "{", ""], ids=lambda a: a[:9]
)
async def test_answers_are_checked_again_on_the_host(answer: str) -> None:
    script = trial(f"say(r, done=True, outcome='ok', raw={answer!r}, **END)")
    assert {r.outcome for r in await replies(ScriptSandbox(script))} == {Outcome.BAD_OUTPUT}


async def test_a_box_cannot_claim_that_we_failed_or_that_it_cheated() -> None:
    script = trial("say(r, done=True, outcome='infra' if r['input'] else 'cheated', message='', **END)")
    assert {r.outcome for r in await replies(ScriptSandbox(script))} == {Outcome.BAD_OUTPUT}


async def test_a_box_that_dies_fails_its_trial_only() -> None:
    script = trial("os._exit(9) if r['input'] == 0 else say(r, done=True, outcome='ok', raw='7', **END)")
    first, second, third = await replies(ScriptSandbox(script), count=3)
    assert first.outcome is Outcome.CRASH
    assert "exit code 9" in first.message
    assert [second.answer.value, third.answer.value] == [7, 7]


async def test_the_sandbox_says_why_a_box_died() -> None:
    script = trial("os._exit(9)")
    assert [r.outcome for r in await replies(ScriptSandbox(script, Outcome.OOM), count=1)] == [Outcome.OOM]
    assert [r.outcome for r in await replies(ScriptSandbox(script, Outcome.TIMEOUT), count=1)] == [Outcome.TIMEOUT]


@pytest.mark.parametrize("code", ["time.sleep(60)", "raw('x'); time.sleep(60)", "os.close(0); time.sleep(60)"])
async def test_a_box_that_falls_silent_is_given_up(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "GRACE_S", 0.1)
    (reply,) = await replies(ScriptSandbox(trial(code)), Limits(wall_s=0.1), count=1)
    assert reply.outcome is Outcome.TIMEOUT
    assert reply.spend.trials == 1


LOADED = 'say(r, loaded=True, outcome="ok", message="", zygote=0, pipes=[], **END)'


@pytest.mark.parametrize(
    ("loading", "code", "says"),
    [
        (LOADED, "time.sleep(60)", "within the wall time"),
        ("time.sleep(60)", "pass", "while loading"),
        ("say(r, next=7)", "pass", "item that is none"),
    ],
    ids=["silent in a trial", "silent while loading", "an item that is none"],
)
async def test_a_box_with_a_door_that_does_not_keep_to_the_protocol_is_given_up(
    loading: str, code: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host keeps the clock of such boxes; a worker that does not obey its stop is ended with the box."""
    monkeypatch.setattr(boxes, "GRACE_S", 0.1)
    assert LOADED in HEAD
    gateway = FakeGateway()
    sandbox = ScriptSandbox(trial(code).replace(LOADED, loading))
    executor = LocalExecutor(sandbox, 1, spares=0, gateway=gateway)
    try:
        made = asking(GOOD, [1], limits=Limits(wall_s=0.1, load_s=0.1 if "sleep" in loading else 60))
        (reply,) = [reply async for reply in executor.run(made)]
    finally:
        await executor.close()
    assert reply.outcome in (Outcome.TIMEOUT, Outcome.CRASH)
    assert says in reply.message
    assert not gateway.doors
    assert all(box.killed for box in sandbox.opened)


async def test_a_box_that_cannot_start_is_our_failure() -> None:
    sandbox = ScriptSandbox("import sys; sys.exit('no namespaces for you')")
    found = await replies(sandbox)
    assert [r.outcome for r in found] == [Outcome.INFRA] * 2
    assert "no namespaces for you" in found[0].message
    assert found[0].spend.trials == 0


@pytest.mark.parametrize("error", [InfrastructureError("no more"), SandboxUnavailable("no more"), OSError("no more")])
async def test_a_sandbox_that_fails_is_our_failure(error: Exception) -> None:
    class Broken(ScriptSandbox):
        async def open(self, spec: BoxSpec) -> ScriptBox:
            raise error

    found = await replies(Broken(""))
    assert [r.outcome for r in found] == [Outcome.INFRA] * 2
    assert "no more" in found[0].message


async def test_a_failing_environment_is_our_failure() -> None:
    from leadscrew.core.task import Interface

    async def steps(key: str, action: object) -> tuple[object, bool]:
        raise InfrastructureError("the environment is gone")

    executor = LocalExecutor(ScriptSandbox(trial("pass")), 1, spares=0)
    try:
        made = job(GOOD, interface=Interface("act"))
        assert {r.outcome async for r in executor.run(made, steps)} == {Outcome.INFRA}
    finally:
        await executor.close()


async def test_workers_must_be_one_or_more() -> None:
    with pytest.raises(ValueError, match="write 1 or more"):
        LocalExecutor(ScriptSandbox(""), 0)
