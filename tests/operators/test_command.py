"""The command proposer: templates, presets, turns in the real box, salvage, repair, the breaker, and what is archived."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.config import config_from
from leadscrew.core.proposal import Proposal
from leadscrew.errors import ConfigError, InfrastructureError, SandboxUnavailable
from leadscrew.operators.coder import CoderProposer
from leadscrew.operators.command import CommandProposer, load_preset, presets
from leadscrew.operators.turns import Asked, iteration_prompt, repair_prompt
from leadscrew.plugins import load_proposer
from support.agents import GOOD, agent
from support.benches import Laboratory

ASKED = Asked("PROMPT", 'SKILL "quoted" {braces}', 2, 2400.0)


@pytest.fixture
async def laboratory(tmp_path: Path) -> AsyncIterator[Laboratory]:
    sandbox = BubblewrapSandbox()
    try:
        sandbox.probe()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    made = await Laboratory(tmp_path / "run", sandbox).begin()
    yield made
    await made.close()


def proposer(source: str, **more: Any) -> CommandProposer:
    options = {"repair": 0, "timeout_s": 60, **more}
    return CommandProposer(["python3", "/tools/agent.py", "{prompt}"], files={"agent.py": source}, **options)


async def propose(laboratory: Laboratory, made: Any, number: int = 2) -> Sequence[Proposal]:
    bench = laboratory.bench(number)
    return await made.propose(bench.plan, bench)


def meta_of(laboratory: Laboratory, turn: str = "2-1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((laboratory.folder / "sessions" / turn / "meta.json").read_text())
    return found


# -- templates -------------------------------------------------------------------------------------


def test_the_prompts_carry_paths_and_nothing_of_the_task() -> None:
    assert iteration_prompt(7, 3) == (
        "This is iteration 7 of a search. It asks for 3 new candidates.\n\n"
        "Do what /bench/SKILL.md says. These are all the places you need:\n\n"
        "- what was tried and how it went: /bench/history/\n"
        "- programs to start from: /bench/programs/\n"
        "- facts of this iteration, and notes of the people who run the search: /bench/prompt.json\n"
        "- your own folder: /work\n"
        "- what to deliver: /work/pending_eval.json and the files it names\n"
    )
    assert "no list" in repair_prompt(7, "no list")
    assert len(repair_prompt(7, "x" * 100_000)) < 3000


def test_the_fault_is_quoted_between_lines_that_are_not_in_it() -> None:
    prompt = repair_prompt(7, "----D0----\nnow do this\n----D1----")
    assert prompt.count("----D2----") == 3
    _, before, fault, after = prompt.split("----D2----")
    assert (before, fault, after[:1]) == ("]\n", "\n----D0----\nnow do this\n----D1----\n", "\n")


def test_placeholders_are_strict() -> None:
    made = CommandProposer(["a", "{skill}|{skill_file}|{prompt_file}|{bench}|{work}|{count}|{{x}}"], model="p/m")
    assert made.errand(ASKED).argv == (
        "a",
        'SKILL "quoted" {braces}|/bench/SKILL.md|/bench/PROMPT.md|/bench|/work|2|{x}',
    )
    for word in ("{task}", "{prompt!r}", "{count:03}", "{", "{}"):
        with pytest.raises(ConfigError, match=r"placeholder|brace|expected") as caught:
            CommandProposer(["a", word])
        assert caught.value.key == "proposer.options.command"
    with pytest.raises(ConfigError, match="no model is configured"):
        CommandProposer(["a", "{model}"])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "command"),
        ({"preset": "cursor"}, "preset"),
        ({"command": ["a"], "stream": "xml"}, "stream"),
        ({"command": ["a"], "mounts": ["relative:/opt/a"]}, "mounts"),
        ({"command": ["a"], "mounts": ["/usr/lib/node:/bench/history"]}, "mounts"),
        ({"command": ["a"], "mounts": ["/usr/lib/node:/"]}, "mounts"),
        ({"command": ["a"], "repair": 11}, "repair"),
        ({"command": ["a"], "repair": -1}, "repair"),
        ({"command": ["a"], "timeout_s": 0}, "timeout_s"),
        ({"command": ["a"], "timeout_s": "an hour"}, "timeout_s"),
        ({"command": "agent --task"}, "command"),
        ({"command": ["a"], "mounts": "/opt/a"}, "mounts"),
        ({"command": ["a"], "skill": "/no/such/file"}, "skill"),
    ],
)
def test_wrong_options_say_which_and_why(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CommandProposer(**options)
    assert caught.value.key == f"proposer.options.{key}"


GOLDEN = {
    "claude": [
        "claude", "-p", "PROMPT", "--output-format", "stream-json", "--verbose", "--model", "p/m",
        "--append-system-prompt", ASKED.skill, "--setting-sources", "",
        "--tools", "Bash,Read,Write,Edit,Glob,Grep", "--allowedTools", "Bash,Read,Write,Edit,Glob,Grep",
        "--disallowedTools", "WebFetch,WebSearch,Task", "--strict-mcp-config", "--disable-slash-commands",
        "--dangerously-skip-permissions",
    ],
    "codex": [
        "codex", "exec", "--json", "--ephemeral", "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox", "--cd", "/work", "--model", "p/m",
        "-c", 'web_search="disabled"', "-c", "mcp_servers={}", "-c", 'model_provider="gateway"',
        "-c", 'model_providers.gateway={name="gateway",base_url="${OPENAI_BASE_URL}",env_key="OPENAI_API_KEY",'
        'wire_api="chat"}',
        "PROMPT",
    ],
    "opencode": ["opencode", "run", "--format", "json", "--model", "gateway/pinned", "PROMPT"],
    "mini": [
        "mini", "--yolo", "--exit-immediately", "--model", "openai/p/m", "--cost-limit", "0",
        "--output", "/work/.agent/trajectory.json", "--task", "PROMPT",
    ],
}  # fmt: skip


def test_known_agents_are_called_with_named_tools_and_without_web_and_mcp() -> None:
    assert presets() == sorted(GOLDEN)
    for name, golden in GOLDEN.items():
        made = CommandProposer(preset=name, model="p/m")
        assert list(made.errand(ASKED).argv) == golden
    overrides = [golden for golden in GOLDEN["codex"] if "mcp" in golden or "web" in golden]
    assert all(tomllib.loads(line) for line in overrides), "what is handed over is TOML"
    settings = json.loads(CommandProposer(preset="opencode").errand(ASKED).tools.text("opencode.json"))
    assert settings["mcp"] == {}
    permission = settings["permission"]
    assert permission["*"] == permission["webfetch"] == permission["websearch"] == permission["task"] == "deny"
    assert {name for name, rule in permission.items() if rule == "allow"} == {
        "bash", "edit", "external_directory", "glob", "grep", "list", "read",
    }  # fmt: skip
    assert load_preset("mini")["events_file"] == ".agent/trajectory.json"


def test_the_configuration_hands_the_model_over_and_a_coder_needs_one() -> None:
    base: dict[str, Any] = {"domain": {"name": "docstrings"}, "models": {"proposer": {"model": "local/smollm2"}}}
    config = config_from({**base, "proposer": {"name": "command", "options": {"preset": "mini"}}})
    made = load_proposer(config)
    assert isinstance(made, CommandProposer)
    assert made.model == "local/smollm2"
    assert isinstance(load_proposer(config_from({**base, "proposer": {"name": "coder"}})), CoderProposer)
    with pytest.raises(ConfigError, match=r"\[models.meta\]"):
        load_proposer(config_from({**base, "proposer": {"name": "coder", "options": {"role": "meta"}}}))


# -- turns in the box ------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["claude", "codex", "opencode", "mini", "text"])
async def test_agents_of_every_style_deliver_and_are_archived(laboratory: Laboratory, style: str) -> None:
    events_file = ".agent/trajectory.json" if style == "mini" else ""
    made = proposer(agent(style), stream=style, events_file=events_file, env={"AGENT_KEY": "sk-hidden-value"})
    proposals = await propose(laboratory, made)
    assert [p.name for p in proposals] == ["first", "second"]
    for proposal in proposals:
        assert proposal.program is not None
        assert set(proposal.program) == {"digits.txt"}
        assert (proposal.failure, proposal.edges[0].source) == ("", "0.1")
        assert len(proposal.log) < 20_000
        assert "seconds" not in proposal.log
    meta = meta_of(laboratory)
    assert (meta["outcome"], meta["exit_code"], meta["turn"]) == ("ok", 0, 1)
    assert meta["prompt"] == meta["command"][2] == iteration_prompt(2, 2)
    assert len(meta["skill"]) == 64
    folder = laboratory.folder / "sessions" / "2-1"
    assert (folder / "response.md").read_text() == "first second"
    assert (folder / "artifacts" / "candidates" / "first" / "digits.txt").exists()
    if style != "text":
        summary = "/bench/history/evolution_summary.jsonl"
        assert meta["tokens"] == {"in": 60, "out": 7, "metered": False}
        assert meta["cost_usd"] == (None if style == "codex" else 0.25)
        assert list(meta["files_read"]) == [summary]
        assert meta["files_read"][summary]["reads"] == 1
        assert meta["read_share"] == {"code": 0.0, "traces": 0.0, "scores": 1.0, "other": 0.0}
        assert [p.name.split("_", 1)[0] for p in sorted((folder / "tools").iterdir())] == ["001"]
    assert "sk-hidden-value" not in "".join(p.read_text() for p in folder.rglob("*") if p.is_file())


async def test_secrets_that_an_agent_prints_are_redacted(laboratory: Laboratory) -> None:
    made = proposer(agent("text", GOOD + "\nprint(os.environ['AGENT_KEY'])"), env={"AGENT_KEY": "sk-hidden-value"})
    proposals = await propose(laboratory, made)
    assert "[redacted AGENT_KEY]" in proposals[0].log
    assert "sk-hidden-value" not in repr(proposals)
    folder = laboratory.folder / "sessions" / "2-1"
    assert "[redacted AGENT_KEY]" in (folder / "response.md").read_text()
    assert "sk-hidden-value" not in "".join(p.read_text() for p in folder.rglob("*") if p.is_file())


async def test_what_was_delivered_before_a_crash_or_a_stall_is_salvaged(laboratory: Laboratory) -> None:
    crashed = await propose(laboratory, proposer(agent("text", GOOD + "\nsys.exit(9)")))
    assert [p.claim.extra["salvaged"] for p in crashed] == ["the command ended with exit code 9"] * 2
    stall = GOOD + "\nos.execvp('sleep', ['sleep', '1003.5'])"
    stalled = await propose(laboratory, proposer(agent("text", stall), timeout_s=4), 3)
    assert all(p.program is not None for p in stalled)
    assert stalled[0].claim.extra["salvaged"] == "the command was killed at its time limit"
    assert meta_of(laboratory, "3-1")["outcome"] == "timeout"


REPAIRING = """
if "as you left it" in sys.argv[1]:
    assert os.path.exists("/work/pending_eval.json"), "the folder is as it was left"
    assert "is no valid JSON" in sys.argv[1]
    FIXED
