"""Messages from other processes: whole or not there, in order, taken once, and never able to stop a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from leadscrew.adapters.stores.inbox import MAX_MESSAGE, post
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.program import File, Program
from leadscrew.errors import NotFoundError, ProgramError


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    return SQLiteStore.create(tmp_path, config={}, seed=1)


def test_messages_come_in_order_and_once(store: SQLiteStore) -> None:
    ids = [post(store.path, "note", {"text": str(n)}) for n in range(5)]
    assert ids == sorted(ids)
    messages = store.inbox()
    assert [m.id for m in messages] == ids
    assert [m.data["text"] for m in messages] == list("01234")
    store.taken(messages[1])
    assert [m.data["text"] for m in store.inbox()] == list("0234")
    with pytest.raises(ValueError, match="taken already"):
        store.taken(messages[1])
    store.commit()
    store.close()
    store = SQLiteStore.open(store.path)
    assert [m.data["text"] for m in store.inbox()] == list("0234")
    assert (store.path / "inbox" / "taken" / f"{ids[1]}.json").is_file()
    store.close()


def test_a_message_taken_without_a_commit_comes_again(store: SQLiteStore) -> None:
    post(store.path, "stop", {})
    (message,) = store.inbox()
    store.taken(message)
    store.close()
    store = SQLiteStore.open(store.path)
    assert store.inbox() == [message]
    store.close()


def test_a_message_that_was_committed_but_not_tidied_up_is_not_taken_again(store: SQLiteStore) -> None:
    name = post(store.path, "note", {"text": "x"})
    (message,) = store.inbox()
    store.taken(message)
    store.commit()
    os.rename(store.path / "inbox" / "taken" / f"{name}.json", store.path / "inbox" / f"{name}.json")
    assert store.inbox() == []
    assert (store.path / "inbox" / "taken" / f"{name}.json").is_file()
    store.close()


def test_files_travel_with_a_message(store: SQLiteStore) -> None:
    tree = Program.of({"main.py": "x = 1\n", "bin/run.sh": File(b"#!/bin/sh\n", True), "data.bin": b"\0\xff"})
    post(store.path, "submit", {"base": "0.0"}, tree)
    post(store.path, "note", {})
    first, second = store.inbox()
    assert store.message_files(first) == tree
    assert store.message_files(second) is None
    store.taken(first)
    store.commit()
    assert store.message_files(first) == tree
    store.close()


def test_malformed_messages_are_recorded_with_their_fault(store: SQLiteStore) -> None:
    inbox = store.path / "inbox"
    faulty = {
        "a": b"{not json",
        "b": b"[1, 2]",
        "c": b'{"kind": 7}',
        "d": b'{"kind": "note", "data": [1]}',
        "e": b"\xff\xfe\x00",
        "f": b"[" * 200_000,
        "g": b" " * (MAX_MESSAGE + 1),
        "h h": b'{"kind": "note"}',
        "j\udcff": b'{"kind": "note"}',
    }
    for name, content in faulty.items():
        (inbox / f"{name}.json").write_bytes(content)
    (inbox / "k.json").mkdir()
    (inbox / "l.json").symlink_to("/etc/passwd")
    os.mkfifo(inbox / "m.json")
    (inbox / "n.txt").write_text("no message at all")
    good = post(store.path, "note", {"text": "still heard"})
    assert [m.id for m in store.inbox()] == [good]
    store.commit()
    assert [m.id for m in store.inbox()] == [good]
    faults = dict(store._db.all("SELECT name, fault FROM message"))
    assert len(faults) == len(faulty) + 3
    assert all(faults.values())
    assert sorted(p.name for p in inbox.iterdir()) == sorted([f"{good}.json", "n.txt", "taken"])
    store.verify()
    store.close()


def test_a_reader_sees_the_inbox_and_leaves_it_alone(store: SQLiteStore) -> None:
    (store.path / "inbox" / "a.json").write_text("{broken")
    name = post(store.path, "note", {"text": "\ud800"})
    reader = SQLiteStore.open(store.path, readonly=True)
    assert [(m.id, m.data) for m in reader.inbox()] == [(name, {"text": "\ud800"})]
    assert (store.path / "inbox" / "a.json").exists()
    reader.close()
    store.close()


def test_a_draft_is_no_message(store: SQLiteStore) -> None:
    (store.path / "inbox" / ".draft.json").write_text(json.dumps({"kind": "note"}))
    assert store.inbox() == []
    store.close()


def test_a_submitted_folder_may_not_reach_outside(store: SQLiteStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    for make in (
        lambda root: (root / "link.py").symlink_to(secret),
        lambda root: (root / "folder").symlink_to(tmp_path),
        lambda root: os.link(secret, root / "hard.py"),
        lambda root: os.mkfifo(root / "pipe"),
    ):
        name = post(store.path, "submit", {}, Program.of({"main.py": "x = 1\n"}))
        make(store.path / "inbox" / name)
        message = store.inbox()[-1]
        with pytest.raises(ProgramError, match=r"regular files only|hard link"):
            store.message_files(message)
    store.close()


def test_posting_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run"):
        post(tmp_path, "note", {})
