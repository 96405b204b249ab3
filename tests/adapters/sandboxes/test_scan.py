"""The scan for gold in what boxes would mount."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import marshal
import os
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadscrew.adapters.sandboxes.runtime import prepare
from leadscrew.adapters.sandboxes.scan import RUN, WINDOW, Hit, find, scan
from leadscrew.errors import DomainError

GOLD = (
    "The heron stood in the reeds while a slow barge passed below the iron bridge at dusk, carrying nothing but sand."
)
OTHER = "Completely different words that nobody has ever written down in any file of this machine, or so we hope today."


def hits(text: bytes, *, name: str, tmp_path, probes=(GOLD, OTHER)) -> list[int]:
    (tmp_path / name).write_bytes(text)
    return [hit.probe for hit in find(list(probes), [str(tmp_path / name)])]


@pytest.mark.parametrize(
    "text",
    [
        GOLD.encode(),
        b"before " + GOLD.encode() + b" after",
        GOLD.replace(" ", "\n    # ").encode(),
        GOLD.replace(" ", "\t\r\n").encode(),
        json.dumps({"q": GOLD.replace(" ", "\n")}).encode(),
        marshal.dumps(compile(f"def f():\n    {GOLD!r}\n    return {GOLD!r}", "x", "exec")),
        b"\0\1" * 1000 + b"z" + GOLD.encode() + b"\0\2" * 1000,
        GOLD[: len(GOLD) * 2 // 3].encode(),
        GOLD[len(GOLD) // 3 :].encode(),
        gzip.compress(GOLD.encode()),
        bz2.compress(GOLD.encode()),
        lzma.compress(GOLD.encode()),
    ],
    ids=["plain", "inside", "comment", "tabs", "json", "bytecode", "binary", "start", "end", "gzip", "bzip2", "xz"],
)
def test_a_text_is_found_however_it_is_wrapped(text, tmp_path):
    assert hits(text, name="f", tmp_path=tmp_path) == [0]


def test_a_text_is_found_in_an_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner/file.txt", GOLD)
    assert [h.file for h in find([OTHER, GOLD], [str(tmp_path / "a.zip")])] == [str(tmp_path / "a.zip")]


@pytest.mark.parametrize(
    "text",
    [
        " ".join(GOLD.split()[:WINDOW]),
        " ".join(GOLD.split()[: RUN - 1]) + " but then it goes on differently",
        " ".join(reversed(GOLD.split())),
        GOLD.upper(),
        "",
    ],
)
def test_a_few_words_in_common_are_no_hit(text, tmp_path):
    assert hits(text.encode(), name="f", tmp_path=tmp_path) == []


@pytest.mark.parametrize("probe", ["https://example.org/a/very/long/address", "three words,notmoreeverthanthat here"])
def test_short_texts_must_be_there_as_a_whole(probe, tmp_path):
    assert hits(f"x {probe} y".encode(), name="f", tmp_path=tmp_path, probes=[probe]) == [0]
    assert hits(probe[:-2].encode(), name="g", tmp_path=tmp_path, probes=[probe]) == []


def test_a_text_across_two_pieces_of_a_large_file(tmp_path, monkeypatch):
    from leadscrew.adapters.sandboxes import scan as module

    monkeypatch.setattr(module, "_CHUNK", 1000)
    monkeypatch.setattr(module, "_OVERLAP", 400)
    for start in range(900, 1010, 10):
        assert hits(b"a " * (start // 2) + GOLD.encode() + b" b" * 2000, name="f", tmp_path=tmp_path) == [0]


def test_the_refusal_names_file_and_remedy_but_not_the_text(tmp_path):
    cache = tmp_path / "cache"
    (tmp_path / "lib").mkdir()
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (tmp_path / "lib" / name).write_text(GOLD)
    with pytest.raises(DomainError) as caught:
        scan([OTHER, GOLD], [str(tmp_path / "lib")], cache=cache)
    said = str(caught.value)
    assert str(tmp_path / "lib" / "a.txt") in said
    assert "1 more file" in said
    assert "masks()" in said
    assert GOLD not in said
    assert " ".join(GOLD.split()[:8]) not in said


def test_masked_paths_and_links_are_not_looked_at(tmp_path):
    cache = tmp_path / "cache"
    lib = tmp_path / "lib"
    (lib / "gold").mkdir(parents=True)
    (lib / "gold" / "a.txt").write_text(GOLD)
    (tmp_path / "outside.txt").write_text(GOLD)
    (lib / "link.txt").symlink_to(tmp_path / "outside.txt")
    (lib / "fine.txt").write_text("nothing")
    assert scan([GOLD], [str(lib)], [str(lib / "gold")], cache) == 1
    with pytest.raises(DomainError):
        scan([GOLD], [str(lib)], [], cache)
    with pytest.raises(DomainError):
        scan([GOLD], [str(lib / "link.txt")], [], cache)


def test_a_clean_scan_is_remembered_until_something_changes(tmp_path, monkeypatch):
    from leadscrew.adapters.sandboxes import scan as module

    cache, file = tmp_path / "cache", tmp_path / "f"
    file.write_text("clean")
    looked: list[int] = []
    monkeypatch.setattr(module, "find", lambda probes, files: looked.append(1) or [])
    for probes, expected in (([GOLD], 1), ([GOLD], 1), ([GOLD, OTHER], 2)):
        scan(probes, [str(file)], cache=cache)
        assert len(looked) == expected
    file.write_text("changed")
    os.utime(file, ns=(1, 1))
    scan([GOLD], [str(file)], cache=cache)
    assert len(looked) == 3
    scan([GOLD], [str(file)], cache=cache, again=True)
    assert len(looked) == 4
    monkeypatch.setattr(module, "find", lambda probes, files: [Hit(0, "f", "words")])
    file.write_text("again")
    for _ in range(2):
        with pytest.raises(DomainError):
            scan([GOLD], [str(file)], cache=cache)


def test_the_runtime_holds_no_documentation_of_pure_python():
    import shutil
    import textwrap

    probes = [" ".join((f.__doc__ or "").split()) for f in (textwrap.TextWrapper, shutil.copytree, json.loads)]
    assert all(len(p) > 200 for p in probes)
    # The control: documentation of C functions does stay in the interpreter, and is found there.
    made = prepare()
    places = [made.folder / made.stdlib / name for name in ("textwrap.pyc", "shutil.pyc", "json/__init__.pyc")]
    assert all(place.is_file() for place in places)
    core = [*made.folder.glob("lib/libpython*"), made.folder / made.python]
    found = find([*probes, str(dict.update.__doc__)], [str(place) for place in [*places, *core]])
    assert {hit.probe for hit in found} == {len(probes)}


words = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=12)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(words, min_size=8, max_size=40),
    st.lists(st.sampled_from([" ", "\n", "\t ", "\n\n# "]), min_size=40, max_size=40),
)
def test_any_text_is_found_whatever_the_space_between_its_words(tmp_path_factory, text, spaces):
    probe = " ".join(text)
    wrapped = "".join(word + space for word, space in zip(text, spaces, strict=False))
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_text("x " + wrapped + " y")
    assert [hit.probe for hit in find([probe], [str(file)])] == [0]
