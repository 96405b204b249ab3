"""Reading and searching: limits, order, binary files, long lines, and no way outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from templates.coder.coder_tree import part

reader = part("reader")
search = part("search")
files = part("files")
tools = part("tools")
shells = part("shell")
Problem = files.FileProblem


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "b.py": "def g():\n    return 'Needle'\n",
        "a.py": "needle = 1\nx = 2\nneedle = 3\n",
        "logs/one.jsonl": '{"k": "' + "y" * 5000 + 'needle"}\n',
        ".hidden/h.py": "needle\n",
        "__pycache__/c.py": "needle\n",
        "deep/er/z.txt": "no\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "data.bin").write_bytes(b"needle\0")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    return tmp_path


def test_grep_in_order_with_line_numbers(tree: Path) -> None:
    text, note = search.grep(str(tree), "needle", glob="*.py")
    assert text.splitlines() == [f"{tree}/a.py:1: needle = 1", f"{tree}/a.py:3: needle = 3"]
    assert note == "2 matching lines in 2 files searched"
    assert search.grep(str(tree), "needle", glob="*.py", ignore_case=True)[1].startswith("3 ")
    assert search.grep(str(tree / "b.py"), "Needle")[1].startswith("1 ")


def test_grep_shows_a_window_of_long_lines_and_skips_binary_files(tree: Path) -> None:
    text, note = search.grep(str(tree), "needle")
    line = next(line for line in text.splitlines() if "one.jsonl" in line)
    assert "needle" in line
    assert "[line of 5015 characters]" in line
    assert len(line) < 500
    assert "1 binary or unreadable files left out" in note


def test_grep_takes_patterns_as_text_and_explains_bad_ones(tree: Path) -> None:
    assert search.grep(str(tree), "g():", literal=True)[1].startswith("1 ")
    with pytest.raises(Problem, match="literal=true"):
        search.grep(str(tree), "g(")


def test_grep_stops(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "many.txt").write_text("needle\n" * 500)
    text, note = search.grep(str(tree), "needle")
    assert len(text.splitlines()) == search.MATCHES
    assert "narrow" in note
    monkeypatch.setattr(search, "SECONDS", 0.2)
    (tree / "a.py").write_text("a" * 60 + "!\n")
    text, note = search.grep(str(tree), "(a+)+b$")
    assert "stopped after 0.2 s" in note


def test_find(tree: Path) -> None:
    text, note = search.find(str(tree), "**/*.txt")
    assert text == f"{tree}/deep/er/z.txt (3 bytes)"
    assert note == "1 files, hidden ones left out"
    assert [line.split()[0] for line in search.find(str(tree), "*.py")[0].splitlines()] == [
        f"{tree}/a.py",
        f"{tree}/b.py",
    ]
    assert search.find(str(tree), "deep/*")[0] == ""
    assert search.find(str(tree), "deep/**")[1].startswith("1 ")
    with pytest.raises(Problem, match="there is no"):
        search.find(str(tree / "nowhere"), "*")


def test_read_cuts_long_lines_and_long_files(tree: Path) -> None:
    text, _ = reader.read(str(tree / "logs" / "one.jsonl"))
    assert "[... 4515 more characters in this line]" in text
    (tree / "long.txt").write_text("".join(f"{n:05d}\n" for n in range(5000)))
    text, note = reader.read(str(tree / "long.txt"), 1, -1, 2000)
    assert len(text) <= 2000
    assert note == f"lines 1 to {len(text.splitlines())} of 5000"
    (tree / "empty").write_text("")
    assert reader.read(str(tree / "empty")) == ("", "the file is empty")


def outside_of_quotes(text: str) -> list[str]:
    """Return the lines of a result that stand neither in quoted data nor in its head."""
    head, mark, *rest = text.split("\n")
    assert head.endswith(f"data between the two lines {mark}]")
    return rest[rest.index(mark) + 1 :]


def test_the_toolbox_reads_only_its_places(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    work = tmp_path_factory.mktemp("own")
    (work / "own.txt").write_text("own")
    shell = shells.Shell(str(work))
    box: Any = tools.Toolbox(files.Places(str(work), (str(tree),)), shell, 5, 1000)
    assert box.run("read", {"path": f"{tree}/a.py"}, 5).ok
    assert box.run("read", {"path": "own.txt"}, 5).data == "     1\town"
    assert box.run("find", {"glob": "*"}, 5).data == f"{work}/own.txt (3 bytes)"
    for tool, arguments in (
        ("read", {"path": "/etc/passwd"}),
        ("read", {"path": f"{tree}/link.py"}),
        ("search", {"pattern": "root", "path": "/etc"}),
        ("find", {"glob": "*", "path": "/etc"}),
        ("editor", {"command": "create", "path": f"{tree}/new.py", "text": "x"}),
    ):
        answer = box.run(tool, arguments, 5)
        assert not answer.ok
        assert "outside" in answer.note
        # A name can say anything, so what names a path is data.
        assert outside_of_quotes(box.text("result 1, x", answer)) == []
    shell.close()


def test_long_answers_are_cut_in_the_middle_and_that_is_said(tmp_path: Path) -> None:
    shell = shells.Shell(str(tmp_path))
    box: Any = tools.Toolbox(files.Places(str(tmp_path)), shell, 5, 1000)
    text = box.text("result 1, shell", box.run("shell", {"command": "seq 100000; exit 3"}, 5))
    assert len(text) < 1500
    assert "\n1\n2\n" in text
    assert "characters left out ...]" in text
    assert "\n99999\n100000\n" in text
    assert "exit code 3; the shell was ended by the command" in text
    assert "no output" in box.text("r", box.run("shell", {"command": "true"}, 5))
    assert box.text("r", box.run("shell", {"command": "false"}, 5)) == "[r: exit code 1; no output]"
    assert not box.run("shell", {"command": "true", "timeout": 0}, 5).ok
    assert "killed after 0.2 s" in box.run("shell", {"command": "sleep 5", "timeout": 60}, 0.2).note
    shell.close()
