"""Commands on a stored run: text for people, JSON for programs, one message and an exit code for what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from leadscrew.cli import main
from support.made_run import BETTER, make_run

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "r")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["status"], ["resting", "1.0 plus one: 0.7500 (95 % interval", "12 of 50 trials", "try subtraction", "held"]),
        (["show"], ["promoted: a gain beyond chance", "adding one is right", "main.py (", "base 0.0"]),
        (["show", "RUN", "1.1"], ["failed (invalid)", "main.py: invalid syntax"]),
        (
            ["tree"],
            ["0.0  0.2500  rejected  seed", "  1.0  0.7500  promoted *  plus one", "  1.1  invalid  failed  broken"],
        ),
        (["diff", "RUN", "seed"], ["+    return x + 1", "deleted file mode"]),
        (["trace", "RUN", "1.0"], ["instance", "search", "1.0000"]),
        (["trace", "RUN", "1.0", "a"], ["plus one on a", '{"prompt": "p", "response": "r"}']),
        (
            ["why"],
            ["plan 1, genetic", "0.0 (0.2500) seed", "donor 0.1", "+0.5000", "champion now", "p 0.01", "+3 -2 lines"],
        ),
        (["frontier"], ["accuracy", "0.7500", "plus one"]),
        (["verify"], ["every link", "chain_head"]),
        (["export", "RUN", "--patch"], ["diff --git a/main.py b/main.py"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_people_see(run: Path, capsys: Captured, words: list[str], shown: list[str]) -> None:
    words = [w if w != "RUN" else str(run) for w in words]
    assert main(words if str(run) in words else [*words, str(run)]) == 0
    text = capsys.readouterr().out
    for part in shown:
        assert part in text


@pytest.mark.parametrize("command", ["status", "show", "tree", "why", "frontier", "verify"])
def test_json_for_programs(run: Path, capsys: Captured, command: str) -> None:
    assert main([command, str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_json_with_arguments(run: Path, tmp_path: Path, capsys: Captured) -> None:
    for words in (
        ["diff", "seed"],
        ["trace", "1.0"],
        ["trace", "1.0", "a"],
        ["export", "--patch"],
        ["export", str(tmp_path / "o")],
    ):
        assert main([words[0], str(run), *words[1:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)


def test_one_file_of_a_candidate(run: Path, capsys: Captured) -> None:
    assert main(["show", str(run), "1.0", "--file", "main.py"]) == 0
    assert capsys.readouterr().out == BETTER.text("main.py")


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["status", "nowhere"], 2, "no run in 'nowhere'"),
        (["show", "RUN", "9.9"], 2, "no candidate '9.9'"),
        (["show", "RUN", "1.0", "--file", "x.py"], 2, "no file 'x.py'"),
        (["trace", "RUN", "1.0", "zz"], 2, "no trial on 'zz'"),
        (["stop", "RUN"], 3, "nothing is running"),
        (["approve", "RUN", "1.0"], 3, "not held"),
        (["export", "RUN"], 2, "exactly one"),
        (["export", "RUN", "x", "--patch"], 2, "exactly one"),
        (["submit", "RUN", "nowhere"], 2, "no folder 'nowhere'"),
        (["note", "RUN", " "], 2, "empty"),
        (["resume", "RUN", "--trials", "0"], 2, "--trials 0"),
        (["fork", "RUN", "--set", "run.seed", "--out", "x"], 2, "KEY=VALUE"),
        (["fork", "RUN", "--set", "run.sede=1", "--out", "x"], 2, "Did you mean run.seed"),
        (["run", "nowhere.toml"], 2, "no configuration 'nowhere.toml'"),
        (["init", "RUN"], 2, "not empty"),
        (["init", "new", "--from-git", "nowhere"], 2, "no folder 'nowhere'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_message_and_no_traceback(run: Path, capsys: Captured, words: list[str], code: int, part: str) -> None:
    assert main([w if w != "RUN" else str(run) for w in words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("leadscrew: ")
    assert part in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        "[domain\n",
        "",
        '[domain]\nname = "docstings"\n',
        '[domain]\nname = "docstrings"\noptions = { lables = 3 }\n',
        '[domain]\nname = "mine.py:Mine"\n',
        '[domain]\nname = "docstrings"\n[run]\nmethod = "harnes"\n',
        '[domain]\nname = "docstrings"\n[proposer]\nname = "genetics"\n',
        '[domain]\nname = "docstrings"\n[harness]\niteration = 3\n',
        '[domain]\nname = "docstrings"\n[harness]\nalpha = 2\n',
        '[domain]\nname = "docstrings"\n[budget]\ntrials = "many"\n',
        '[domain]\nname = "docstrings"\n[program]\npath = "nowhere"\n',
        '[domain]\nname = "docstrings"\n[sandbox]\nname = "jail"\n',
    ],
)
def test_a_broken_configuration_starts_nothing(tmp_path: Path, capsys: Captured, text: str) -> None:
    (tmp_path / "leadscrew.toml").write_text(text, "utf-8")
    assert main(["run", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("leadscrew: ")
    assert captured.err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["leadscrew.toml"]


def test_messages_to_a_run(tmp_path: Path, capsys: Captured) -> None:
    run = make_run(tmp_path / "r")
    assert main(["note", str(run), "more tests"]) == 0
    assert main(["approve", str(run), "1.2"]) == 0
    assert main(["approve", str(run), "1.2", "--reject", "--json"]) == 0
    assert main(["submit", str(run), str(Path(__file__)), "--base", "1.0"]) == 0
    assert "leadscrew resume" in capsys.readouterr().out
    assert len(list((run / "inbox").glob("*.json"))) == 4


def test_help_names_every_command_and_the_module_runs(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert main([]) == 2
    done = subprocess.run([sys.executable, "-m", "leadscrew", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("leadscrew 0.")
    names = re.findall(r"^    (\w+) ", text, re.MULTILINE)
    assert set(names) == {
        *("demo", "init", "run", "resume", "stop", "note", "approve", "status", "show", "tree", "diff", "trace", "why"),
        *(
            "frontier",
            "propose",
            "submit",
            "finalize",
            "export",
            "fork",
            "verify",
            "doctor",
            "redteam",
            "models",
            "calls",
        ),
    }


def test_output_that_nobody_reads_to_the_end_is_no_error(run: Path) -> None:
    command = f"{sys.executable} -m leadscrew why {run} --json | head -c 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
