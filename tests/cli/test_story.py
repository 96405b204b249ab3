"""A stranger's afternoon, with real boxes: init, run, a cap, resume, a submission, finalize, export; and what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leadscrew.cli import main
from leadscrew.errors import SandboxUnavailable
from leadscrew.report.doctor import examine

Captured = pytest.CaptureFixture[str]

if not examine(Path("cache"))["sandbox"]["works"]:
    pytest.skip("no sandbox works here", allow_module_level=True)


@pytest.fixture(autouse=True)
def _own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def task(folder: Path) -> Path:
    """A small task from `init`, with fewer rows so that the tests are quick."""
    assert main(["init", str(folder)]) == 0
    for split, count in (("train", 4), ("val", 12), ("test", 16)):
        path = folder / "data" / f"{split}.jsonl"
        path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:count]), "utf-8")
    text = (folder / "leadscrew.toml").read_text("utf-8")
    text = text.replace("iterations = 40 ", "iterations = 3 ").replace("candidates = 4", "candidates = 2")
    (folder / "leadscrew.toml").write_text(text.replace("ladder = [20] ", "ladder = [] "), "utf-8")
    return folder


def test_from_init_to_the_exported_program(tmp_path: Path, capsys: Captured) -> None:
    mine = task(tmp_path / "mytask")
    assert main(["run", str(mine), "--set", "budget.trials=30"]) == 4
    text = capsys.readouterr()
    assert "cap of 30 trials" in text.out
    assert "leadscrew resume" in text.out
    assert main(["status", str(mine), "--json"]) == 0
    stopped = json.loads(capsys.readouterr().out)
    assert stopped["spend"]["trials"] <= 30
    assert main(["resume", str(mine), "--trials", "1000"]) == 0
    assert "leadscrew finalize" in capsys.readouterr().out
    assert main(["status", str(mine), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["state"] == "resting"
    assert done["plans"] == {"decided": 4, "judged": 4}
    assert done["candidates"] == 7

    better = tmp_path / "better"
    shutil.copytree(mine / "program", better)
    source = (better / "main.py").read_text("utf-8")
    kept = [line for line in source.splitlines(keepends=True) if "safe side" not in line and "hand-over" not in line]
    (better / "main.py").write_text("".join(kept), "utf-8")
    assert main(["submit", str(mine), str(better), "--name", "no margin", "--hypothesis", "it was too much"]) == 0
    assert main(["resume", str(mine)]) == 0
    capsys.readouterr()
    assert main(["why", str(mine)]) == 0
    story = capsys.readouterr().out
    assert "no margin" in story
    assert "by a person or another program" in story
    assert "it was too much" in story
    assert main(["propose", str(mine), "--json"]) == 0
    bench = Path(json.loads(capsys.readouterr().out)["folder"])
    assert (bench / "SKILL.md").is_file()

    assert main(["finalize", str(mine), "--json"]) == 0
    certificate = json.loads(capsys.readouterr().out)
    assert certificate["improved"] is True
    assert certificate["openings"] == 1
    assert main(["verify", str(mine)]) == 0
    assert "matches" in capsys.readouterr().out
    assert main(["finalize", str(mine)]) == 3
    assert main(["resume", str(mine)]) == 3
    assert main(["propose", str(mine)]) == 3
    assert main(["export", str(mine), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "main.py").read_text("utf-8") == "".join(kept)

    assert (
        main(["fork", str(mine), "--set", "run.seed=9", "--set", "budget.trials=900", "--out", str(tmp_path / "f")])
        == 0
    )
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "f"), "--json"]) == 0
    forked = json.loads(capsys.readouterr().out)
    assert forked["stopped"] == ""
    assert forked["candidates"] == 7


def test_held_candidates_wait_for_a_person(tmp_path: Path, capsys: Captured) -> None:
    mine = task(tmp_path / "t")
    assert main(["run", str(mine), "--set", "run.approve=true", "--set", "harness.iterations=1"]) == 0
    assert main(["approve", str(mine), "1.0"]) == 0
    assert main(["approve", str(mine), "1.1", "--reject"]) == 0
    assert main(["resume", str(mine)]) == 0
    capsys.readouterr()
    assert main(["status", str(mine), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["held"] == []
    assert found["candidates"] == 4
    assert main(["approve", str(mine), "1.1"]) == 3


def test_an_interrupt_stops_where_it_can_go_on(tmp_path: Path, capsys: Captured) -> None:
    mine = task(tmp_path / "t")
    command = [sys.executable, "-m", "leadscrew", "run", str(mine), "--set", 'proposer.name="external"']
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "waits for a submission" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "leadscrew resume" in out
    assert "Traceback" not in err
    capsys.readouterr()
    assert main(["status", str(mine), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "resting"


PROGRAMS = {
    "syntax error": ("def solve(x", "syntax error in line 1"),
    "no solve": ("x = 1\n", "does not define 'solve'"),
    "raises when loaded": ("1 / 0\n", "ZeroDivisionError"),
    "ends when loaded": ("raise SystemExit(3)\n", "SystemExit"),
    "loops when loaded": ("while True: pass\n", "timeout: loading"),
    "raises": ("def solve(ticket): return ticket['no']\n", "KeyError"),
    "wrong answer": ("def solve(ticket): return 'ten'\n", "bad_output"),
    "not finite": ("def solve(ticket): return float('nan')\n", "not finite"),
    "wrong arguments": ("def solve(): return 1\n", "solve"),
    "missing package": ("import tensorflow\n", "No module named 'tensorflow'"),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_broken_program_gives_one_clear_message(tmp_path: Path, capsys: Captured, kind: str) -> None:
    mine = task(tmp_path / "t")
    source, part = PROGRAMS[kind]
    (mine / "program" / "main.py").write_text(source, "utf-8")
    capsys.readouterr()
    assert main(["run", str(mine), "--set", "limits.load_s=1.0", "--set", "limits.cpu_s=1.0"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("leadscrew: none of the programs to start from")
    assert part in said


def test_a_program_that_is_no_tree(tmp_path: Path, capsys: Captured) -> None:
    mine = task(tmp_path / "t")
    (mine / "program" / "link.py").symlink_to("/etc/passwd")
    assert main(["run", str(mine)]) == 2
    assert "link.py" in capsys.readouterr().err
    assert not (mine / "runs").exists()


DOMAINS = {
    "no scorer": (lambda t: (t / "score.py").unlink(), "score.py"),
    "scorer without function": (lambda t: (t / "score.py").write_text("x = 1\n"), "defines no 'score'"),
    "scorer is no Python": (lambda t: (t / "score.py").write_text("def score(\n"), "line 1"),
    "no val": (lambda t: (t / "data" / "val.jsonl").unlink(), "val"),
    "empty val": (lambda t: (t / "data" / "val.jsonl").write_text(""), "val"),
    "bad line": (lambda t: (t / "data" / "train.jsonl").write_text('{"input": 1\n'), "line 1"),
    "no input": (lambda t: (t / "data" / "train.jsonl").write_text('{"expected": 1}\n'), "no 'input'"),
    "same id twice": (
        lambda t: (t / "data" / "val.jsonl").write_text('{"id": "a", "input": 1}\n{"id": "a", "input": 2}\n'),
        "'a'",
    ),
    "test stands in train": (lambda t: shutil.copy(t / "data" / "train.jsonl", t / "data" / "test.jsonl"), "train"),
    "unknown option": (lambda t: _edit(t, 'data = "data"', 'dat = "data"'), "dat"),
    "minimum without a floor": (lambda t: _edit(t, 'data = "data"', 'direction = "min"'), "floor"),
    "scorer that fails": (
        lambda t: (t / "score.py").write_text("import os\ndef score(input, answer, expected): raise OSError('disk')\n"),
        "disk",
    ),
}


def _edit(folder: Path, old: str, new: str) -> None:
    path = folder / "leadscrew.toml"
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")


@pytest.mark.parametrize("kind", DOMAINS)
def test_a_broken_domain_gives_one_clear_message(tmp_path: Path, capsys: Captured, kind: str) -> None:
    mine = task(tmp_path / "t")
    spoil, part = DOMAINS[kind]
    spoil(mine)
    capsys.readouterr()
    assert main(["run", str(mine)]) in (2, 5)
    captured = capsys.readouterr()
    said = captured.err.splitlines()[-1]
    assert said.startswith("leadscrew: ")
    assert part in said
    assert captured.out == ""


def test_init_from_a_repository_runs_at_once(tmp_path: Path, capsys: Captured) -> None:
    repo = tmp_path / "repo"
    (repo / "lib").mkdir(parents=True)
    (repo / "lib" / "code.py").write_text("X = 1\n", "utf-8")
    (repo / "ignored").write_text("no\n", "utf-8")
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    subprocess.run(["git", "-C", str(repo), "add", "lib"], check=True)
    assert main(["init", str(tmp_path / "t"), "--from-git", str(repo)]) == 0
    program = tmp_path / "t" / "program"
    assert sorted(p.relative_to(program).as_posix() for p in program.rglob("*.py")) == ["lib/code.py", "main.py"]
    assert not (program / "ignored").exists()
    assert main(["run", str(tmp_path / "t"), "--set", "harness.iterations=1"]) == 0
    assert "champion   0.0, 0.5000" in capsys.readouterr().out


def test_a_second_run_into_the_same_folder_is_refused(tmp_path: Path, capsys: Captured) -> None:
    mine = task(tmp_path / "t")
    assert main(["run", str(mine), "--set", "harness.iterations=0"]) == 0
    began = time.time_ns()
    assert main(["run", str(mine)]) == 3
    assert "leadscrew resume" in capsys.readouterr().err
    assert (mine / "runs" / "t" / "config.toml").stat().st_mtime_ns < began


def test_without_a_sandbox_nothing_starts(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    from leadscrew import wire

    def refuse(*_: object) -> object:
        raise SandboxUnavailable("no sandbox can run here: install bubblewrap.")

    mine = task(tmp_path / "t")
    monkeypatch.setattr(wire, "start_sandbox", refuse)
    assert main(["run", str(mine)]) == 6
    assert "install bubblewrap" in capsys.readouterr().err
    assert not (mine / "runs" / "t").exists()
