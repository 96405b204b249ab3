"""Questions about a run, answered from a real store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadscrew.errors import NotFoundError
from leadscrew.report import views
from leadscrew.report.reading import is_running, run_folder
from support.made_run import BETTER, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "r")


def test_status_tells_how_the_run_stands(run: Path) -> None:
    found = views.status(run)
    assert found["state"] == "resting"
    assert found["plans"] == {"decided": 2, "judged": 2}
    assert found["candidates"] == 5
    assert found["kinds"] == {"evaluated": 3, "failed: invalid": 1, "held": 1}
    assert found["champion"]["id"] == "1.0"
    assert found["champion"]["value"] == 0.75
    assert found["champion"]["low"] < 0.75 < found["champion"]["high"]
    assert found["baseline"]["id"] == "0.1"
    assert found["held"] == ["1.2"]
    assert found["spend"]["trials"] == 12
    assert found["caps"] == {"trials": 50}
    assert found["seconds"] == 12.5
    assert found["notes"] == ["try subtraction"]
    assert json.loads(json.dumps(found)) == found


def test_a_live_writer_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    from leadscrew.adapters.stores.sqlite import SQLiteStore

    folder = make_run(tmp_path / "r")
    assert not is_running(folder)
    store = SQLiteStore.open(folder)
    assert is_running(folder)
    assert views.status(folder)["state"] == "running"
    store.add_event("note", {"text": "still writable"})
    store.commit()
    store.close()
    assert not is_running(folder)


def test_show_and_file(run: Path) -> None:
    found = views.show(run)
    assert (found["id"], found["class"], found["is_champion"]) == ("1.0", "promoted", True)
    assert found["claim"]["hypothesis"] == "adding one is right"
    assert found["files"] == {path: len(file.data) for path, file in BETTER.items()}
    assert found["edges"] == [{"kind": "base", "source": "0.0"}, {"kind": "donor", "source": "0.1"}]
    assert views.file(run, "champion", "main.py") == BETTER.text("main.py")
    failed = views.show(run, "1.1")
    assert failed["reason"] == "main.py: invalid syntax"
    assert failed["files"] == {}
    with pytest.raises(NotFoundError, match=r"0\.0.*to 1\.2"):
        views.show(run, "9.9")
    with pytest.raises(NotFoundError, match="has no program"):
        views.file(run, "1.1", "main.py")


def test_the_tree_puts_each_below_its_base(run: Path) -> None:
    rows = [(row["depth"], row["id"]) for row in views.tree(run)]
    assert rows == [(0, "0.0"), (1, "1.0"), (1, "1.2"), (0, "0.1"), (1, "1.1")]


def test_diff_between_two(run: Path) -> None:
    text = views.diff(run, "seed")
    assert "-    return x\n+    return x + 1\n" in text
    assert "deleted file mode 100644" in text
    assert "new file mode 100755" in text
    assert views.diff(run, "1.0", "1.0") == ""


def test_trials_and_trace(run: Path) -> None:
    rows = views.trials(run, "0.0")
    assert [(row["instance"], row["score"]) for row in rows] == [("a", 0.0), ("b", 0.0), ("c", 1.0), ("d", 0.0)]
    found = views.trace(run, "1.0", "b")
    assert found["trials"][0]["trace"]["stdout"] == "plus one on b\n"
    assert found["trials"][0]["trace"]["calls"] == [{"prompt": "p", "response": "r"}]
    assert views.trials(run, "1.1") == []
    with pytest.raises(NotFoundError, match="has no trial on 'z'"):
        views.trace(run, "1.0", "z")


def test_why_tells_the_story_with_its_numbers(run: Path) -> None:
    found = views.why(run)
    assert found["plan"] == {
        "number": 1,
        "operator": "genetic",
        "decided_after": 1,
        "origin": "method",
        "asked_from": [],
    }
    assert found["base"]["id"] == "0.0"
    assert [link["id"] for link in found["links"]] == ["0.0", "0.1"]
    assert found["gain_over_base"] == 0.5
    assert set(found["change"]["files"]) == {"lib/old.py", "main.py", "run.sh"}
    assert (found["change"]["added"], found["change"]["removed"]) == (3, 2)
    assert found["verdict"] == {
        "class": "promoted",
        "reason": "a gain beyond chance",
        "facts": {"gain": 0.25, "p": 0.01},
    }
    assert found["still_champion"]
    assert found["on_frontier"]
    assert [a["id"] for a in found["ancestry"]] == ["0.0"]
    failed = views.why(run, "1.1")
    assert failed["failure"] == "main.py: invalid syntax"
    assert failed["gain_over_base"] is None
    assert not failed["champion"]


def test_frontier(run: Path) -> None:
    found = views.frontier(run)
    assert [m["id"] for m in found["members"]] == ["1.0"]
    assert found["objectives"] == [{"name": "accuracy", "direction": "max"}]
    assert found["dataset_bests"] == {"main": {"candidate": "1.0", "value": 0.75}}


def test_a_run_is_found_by_its_configuration_too(tmp_path: Path) -> None:
    task = tmp_path / "task"
    task.mkdir()
    (task / "leadscrew.toml").write_text('[domain]\nname = "docstrings"\n[run]\nout = "there"\n', "utf-8")
    with pytest.raises(NotFoundError, match="there is none yet"):
        run_folder(task)
    make_run(task / "there")
    assert run_folder(task) == run_folder(task / "leadscrew.toml") == task / "there"
    with pytest.raises(NotFoundError, match=r"A run folder holds run\.db"):
        run_folder(tmp_path / "nowhere")
