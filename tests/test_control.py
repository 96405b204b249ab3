"""Messages to a run: what lands in its inbox, and what is refused before it gets there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadscrew import control
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.errors import NotFoundError, RefusedError, UsageError
from support.made_run import HELD, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "r")


def inbox(folder: Path) -> list[tuple[str, dict[str, object]]]:
    with SQLiteStore.open(folder, readonly=True) as store:
        return [(message.kind, dict(message.data)) for message in store.inbox()]


def files(folder: Path) -> dict[str, bytes]:
    with SQLiteStore.open(folder, readonly=True) as store:
        found = store.message_files(store.inbox()[-1])
        return {path: file.data for path, file in (found or {}).items()}


def test_a_note_waits_for_the_writer(run: Path) -> None:
    said = control.note(run, "  look at weekends ")
    assert inbox(run) == [("note", {"text": "look at weekends"})]
    assert said["running"] is False
    assert "leadscrew resume" in str(said["text"])
    with pytest.raises(UsageError, match="empty"):
        control.note(run, "  ")


def test_only_a_running_search_can_be_stopped(run: Path) -> None:
    with pytest.raises(RefusedError, match="nothing is running"):
        control.stop(run)
    assert inbox(run) == []
    with SQLiteStore.open(run):
        said = control.stop(run, "enough")
        assert said["running"] is True
    assert inbox(run) == [("stop", {"text": "enough"})]


def test_only_held_candidates_are_decided_on(run: Path) -> None:
    control.approve(run, "1.2", reason="fine")
    control.reject(run, "1.2")
    assert inbox(run) == [
        ("approve", {"candidate": "1.2", "text": "fine"}),
        ("reject", {"candidate": "1.2", "text": ""}),
    ]
    with pytest.raises(RefusedError, match=r"1\.0 is not held"):
        control.approve(run, "1.0")
    with pytest.raises(NotFoundError):
        control.approve(run, "7.7")


def test_a_folder_is_handed_in_as_one_program(run: Path, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.mkdir()
    (program / "main.py").write_bytes(HELD["main.py"].data)
    said = control.submit(run, program, base="0.0", name="mine", hypothesis="better")
    assert "1 files as one program" in str(said["text"])
    assert inbox(run) == [("submit", {"base": "0.0", "name": "mine", "hypothesis": "better"})]
    assert files(run) == {"main.py": HELD["main.py"].data}
    with pytest.raises(NotFoundError):
        control.submit(run, tmp_path / "nothing")
    with pytest.raises(NotFoundError):
        control.submit(run, program, base="8.8")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no file"):
        control.submit(run, tmp_path / "empty")


def test_of_a_bench_only_the_deliverable_travels(run: Path, tmp_path: Path) -> None:
    bench = tmp_path / "bench"
    for path in ("history/log.jsonl", "programs/0.0/main.py", "new/main.py", "new/lib/x.py", "one.py", "pkg/agent.py"):
        (bench / path).parent.mkdir(parents=True, exist_ok=True)
        (bench / path).write_text(path, "utf-8")
    (tmp_path / "secret").write_text("no", "utf-8")
    entries = [{"file": "new"}, {"file": "./one.py"}, {"import_path": "pkg.agent:Agent"}, {"file": "../secret"}, 7]
    (bench / "pending_eval.json").write_text(json.dumps({"iteration": 1, "candidates": entries}), "utf-8")
    control.submit(run, bench)
    assert sorted(files(run)) == ["new/lib/x.py", "new/main.py", "one.py", "pending_eval.json", "pkg/agent.py"]


@pytest.mark.parametrize("text", ["{", "[]", '{"candidates": 3}', "null"])
def test_a_broken_deliverable_travels_too_so_that_it_is_recorded(run: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "pending_eval.json").write_text(text, "utf-8")
    control.submit(run, tmp_path)
    assert files(run) == {"pending_eval.json": text.encode()}


def test_an_opened_run_takes_nothing_more(run: Path, tmp_path: Path) -> None:
    with SQLiteStore.open(run) as store:
        store.add_event("opening", {"test": "t"})
        store.commit()
    for call in (
        lambda: control.submit(run, tmp_path),
        lambda: control.propose(run),
        lambda: control.approve(run, "1.2"),
    ):
        with pytest.raises(RefusedError, match="was opened"):
            call()
