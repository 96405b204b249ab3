"""Programs taken out of a run: what arrives is what the run holds, by folder, branch and patch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from leadscrew.engine.folders import read_folder, write_folder
from leadscrew.errors import NotFoundError, UsageError
from leadscrew.report import export
from support.made_run import BETTER, OTHER, SEED, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "r")


def git(repo: Path, *args: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    done = subprocess.run(["git", "-C", str(repo), *identity, *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    place = tmp_path / "repo"
    write_folder(SEED, place)
    (place / "NOTES").write_text("mine\n", "utf-8")
    git(place, "init", "-q", "-b", "main")
    git(place, "add", ".")
    git(place, "commit", "-q", "-m", "first")
    return place


def test_to_a_folder(run: Path, tmp_path: Path) -> None:
    said = export.to_folder(run, tmp_path / "out")
    assert said == {"candidate": "1.0", "folder": str(tmp_path / "out"), "files": 2}
    assert read_folder(tmp_path / "out") == BETTER
    export.to_folder(run, tmp_path / "other", candidate="0.1")
    assert read_folder(tmp_path / "other") == OTHER
    with pytest.raises(UsageError, match="not empty"):
        export.to_folder(run, tmp_path / "out")
    with pytest.raises(NotFoundError, match="has no program"):
        export.to_folder(run, tmp_path / "none", candidate="1.1")


def test_to_a_branch_without_touching_the_checkout(run: Path, repo: Path, tmp_path: Path) -> None:
    (repo / "main.py").write_text("# being edited\n", "utf-8")
    before = git(repo, "status", "--porcelain")
    said = export.to_git(run, repo, branch="better")
    assert git(repo, "status", "--porcelain") == before
    assert git(repo, "rev-parse", "better") == said["commit"]
    assert git(repo, "rev-parse", "better~1") == git(repo, "rev-parse", "main")
    assert "adding one is right" in git(repo, "log", "-1", "--format=%B", "better")
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"), "better")
    found = read_folder(tmp_path / "tree")
    assert found.text("NOTES") == "mine\n"
    kept = found.with_files({"NOTES": None})
    assert {p: f for p, f in kept.items() if p != ".git"} == dict(BETTER)
    with pytest.raises(UsageError, match="exists already"):
        export.to_git(run, repo, branch="better")
    with pytest.raises(UsageError, match="git in"):
        export.to_git(run, repo, branch="no..good")


def test_to_an_empty_repository(run: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main", "new")
    said = export.to_git(run, tmp_path / "new")
    assert said["branch"] == "leadscrew/r-1.0"
    assert git(tmp_path / "new", "ls-tree", "-r", "--name-only", said["branch"]).split() == ["main.py", "run.sh"]


def test_a_patch_against_the_seed_applies(run: Path, repo: Path) -> None:
    (repo / "patch").write_text(export.patch(run), "utf-8")
    git(repo, "apply", "patch")
    (repo / "patch").unlink()
    assert read_folder(repo).with_files({"NOTES": None}) == BETTER


def test_a_patch_against_a_changed_checkout_applies(run: Path, repo: Path) -> None:
    (repo / "main.py").write_text("# mine\ndef solve(x):\n    return x\n", "utf-8")
    (repo / "patch").write_text(export.patch(run, against=repo), "utf-8")
    git(repo, "apply", "patch")
    assert (repo / "main.py").read_text("utf-8") == BETTER.text("main.py")
    assert (repo / "NOTES").read_text("utf-8") == "mine\n"
    with pytest.raises(NotFoundError, match="to make the patch for"):
        export.patch(run, against=repo / "missing")
