"""The deliverable: both published shapes are taken; whatever is wrong becomes a failed proposal with its reason."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.core.archive import Archive
from leadscrew.core.program import Program
from leadscrew.core.proposal import Candidate, Proposal
from leadscrew.core.task import Objective
from leadscrew.core.trial import Outcome
from leadscrew.operators.deliverable import PENDING, read_deliverable

BASE = Program.of({"main.py": "x = 0\n", "helper.py": "h = 1\n"})


def archive() -> Archive:
    found = Archive((Objective("accuracy"),))
    for plan, name in enumerate(["seed", "twin", "twin"]):
        found.add(Candidate(f"{plan}.0", plan, 0, BASE.digest, name, "x", "evaluated", Outcome.OK))
    return found


def read(folder: Path, pending: Any, **more: Any) -> tuple[Proposal, ...]:
    text = pending if isinstance(pending, (str, bytes)) else json.dumps(pending)
    (folder / PENDING).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return read_deliverable(folder, archive=archive(), program=lambda i: BASE, **more)


def entry(**more: Any) -> dict[str, Any]:
    return {"name": "new", "file": "agents/new.py", "hypothesis": "h", "axis": "exploration", **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents" / "tree").mkdir(parents=True)
    (tmp_path / "agents" / "new.py").write_text("x = 1\n")
    (tmp_path / "agents" / "tree" / "main.py").write_text("x = 2\n")
    return tmp_path


def test_a_single_file_becomes_the_entry_of_its_base(folder: Path) -> None:
    (p,) = read(folder, {"iteration": 3, "candidates": [entry(base_system="0.0-seed", components=["a", "b"])]})
    assert p.program == Program.of({"main.py": "x = 1\n", "helper.py": "h = 1\n"})
    assert [(e.kind, e.source) for e in p.edges] == [("base", "0.0")]
    assert (p.name, p.claim.hypothesis, p.claim.tags) == ("new", "h", ("a", "b"))
    assert p.claim.extra["axis"] == "exploration"


def test_without_a_base_it_stands_alone(folder: Path) -> None:
    (p,) = read(folder, {"candidates": [entry()]}, entry="agent.py")
    assert p.program == Program.of({"agent.py": "x = 1\n"})
    assert p.edges == ()


def test_a_folder_is_a_whole_program(folder: Path) -> None:
    (p,) = read(folder, {"candidates": [entry(file="./agents/tree/", base_system="1.0")]})
    assert p.program == Program.of({"main.py": "x = 2\n"})
    assert p.edges[0].source == "1.0"


def test_the_other_published_shape(folder: Path) -> None:
    item = {
        "name": "t",
        "import_path": "agents.new:AgentHarness",
        "hypothesis": "h",
        "changes": "adds a cache",
        "expected_efficiency": "fewer calls",
    }
    (p,) = read(folder, {"iteration": 1, "candidates": [item]})
    assert p.program == Program.of({"main.py": "x = 1\n"})
    assert p.claim.expected == "fewer calls"
    assert p.claim.extra["changes"] == "adds a cache"
    assert p.claim.extra["import_path"] == "agents.new:AgentHarness"
    (p,) = read(folder, {"candidates": [{"name": "t", "import_path": "agents.tree:AgentHarness"}]})
    assert p.program == Program.of({"main.py": "x = 2\n"})


def test_bases_are_found_by_id_system_or_newest_label(folder: Path) -> None:
    for name, found in {"1.0": "1.0", "2.0-anything": "2.0", "twin": "2.0", " seed ": "0.0"}.items():
        (p,) = read(folder, {"candidates": [entry(base_system=name)]})
        assert p.edges[0].source == found
    (p,) = read(folder, {"candidates": [entry(base_system="unheard-of")]})
    assert p.edges == ()
    assert not p.failure
    assert "unheard-of" in p.log


BAD_FILES: dict[str, tuple[Any, str]] = {
    "no json": ("{", "no valid JSON"),
    "no utf-8": (b"\xff\xfe\x00", "no valid JSON"),
    "nan": ('{"candidates": NaN}', "no valid JSON"),
    "deep": ("[" * 200_000, "no valid JSON"),
    "huge number": ('{"iteration": ' + "9" * 6000 + "}", "no valid JSON"),
    "a list": ([], "a list"),
    "nothing": ("null", "missing"),
    "no candidates": ({"iteration": 1}, "candidates is missing"),
    "candidates no list": ({"candidates": {"name": "x"}}, "must be a list"),
    "none listed": ({"candidates": []}, "lists no candidates"),
    "iteration a text": ({"iteration": "3", "candidates": [entry()]}, "whole number"),
    "iteration true": ({"iteration": True, "candidates": [entry()]}, "whole number"),
    "too large": (" " * (1 << 20) + "{}", "bytes"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_malformed_list_is_one_failed_proposal_with_a_reason(folder: Path, name: str) -> None:
    given_, reason = BAD_FILES[name]
    (p,) = read(folder, given_)
    assert p.program is None
    assert p.outcome is Outcome.INVALID
    assert reason in p.failure


BAD_ENTRIES: dict[str, tuple[Any, str]] = {
    "no object": ("new", "must be an object"),
    "no name": ({"file": "agents/new.py"}, "name is missing"),
    "empty name": (entry(name="  "), "not empty"),
    "name a number": (entry(name=7), "must be a text"),
    "no file": ({"name": "n"}, "neither a file nor an import_path"),
    "file missing": (entry(file="agents/none.py"), "is missing"),
    "file a list": (entry(file=["a"]), "must be a text"),
    "hypothesis an object": (entry(hypothesis={}), "must be a text"),
    "components a text": (entry(components="a"), "list of texts"),
    "components of numbers": (entry(components=[1]), "list of texts"),
    "above": (entry(file="../outside.py"), "cannot be part"),
    "absolute": (entry(file="/etc/passwd"), "cannot be part"),
    "through the middle": (entry(file="agents/../../outside.py"), "cannot be part"),
    "backslash": (entry(file="agents\\new.py"), "cannot be part"),
    "null byte": (entry(file="agents/\0new.py"), "cannot be part"),
    "import path upwards": ({"name": "n", "import_path": "..outside:X"}, "not of the form"),
    "import path with code": ({"name": "n", "import_path": "os;x:X"}, "not of the form"),
    "very long text": (entry(hypothesis="h" * 30_000), "characters"),
    "base a number": (entry(base_system=1.5), "must be a text"),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_malformed_candidate_fails_alone(folder: Path, name: str) -> None:
    (folder.parent / "outside.py").write_text("secret = 1\n")
    item, reason = BAD_ENTRIES[name]
    bad, good = read(folder, {"candidates": [item, entry()]})
    assert bad.program is None
    assert reason in bad.failure
    assert good.program is not None
    assert not good.failure


def make_link(folder: Path) -> None:
    (folder / "agents" / "bad.py").symlink_to("/etc/passwd")


def make_linked_folder(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "real" / "bad.py").write_text("x = 1\n")
    (folder / "agents" / "new.py").unlink()
    (folder / "agents" / "tree" / "main.py").unlink()
    (folder / "agents" / "tree").rmdir()
    (folder / "agents").rmdir()
    (folder / "agents").symlink_to("real")


def make_hard_link(folder: Path) -> None:
    (folder.parent / "secret.txt").write_text("secret")
    os.link(folder.parent / "secret.txt", folder / "agents" / "bad.py")


def make_pipe(folder: Path) -> None:
    os.mkfifo(folder / "agents" / "bad.py")


def make_huge(folder: Path) -> None:
    with open(folder / "agents" / "bad.py", "wb") as stream:
        stream.truncate(1 << 30)


def make_empty_folder(folder: Path) -> None:
    (folder / "agents" / "bad.py").mkdir()


def make_folder_with_link(folder: Path) -> None:
    (folder / "agents" / "bad.py").mkdir()
    (folder / "agents" / "bad.py" / "main.py").symlink_to("../new.py")


@pytest.mark.parametrize(
    "make",
    [make_link, make_linked_folder, make_hard_link, make_pipe, make_huge, make_empty_folder, make_folder_with_link],
    ids=lambda f: f.__name__,
)
def test_what_is_no_plain_file_is_refused(folder: Path, make: Any) -> None:
    make(folder)
    (p,) = read(folder, {"candidates": [entry(file="agents/bad.py")]})
    assert p.program is None
    assert p.failure


def test_a_list_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "real.json").write_text(json.dumps({"candidates": [entry()]}))
    (folder / PENDING).symlink_to("real.json")
    (p,) = read_deliverable(folder, archive=archive(), program=lambda i: BASE)
    assert "link" in p.failure


def test_no_list_at_all(folder: Path) -> None:
    (p,) = read_deliverable(folder, archive=archive(), program=lambda i: BASE)
    assert "missing" in p.failure


def test_more_than_was_asked_for_is_said_and_not_taken(folder: Path) -> None:
    taken = read(folder, {"candidates": [entry(name=f"n{i}") for i in range(5)]}, count=2)
    assert [p.name for p in taken[:2]] == ["n0", "n1"]
    assert len(taken) == 3
    assert "n2, n3, n4" in taken[2].failure


def test_half_characters_and_odd_extras_do_no_harm(folder: Path) -> None:
    (p,) = read(
        folder, '{"candidates": [{"name": "\\ud800x", "file": "agents/new.py", "odd": [1e999, {"a": "\\udfff"}]}]}'
    )
    assert p.program is not None
    json.dumps(dict(p.claim.extra), allow_nan=False).encode()
    p.name.encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
entries = st.dictionaries(
    st.sampled_from(["name", "file", "import_path", "hypothesis", "components", "base_system", "axis", "log"]),
    json_values,
)


@given(st.one_of(json_values, st.fixed_dictionaries({"candidates": st.lists(entries | json_values, max_size=3)})))
def test_nothing_that_json_can_say_raises(tmp_path_factory: pytest.TempPathFactory, pending: Any) -> None:
    folder = tmp_path_factory.mktemp("bench")
    taken = read(folder, pending)
    assert taken
    assert all(p.program is None and p.failure for p in taken)
