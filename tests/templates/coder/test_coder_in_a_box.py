"""The tools inside a real box: nothing but a shell, coreutils and Python, and no more rights than a proposer has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.core.program import Program
from leadscrew.core.task import Limits
from leadscrew.errors import SandboxUnavailable
from leadscrew.ports import Errand
from support.benches import Laboratory
from templates.coder.coder_tree import TREE

LIMITS = Limits(cpu_s=30, wall_s=60, memory_mb=512, processes=64, workspace_mb=32)
INSIDE = r"""
import json, sys
sys.path.insert(0, "/tools")
from coder import bash
from coder.files import Places
from coder.shell import Shell
from coder.tools import Toolbox

bash.GRACE = 20
shell = Shell("/work")
box = Toolbox(Places("/work", ("/bench",)), shell, 10, 4000)
commands = {
    "cd": "cd /usr; x=5", "pwd": "pwd; echo $x", "here": "cat > /work/a.txt <<'EOF'\n\tit's\nEOF", "newline": "echo a\n",
    "comment": "echo a # b", "exit": "exit 3", "long": "head -c 300000 /dev/zero | tr '\\0' x", "fail": "false",
    "input": "cat", "syntax": "echo 'a", "set -e": "set -e; false; echo no", "no end": "printf a",
    "binary": "head -c 9 /dev/zero", "job": "sleep 81.5 & echo on", "still": "jobs | grep -c Running",
    "bench": "wc -l < /bench/history/evolution_summary.jsonl", "write": "touch /bench/x /tools/x",
}
seen = {name: [(ended := shell.run(command, 20)).code, ended.output[-200:], ended.note] for name, command in commands.items()}
ended = shell.run("setsid -f sleep 82.5; (sleep 82.5 &); sleep 82.5; echo no", 0.3)
seen["limit"] = [ended.code, ended.output, ended.note]
seen["left"] = shell.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 82.5'", 20).output
seen["editor"] = [
    box.run("editor", {"command": "str_replace", "path": "a.txt", "old": "it's", "new": "is"}, 9).note,
    box.run("editor", {"command": "create", "path": "/bench/x", "text": "x"}, 9).note,
    open("/work/a.txt").read(),
]
seen["search"] = box.run("search", {"pattern": "score", "path": "/bench/history", "glob": "*.jsonl"}, 9).note
shell.close()
json.dump(seen, open("/work/seen.json", "w"))
"""


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


async def test_the_tools_in_a_box(laboratory: Laboratory) -> None:
    tree = {
        str(path.relative_to(TREE)): path.read_bytes()
        for path in TREE.rglob("*")
        if path.suffix in (".py", ".md", ".sh")
    }
    errand = Errand(("python3", "/tools/inside.py"), tools=Program.of({**tree, "inside.py": INSIDE}), limits=LIMITS)
    result = await laboratory.bench().errand(errand)
    assert (result.outcome, result.stderr) == ("ok", "")
    assert result.work is not None
    seen = json.loads(result.work.text("seen.json"))
    assert seen["pwd"][:2] == [0, "/usr\n5\n"]
    assert (seen["newline"][:2], seen["comment"][:2], seen["no end"][:2]) == ([0, "a\n"], [0, "a\n"], [0, "a"])
    assert seen["exit"][0] == 3
    assert "a new one was started in /usr" in seen["exit"][2]
    assert seen["long"][:2] == [0, "x" * 200]
    assert (seen["fail"][0], seen["input"][:2], seen["syntax"][0]) == (1, [0, ""], 2)
    assert seen["set -e"][:2] == [1, ""]
    assert seen["binary"][:2] == [0, "\0" * 9]
    assert seen["job"][0] == 0
    assert seen["still"][1] == "1\n"
    assert int(seen["bench"][1]) > 0
    assert seen["write"][0] != 0
    assert seen["limit"][0] is None
    assert "the shell goes on" in seen["limit"][2]
    assert "no\n" not in seen["limit"][1]
    assert seen["left"].strip() in ("0", "1"), "the searching command itself at most"
    assert seen["editor"][0] == "replaced in a.txt"
    assert "outside" in seen["editor"][1]
    assert seen["editor"][2] == "\tis\n"
    assert not seen["search"].startswith("0 ")
