"""Programs: identity, regions, differences, patches, and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadscrew.core.program import File, Program, Region, apply, check_path, diff, is_noise, unified
from leadscrew.errors import ProgramError

PART = st.sampled_from(["a", "b", "c.py", "ü", "d e", "f.txt"])
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
TEXT = st.lists(
    st.sampled_from(["x\n", "y\n", "\n", "z", "é\r\n", "\f\n", "\u2028", "--- a\n", "+++ b\n", "\t\n"]), max_size=6
)
DATA = TEXT.map(lambda parts: "".join(parts).encode())
BINARY = st.binary(max_size=20) | DATA


def trees(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[Program]:
    return st.dictionaries(PATH, st.builds(File, data, st.booleans()), max_size=6).map(_without_clashes)


def _without_clashes(files: dict[str, File]) -> Program:
    """Leave out a file whose path is also a folder."""
    return Program({p: f for p, f in files.items() if not any(q.startswith(p + "/") for q in files)})


# -- identity ------------------------------------------------------------------------------------


def test_the_digest_names_paths_modes_and_bytes() -> None:
    one = Program.of({"a": "1", "b": "2"})
    assert one.digest == Program.of({"b": "2", "a": "1"}).digest
    others = [
        Program.of({"a": "1"}),
        Program.of({"a": "2", "b": "1"}),
        Program.of({"a": "1", "c": "2"}),
        Program.of({"a": File(b"1", True), "b": "2"}),
        Program.of({"a": "1", "b": "2", "empty": ""}),
        Program.of({}),
    ]
    assert len({one.digest, *(o.digest for o in others)}) == 7
    assert one == Program.of({"a": "1", "b": "2"})
    assert hash(one) == hash(Program.of({"a": "1", "b": "2"}))
    assert one != "a program"


def test_a_program_survives_pickling_and_cannot_be_changed() -> None:
    program = Program.of({"main.py": "x = 1\n", "run.sh": File(b"#!", True)})
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    assert again["run.sh"].executable
    with pytest.raises(TypeError):
        program["main.py"] = File(b"")  # type: ignore[index]
    with pytest.raises(TypeError):
        program._files["main.py"] = File(b"")  # type: ignore[index]


def test_size_and_text() -> None:
    program = Program.of({"ü.txt": "ü", "b": b"\xff"})
    assert program.size == 3
    assert program.text("ü.txt") == "ü"
    with pytest.raises(ProgramError, match="no UTF-8"):
        program.text("b")
    with pytest.raises(ProgramError, match=r"no file 'c'; it has b, ü\.txt"):
        program.text("c")


# -- noise and paths -----------------------------------------------------------------------------

NOISE = [
    "__pycache__/a.cpython-311.pyc",
    "pkg/__pycache__/a.py",
    "a.pyc",
    "pkg/b.pyo",
    ".git/config",
    "x/.pytest_cache/v",
    ".mypy_cache/3.11/a.json",
    ".ruff_cache/0.1/x",
    "node_modules/x/index.js",
    "main.py~",
    ".main.py.swp",
    ".DS_Store",
]


@pytest.mark.parametrize("path", NOISE)
def test_what_runs_leave_behind_never_counts(path: str) -> None:
    clean = Program.of({"main.py": "x = 1\n"})
    noisy = clean.with_files({path: b"noise"})
    assert is_noise(path)
    assert noisy.digest == clean.digest
    assert list(noisy) == ["main.py"]
    assert not diff(clean, noisy)


@pytest.mark.parametrize("path", [".gitignore", "git/config", "pycache/a.py", "a.pyc.py", "x.swp.md", "modules/x"])
def test_what_somebody_wrote_is_no_noise(path: str) -> None:
    assert not is_noise(path)
    assert path in Program.of({path: "x"})


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "../up", "a/../../b", "a/./b", ".", "..", "a//b", "a/", "a\\b", "a\nb", "a\0b", "a\x7fb",
        "a\ud800", "x" * 300, "y" * 201, "ü" * 101,
    ],
)  # fmt: skip
def test_paths_that_could_mean_something_else_are_refused(path: str) -> None:
    with pytest.raises(ProgramError) as caught:
        Program.of({path: "x"})
    assert caught.value.path == path
    assert "Write a relative path" in str(caught.value)


@given(st.text(max_size=30))
def test_an_accepted_path_stays_inside(path: str) -> None:
    try:
        check_path(path)
    except ProgramError:
        return
    root = Path("/tree")
    inside = Path(root, path)
    assert inside.parts[: len(root.parts)] == root.parts
    assert ".." not in inside.parts
    assert str(inside) == f"{root}/{path}"


def test_a_file_that_is_also_a_folder_is_refused() -> None:
    with pytest.raises(ProgramError, match="both a file and a folder"):
        Program.of({"a": "1", "a/b": "2"})
    with pytest.raises(ProgramError, match="both a file and a folder"):
        Program.of({"a/b": "1"}).with_files({"a/b/c": "2"})


# -- regions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("**", ["a", "a/b/c.py", ".hidden"], []),
        ("*.py", ["a.py"], ["x/a.py", "a.pyx"]),
        ("**/*.py", ["a.py", "x/y/a.py"], ["a.txt"]),
        ("skills/**", ["skills/a", "skills/x/y"], ["skills", "skills2/a", "x/skills/a"]),
        ("a?.md", ["ab.md"], ["a.md", "a/.md", "abc.md"]),
        ("a.c", ["a.c"], ["abc"]),
        ("x/**/y", ["x/y", "x/1/y", "x/1/2/y"], ["x/1", "xy"]),
        ("[a]", ["[a]"], ["a"]),
    ],
)
def test_patterns(pattern: str, inside: list[str], outside: list[str]) -> None:
    region = Region((pattern,))
    assert [p for p in inside + outside if region.covers(p)] == inside


def test_excluded_parts_are_outside() -> None:
    region = Region(("skills/**", "main.py"), ("skills/meta/**",))
    program = Program.of({"main.py": "", "skills/plan.md": "", "skills/meta/plan.md": "", "other": ""})
    assert list(program.part(region)) == ["main.py", "skills/plan.md"]


@given(trees(BINARY), trees(BINARY))
def test_a_graft_takes_the_region_from_the_donor_and_the_rest_from_the_base(base: Program, donor: Program) -> None:
    region = Region(("a/**", "b/**", "*.py"))
    try:
        child = base.graft(donor, region)
    except ProgramError:
        return  # a file of one is a folder of the other
    assert child.part(region) == donor.part(region)
    rest = Region(exclude=region.include)
    assert child.part(rest) == base.part(rest)


# -- differences ---------------------------------------------------------------------------------


@given(trees(BINARY), trees(BINARY))
def test_applying_the_difference_gives_the_other_program(old: Program, new: Program) -> None:
    patch = diff(old, new)
    assert apply(old, patch) == new
    assert apply(new, diff(new, old)) == old
    assert bool(patch) == (old != new)
    assert set(patch.paths) == {p for p in {*old, *new} if old.get(p) != new.get(p)}


def test_every_kind_of_change() -> None:
    old = Program.of({"gone": "1", "same": "2", "moved": "3", "text": "4\n", "script": "5", "both": "6"})
    new = Program.of(
        {
            "same": "2",
            "new/moved": "3",
            "text": "44\n",
            "script": File(b"5", True),
            "both": File(b"66", True),
            "fresh": "7",
        }
    )
    kinds = {c.path: c.kind for c in diff(old, new).changes}
    assert kinds == {
        "gone": "delete", "new/moved": "rename", "text": "modify", "script": "mode", "both": "modify", "fresh": "add",
    }  # fmt: skip
    assert apply(old, diff(old, new)) == new


def test_two_equal_files_that_moved_are_two_renames() -> None:
    old = Program.of({"a": "same", "b": "same"})
    new = Program.of({"c": "same", "d": "same", "e": "same"})
    assert sorted(c.kind for c in diff(old, new).changes) == ["add", "rename", "rename"]
    assert apply(old, diff(old, new)) == new


@pytest.mark.parametrize(
    "other",
    [
        {"a": "changed", "b": "2", "c": "3"},
        {"b": "2", "c": "3"},
        {"a": "1", "c": "3"},
        {"a": "1", "b": "2", "c": "3", "new": "in the way"},
        {"a": "1", "b": "2", "c": "3", "moved": "in the way"},
        {"a": "1", "b": "2"},
    ],
)
def test_a_patch_for_another_program_is_refused(other: dict[str, str]) -> None:
    old = Program.of({"a": "1", "b": "2", "c": "3"})
    patch = diff(old, Program.of({"a": "11", "new": "4", "moved": "3"}))
    with pytest.raises(ProgramError, match="made for another program"):
        apply(Program.of(other), patch)


# -- unified diffs -------------------------------------------------------------------------------


def git_applied(old: Program, new: Program) -> Program:
    """Let git apply the unified difference to the files of `old` and read back what it leaves."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "tree")
        root.mkdir()
        for path, file in old.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
            target.chmod(0o755 if file.executable else 0o644)
        done = subprocess.run(
            ["git", "-c", "core.fileMode=true", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "-"],
            cwd=root,
            input=unified(old, new).encode(),
            capture_output=True,
            env={"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": name, "HOME": name},
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode() + unified(old, new)
        found = [p for p in root.rglob("*") if p.is_file()]
        return Program(
            {p.relative_to(root).as_posix(): File(p.read_bytes(), bool(p.stat().st_mode & 0o100)) for p in found}
        )


def test_git_applies_every_kind_of_change() -> None:
    old = Program.of(
        {
            "gone.py": "1\n2\n",
            "gone-empty": "",
            "moved.py": "a\nb\n",
            "text.py": "".join(f"{i}\n" for i in range(50)),
            "script.sh": "#!/bin/sh\n",
            "both.sh": "1\n",
            "no-newline": "a\nb",
            "gains-newline": "a",
            "folder/file": "x\n",
            "with space.txt": "1\n",
            "größe.txt": "1\n",
            'quo"te.txt': "1\n",
            "tabs\u00a0.txt": "1\n",
            "--- a/odd": "1\n",
        }
    )
    new = Program.of(
        {
            "elsewhere/moved.py": "a\nb\n",
            "text.py": "".join(f"{i}\n" for i in range(50) if i not in (3, 30)) + "end",
            "script.sh": File(b"#!/bin/sh\n", True),
            "both.sh": File(b"2\n", True),
            "no-newline": "a\nc",
            "gains-newline": "a\n",
            "fresh-empty": "",
            "fresh.py": File(b"#!/usr/bin/env python3\n", True),
            "folder/other": "y\n",
            "with space.txt": "2\n",
            "größe.txt": "2\n",
            'quo"te.txt': "2\n",
            "tabs\u00a0.txt": "2\n",
            "--- a/odd": "2\n",
        }
    )
    assert git_applied(old, new) == new
    assert git_applied(new, old) == old


@settings(max_examples=40, deadline=None)
@given(trees(DATA), trees(DATA))
def test_git_applies_what_unified_writes(old: Program, new: Program) -> None:
    if old != new:
        assert git_applied(old, new) == new


def test_the_difference_of_equal_programs_is_empty() -> None:
    program = Program.of({"a": "1"})
    assert unified(program, program) == ""


def test_binary_files_are_named_not_shown() -> None:
    text = unified(Program.of({"a.bin": b"\0\1"}), Program.of({"a.bin": b"\0\2"}))
    assert "Binary files a/a.bin and b/a.bin differ\n" in text
    assert "\0" not in text