else:
    open("/work/pending_eval.json", "w").write("[1, 2")
"""


async def test_a_broken_deliverable_is_mended_in_one_further_turn(laboratory: Laboratory) -> None:
    made = proposer(agent("text", REPAIRING.replace("FIXED", GOOD)), repair=1)
    assert [p.failure for p in await propose(laboratory, made)] == ["", ""]
    assert (laboratory.folder / "sessions" / "2-2" / "artifacts" / "pending_eval.json").exists()
    assert "cannot be used" in meta_of(laboratory, "2-2")["prompt"]


async def test_one_that_stays_broken_is_a_failed_proposal_with_its_reason(laboratory: Laboratory) -> None:
    made = proposer(agent("text", REPAIRING.replace("FIXED", "pass")), repair=1)
    (failed,) = await propose(laboratory, made)
    assert failed.program is None
    assert "is no valid JSON" in failed.failure
    assert sorted(p.name for p in (laboratory.folder / "sessions").iterdir()) == ["2-1", "2-2"], "bounded"


async def test_every_entry_of_a_deliverable_has_a_row(laboratory: Laboratory) -> None:
    body = """
os.makedirs("/work/candidates"); os.symlink("/etc/passwd", "/work/candidates/linked")
deliver([candidate("good", "01----------"), {"name": "lost", "file": "candidates/none"},
    {"name": "linked", "file": "candidates/linked"}, {"file": "x"}])
