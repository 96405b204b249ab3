"""The editor: what it does not have to change stays to the byte, and undo is exact."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from templates.coder.coder_tree import part

editors = part("editor")
files = part("files")
Problem = files.FileProblem


def editor_in(folder: Path) -> Any:
    """Return an editor whose only place is `folder`."""
    return editors.Editor(files.Places(str(folder)))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    return work


@pytest.fixture
def editor(work: Path) -> Any:
    return editor_in(work)


def test_create_view_replace_insert_undo(editor: Any, work: Path) -> None:
    editor.create("a/b/m.py", "one\n\ttwo\nthree\n")
    text, note = editor.view("a/b/m.py")
    assert text == "     1\tone\n     2\t\ttwo\n     3\tthree"
    assert note == "lines 1 to 3 of 3"
    shown, _ = editor.str_replace("a/b/m.py", "\ttwo", "\t2")
    assert "     2\t\t2" in shown
    editor.insert("a/b/m.py", 0, "zero")
    editor.insert("a/b/m.py", 4, "four")
    assert (work / "a/b/m.py").read_bytes() == b"zero\none\n\t2\nthree\nfour"
    for left in (b"zero\none\n\t2\nthree\n", b"one\n\t2\nthree\n", b"one\n\ttwo\nthree\n"):
        editor.undo("a/b/m.py")
        assert (work / "a/b/m.py").read_bytes() == left
    editor.undo("a/b/m.py")
    assert list(work.iterdir()) == []
    with pytest.raises(Problem, match="no change"):
        editor.undo("a/b/m.py")


def test_view_of_ranges_and_folders(editor: Any, work: Path) -> None:
    (work / "d" / "e").mkdir(parents=True)
    (work / "d" / "e" / "deep.txt").write_text("x")
    (work / ".hidden").write_text("x")
    (work / "f.txt").write_text("".join(f"l{n}\n" for n in range(1, 1001)))
    assert editor.view(".")[0] == "d/\nd/e/\nf.txt"
    assert editor.view("f.txt", 998, -1)[0] == "   998\tl998\n   999\tl999\n  1000\tl1000"
    assert editor.view("f.txt", 5, 6) == ("     5\tl5\n     6\tl6", "lines 5 to 6 of 1000")
    assert editor.view("f.txt")[1] == "lines 1 to 400 of 1000"
    for start, end in ((0, 3), (1001, -1), (5, 4), (-1, None)):
        with pytest.raises(Problem, match="1000 lines"):
            editor.view("f.txt", start, end)


def test_create_does_not_overwrite_unasked(editor: Any, work: Path) -> None:
    (work / "m.py").write_text("old")
    with pytest.raises(Problem, match="exists"):
        editor.create("m.py", "new")
    editor.create("m.py", "new", overwrite=True)
    assert (work / "m.py").read_text() == "new"
    editor.undo("m.py")
    assert (work / "m.py").read_text() == "old"
    with pytest.raises(Problem, match="folder"):
        editor.create(".", "x")


def test_replace_says_where_it_stands_several_times(editor: Any, work: Path) -> None:
    (work / "m.py").write_text("a\nb\na\naa\n")
    with pytest.raises(Problem, match=r"4 times .* lines 1, 3, 4, 4"):
        editor.str_replace("m.py", "a", "c")
    with pytest.raises(Problem, match="does not occur"):
        editor.str_replace("m.py", "zzz", "c")
    with pytest.raises(Problem, match="empty"):
        editor.str_replace("m.py", "", "c")
    with pytest.raises(Problem, match="equal"):
        editor.str_replace("m.py", "b", "b")
    assert (work / "m.py").read_text() == "a\nb\na\naa\n"


def test_overlapping_occurrences_are_two(editor: Any, work: Path) -> None:
    (work / "m.py").write_text("aXaXa")
    with pytest.raises(Problem, match="2 times"):
        editor.str_replace("m.py", "aXa", "b")


def test_a_hint_when_only_white_space_differs(editor: Any, work: Path) -> None:
    (work / "m.py").write_text("if x:\n\treturn 1\n")
    with pytest.raises(Problem, match=r"lines \[2\]; copy it exactly, tabs"):
        editor.str_replace("m.py", "    return 1", "    return 2")


def test_crlf_stays(editor: Any, work: Path) -> None:
    (work / "m.txt").write_bytes(b"a\r\nb\r\nc")
    editor.str_replace("m.txt", "a\nb", "x\ny\nz")
    assert (work / "m.txt").read_bytes() == b"x\r\ny\r\nz\r\nc"
    editor.insert("m.txt", 4, "d\ne")
    assert (work / "m.txt").read_bytes() == b"x\r\ny\r\nz\r\nc\r\nd\r\ne"
    assert "CR LF" in editor.view("m.txt")[1]
    (work / "mixed.txt").write_bytes(b"a\r\nb\nc\r\n")
    editor.str_replace("mixed.txt", "b\nc", "B\nC")
    assert (work / "mixed.txt").read_bytes() == b"a\r\nB\nC\r\n"


def test_strange_bytes_marks_and_modes_stay(editor: Any, work: Path) -> None:
    data = b"\xef\xbb\xbf#!/bin/sh\n\xff\xfe latin \xe9\x0c\x0b\xc2\x85 \xe2\x80\xa8\n\told"
    path = work / "m.sh"
    path.write_bytes(data)
    path.chmod(0o751)
    editor.str_replace("m.sh", "\told", "\tnew")
    assert path.read_bytes() == data.replace(b"old", b"new")
    assert path.stat().st_mode & 0o777 == 0o751
    assert "no line end" in editor.view("m.sh")[1]
    editor.undo("m.sh")
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o751


def test_binary_and_huge_files_are_refused(editor: Any, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "b.bin").write_bytes(b"a\0b")
    for act in (lambda: editor.view("b.bin"), lambda: editor.str_replace("b.bin", "a", "c")):
        with pytest.raises(Problem, match="binary"):
            act()
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    (work / "h.txt").write_text("x" * 11)
    with pytest.raises(Problem, match="11 bytes"):
        editor.view("h.txt")
    os.mkfifo(work / "pipe")
    with pytest.raises(Problem, match="not a regular file"):
        editor.view("pipe")
    with pytest.raises(Problem, match="surrogate"):
        editor.create("s.txt", "\ud800")
    assert not (work / "s.txt").exists()


def test_nothing_is_written_outside(editor: Any, work: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (work / "link").symlink_to(tmp_path / "secret")
    (work / "dir").symlink_to(tmp_path)
    (work / ".coder").mkdir()
    for path in (
        "../x",
        "/etc/x",
        str(tmp_path / "x"),
        "link",
        "dir/x",
        "dir/secret",
        "a/../../x",
        ".coder/x",
        "",
        "a\0b",
    ):
        with pytest.raises(Problem):
            editor.create(path, "bad", overwrite=True)
        with pytest.raises(Problem):
            editor.insert(path, 0, "bad")
        with pytest.raises(Problem):
            editor.undo(path)
    with pytest.raises(Problem, match="outside"):
        editor.view("link")
    assert (tmp_path / "secret").read_text() == "s"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret", "work"]


def test_a_link_inside_stays_a_link(editor: Any, work: Path) -> None:
    (work / "real.txt").write_text("a")
    (work / "link").symlink_to("real.txt")
    editor.str_replace("link", "a", "b")
    assert (work / "link").is_symlink()
    assert (work / "real.txt").read_text() == "b"
    editor.undo("real.txt")
    assert (work / "real.txt").read_text() == "a"


def test_undo_does_not_lose_what_others_wrote(editor: Any, work: Path) -> None:
    editor.create("m.py", "a")
    (work / "m.py").write_text("by the shell")
    with pytest.raises(Problem, match="something else"):
        editor.undo("m.py")
    (work / "m.py").write_text("a")
    editor.undo("m.py")
    assert not (work / "m.py").exists()


def test_a_write_that_fails_leaves_the_old_file(editor: Any, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "m.py").write_text("a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(Problem, match="No space left"):
            editor.str_replace("m.py", "a", "b")
        with pytest.raises(Problem, match="No space left"):
            editor.create("d/e.py", "b")
    assert [p.name for p in work.iterdir()] == ["m.py"]
    assert (work / "m.py").read_text() == "a"
    with pytest.raises(Problem, match="no change"):
        editor.undo("m.py")


CONTENT = st.binary(max_size=60).map(lambda data: data.replace(b"\0", b"\n"))
PIECE = st.text(alphabet=st.sampled_from("ab\t \n\r\x0c\x85é😀"), max_size=8)


@given(content=CONTENT, piece=PIECE, at=st.integers(0, 100))
def test_insert_is_the_bytes_in_place_and_undo_is_exact(content: bytes, piece: str, at: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m"
        path.write_bytes(content)
        lines = content.split(b"\n")
        ends = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines))]
        count = len(lines) - (lines[-1] == b"")
        line = at % (count + 1)
        editor = editor_in(Path(folder))
        if not piece:
            with pytest.raises(Problem):
                editor.insert("m", line, piece)
            return
        editor.insert("m", line, piece)
        changed = path.read_bytes()
        cutting = min(ends[line] if line < len(ends) else len(content), len(content))
        head, tail = content[:cutting], content[cutting:]
        assert changed.startswith(head)
        assert changed.endswith(tail)
        middle = changed[len(head) : len(changed) - len(tail)]
        assert middle.replace(b"\r", b"").strip(b"\n") == piece.encode().replace(b"\r", b"").strip(b"\n")
        editor.undo("m")
        assert path.read_bytes() == content


@given(before=CONTENT, old=st.text(alphabet="abc\t\n", min_size=1, max_size=5), new=PIECE, after=CONTENT)
def test_replace_changes_one_place_and_undo_is_exact(before: bytes, old: str, new: str, after: bytes) -> None:
    content = before + old.encode() + after
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m"
        path.write_bytes(content)
        editor = editor_in(Path(folder))
        crlf = b"\r\n" in content and content.count(b"\r\n") == content.count(b"\n")
        try:
            editor.str_replace("m", old, new)
        except Problem:
            places = [n for n in range(len(content)) if content.startswith(old.encode(), n)]
            assert len(places) != 1 or old == new or crlf
            assert path.read_bytes() == content
            return
        if not crlf:
            at = content.index(old.encode())
            assert path.read_bytes() == content[:at] + new.encode() + content[at + len(old) :]
        editor.undo("m")
        assert path.read_bytes() == content


@given(content=CONTENT, mode=st.sampled_from([0o600, 0o644, 0o755]), texts=st.lists(PIECE, max_size=4))
def test_any_row_of_changes_can_be_taken_back(content: bytes, mode: int, texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m"
        path.write_bytes(content)
        path.chmod(mode)
        editor = editor_in(Path(folder))
        for text in texts:
            editor.create("m", text, overwrite=True)
        for _ in texts:
            editor.undo("m")
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == mode
        assert [p.name for p in Path(folder).iterdir()] == ["m"]