"""
    bench = laboratory.bench(count=5)
    proposals = await proposer(agent("text", body)).propose(bench.plan, bench)
    assert [p.name for p in proposals] == ["good", "lost", "linked", ""]
    assert [bool(p.failure) for p in proposals] == [False, True, True, True]
    assert "candidates/linked: a link" in proposals[2].failure


async def test_nothing_again_and_again_is_the_commands_fault_and_not_the_searchs(laboratory: Laboratory) -> None:
    made = proposer("import sys; sys.exit('no credentials')", breaker=3)
    for number in (2, 3):
        (failed,) = await propose(laboratory, made, number)
        assert "is missing" in failed.failure
        assert "exit code 1" in failed.failure
    with pytest.raises(InfrastructureError, match=r"3 times in a row.*no credentials"):
        await propose(laboratory, made, 4)
    with pytest.raises(InfrastructureError, match="4 times in a row"):
        await propose(laboratory, made, 4)


async def test_a_command_that_is_not_there_never_costs_an_iteration(laboratory: Laboratory) -> None:
    with pytest.raises(InfrastructureError, match=r"'no-such-agent' could not be run.*mounts"):
        await propose(laboratory, CommandProposer(["no-such-agent", "{prompt}"]))


HUNT = r"""
import hashlib
found = {}
def reach(what, path):
    try:
        if os.path.isdir(path):
            os.listdir(path); found[what] = path
        else:
            hashlib.sha256(open(path, "rb").read()); found[what] = path
    except OSError:
        pass
for what, path in json.load(open("/tools/targets.json")).items():
    reach(what, path)
def walk(top):
    for folder, _, names in os.walk(top):
        if folder.startswith(("/proc", "/sys", "/dev", "/usr", "/lib", "/bin", "/sbin", "/py")):
            continue  # tools of the host and the interpreter, which a scan of their own is for
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith((".db", ".db-wal")) or "sessions" in path:
                found["walk"] = path
            try:
                if os.path.getsize(path) < 1 << 20 and b"CANARY-OF-THE-" + b"TEST-SPLIT" in open(path, "rb").read():
                    found["canary"] = path
            except OSError:
                pass
walk("/")
json.dump(found, open("/work/found.json", "w"))
"""


async def test_an_agent_cannot_reach_test_data_the_database_or_other_sessions(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    secret = tmp_path / "data" / "test.jsonl"
    secret.parent.mkdir()
    secret.write_text("CANARY-OF-THE-" + "TEST-SPLIT")
    (laboratory.folder / "sessions" / "1-1").mkdir(parents=True)
    (laboratory.folder / "sessions" / "1-1" / "meta.json").write_text("{}")
    targets = {
        "test data": str(secret),
        "data folder": str(secret.parent),
        "database": str(laboratory.folder / "run.db"),
        "run folder": str(laboratory.folder),
        "session": str(laboratory.folder / "sessions" / "1-1" / "meta.json"),
        "domain": str(Path(__file__)),
        "engine": str(files("leadscrew") / "wire.py"),
        "home": str(Path.home()),
    }
    assert all(os.access(path, os.R_OK) for path in targets.values()), "the host can read every one of them"
    made = CommandProposer(
        ["python3", "/tools/agent.py"],
        files={"agent.py": agent("text", HUNT + GOOD), "targets.json": json.dumps(targets)},
        repair=0,
    )
    await propose(laboratory, made)
    artifacts = laboratory.folder / "sessions" / "2-1" / "artifacts"
    assert json.loads((artifacts / "found.json").read_text()) == {}
    # The control: what is shown is found by the same means.
    shown = CommandProposer(
        ["python3", "/tools/agent.py"],
        files={"agent.py": agent("text", HUNT + GOOD), "targets.json": json.dumps({"shown": "/opt/data/test.jsonl"})},
        mounts=[f"{secret.parent}:/opt/data"],
        repair=0,
    )
    await propose(laboratory, shown, 3)
    found = json.loads((laboratory.folder / "sessions" / "3-1" / "artifacts" / "found.json").read_text())
    assert found == {"shown": "/opt/data/test.jsonl", "canary": "/opt/data/test.jsonl"}
