"""The docstring data set: how it is drawn, kept and masked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from leadscrew.domains.docstrings import Docstrings, build
from leadscrew.domains.templates import CLASSIFIERS, SOLVERS, solvers
from leadscrew.errors import DomainError
from leadscrew.ports import Domain
from leadscrew.testing.domain import DomainConformance

LABELS = 12


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with one built set; test_classifiers.py shares it."""
    folder = str(tmp_path_factory.getbasetemp() / "docstrings-cache")
    Docstrings(seed=3, labels=LABELS, cache=folder)
    return folder


class TestConformance(DomainConformance):
    cache = ""

    @pytest.fixture(autouse=True)
    def _cache(self, cache: str) -> None:
        self.cache = cache

    def domain(self) -> Domain:
        return Docstrings(seed=3, labels=LABELS, cache=self.cache)


def test_the_labels_option_and_the_shares(cache: str) -> None:
    domain = Docstrings(seed=3, labels=LABELS, cache=cache)
    sizes = {split: len(domain.instances(split)) for split in build.SPLITS}
    for split in build.SPLITS:
        assert len({i.expected for i in domain.instances(split)}) == LABELS
    assert sizes["val"] < sizes["train"] < sizes["test"]


def test_programs_that_ask_a_model_stand_beside_those_that_do_not(cache: str) -> None:
    """The rows are the same with and without: only the founding programs differ."""
    plain = Docstrings(seed=3, labels=LABELS, cache=cache)
    asking = Docstrings(seed=3, labels=LABELS, cache=cache, solver="llm")
    assert list(plain.baselines()) == list(CLASSIFIERS)
    assert plain.seed() == plain.baselines()["words_1nn"]
    assert list(asking.baselines()) == [*SOLVERS, *CLASSIFIERS]
    assert asking.seed() == asking.baselines()["no_memory"] == solvers()["no_memory"]
    for split in build.SPLITS:
        assert asking.instances(split) == plain.instances(split)
    assert asking.scorer_digest() == plain.scorer_digest()


def test_texts_are_masked_folded_and_cut(cache: str) -> None:
    domain = Docstrings(seed=3, labels=LABELS, cache=cache)
    for split in build.SPLITS:
        for instance in domain.instances(split):
            assert len(instance.input) <= build.MAX_CHARS
            assert build.fold(instance.input) == instance.input
            assert build.mask(instance.input, instance.expected) == instance.input


def test_searching_never_opens_the_test_rows(cache: str, tmp_path: Path) -> None:
    domain = Docstrings(seed=3, labels=LABELS, cache=cache)
    test_file = next(Path(cache).glob("docstrings/*/test.json"))
    hidden = test_file.rename(tmp_path / "elsewhere.json")
    try:
        assert domain.instances("train")
        assert domain.instances("val")
        assert len(domain.split_digest("test")) == 64
        with pytest.raises(DomainError, match=r"test\.json cannot be read"):
            domain.instances("test")
    finally:
        hidden.rename(test_file)


def test_altered_rows_are_refused_and_a_broken_set_is_built_anew(cache: str, tmp_path: Path) -> None:
    copy = str(shutil.copytree(cache, tmp_path / "copy"))
    domain = Docstrings(seed=3, labels=LABELS, cache=copy)
    test_file = next(Path(copy).glob("docstrings/*/test.json"))
    test_file.write_bytes(test_file.read_bytes().replace(b'"test-0000"', b'"test-9999"'))
    with pytest.raises(DomainError, match="was altered"):
        domain.instances("test")
    assert domain.instances("val")
    manifest = next(Path(copy).glob("docstrings/*/manifest.json"))
    manifest.write_text("{")
    again = Docstrings(seed=3, labels=LABELS, cache=copy)
    assert again.provenance == domain.provenance
    assert again.instances("test")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"labels": 1}, "'labels'.*at least 2"),
        ({"limit": {"tset": 3}}, "did you mean 'test'"),
        ({"limit": 0}, "at least 1"),
        ({"mode": "ofline"}, "did you mean 'offline'"),
        ({"solver": "local/smollm2"}, "'solver'.*write one of none, llm"),
        ({"seed": "7"}, "'seed'"),
    ],
)
def test_wrong_options(options: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=said):
        Docstrings(cache=str(tmp_path), **options)  # type: ignore[arg-type]


def test_an_interpreter_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder runs as a script of its own, so it is given an empty library as one."""
    with pytest.raises(build.NoSourcesError, match="only 0 modules"):
        build.collect(tmp_path)
    script = tmp_path / "build.py"
    script.write_text("import sys\nprint('only 0 modules with docstrings were found', file=sys.stderr)\nsys.exit(3)\n")
    monkeypatch.setattr(build, "__file__", str(script))
    with pytest.raises(DomainError, match=r"only 0 modules.*use an interpreter that ships them"):
        Docstrings(seed=1, cache=str(tmp_path / "cache"))


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DomainError, match="XDG_CACHE_HOME"):
        Docstrings(cache=str(tmp_path / "file"))


def test_masks_cover_the_library_and_the_built_set(cache: str) -> None:
    masks = [Path(path) for path in Docstrings(seed=3, labels=LABELS, cache=cache).masks()]
    real = build.library_root().resolve()
    assert any(real.is_relative_to(path.resolve()) for path in masks)
    assert any(Path(cache, "docstrings").is_relative_to(path) for path in masks)


def test_collecting_never_runs_the_library(tmp_path: Path) -> None:
    """Ten small modules, one of which would fail loudly if it were imported; twins and short texts are left out."""
    for k in range(10):
        names = [
            f"def f{i}():\n    'Text number {i} of the module called number {k}, mod{k} for short.'\n"
            for i in range(16)
        ]
        (tmp_path / f"mod{k}.py").write_text("raise SystemExit('imported')\n" + "\n".join(names))
    twin = "class A:\n    'The very same documentation stands in two of the modules.'\n"
    short = "def g():\n    'Too short.'\n"
    for k in (0, 1):
        with (tmp_path / f"mod{k}.py").open("a") as file:
            file.write(twin + short)
    (tmp_path / "_private.py").write_text(twin)
    pool = build.collect(tmp_path)
    assert sorted(pool) == [f"mod{k}" for k in range(10)]
    assert {len(texts) for texts in pool.values()} == {16}
    assert pool["mod3"][0] == "Text number 0 of the module called number 3, MODULE for short."


def test_drawing_follows_the_seed() -> None:
    pool = {f"m{k}": [f"text {k} {i}" for i in range(70)] for k in range(6)}
    a, b, c = build.draw(pool, 1), build.draw(pool, 1), build.draw(pool, 2)
    assert a == b != c
    texts = [text for rows in a.values() for _, text, _ in rows]
    assert len(texts) == len(set(texts)) == 6 * build.MAX_PER_LABEL
    assert [len(a[split]) for split in build.SPLITS] == [126, 54, 180]


def test_compiled_documentation_is_recognised() -> None:
    """What compiled modules say about themselves could be read back in a box."""
    told = next(text for text in build.compiled_texts(build.library_root()) if len(text.split()) >= 20)
    readable = set(build.shingles(told.split()))
    assert build.is_readable(build.fold(told), readable)
    assert build.is_readable(" ".join(told.split()[3:13]), readable)
    assert not build.is_readable("words of our own that no compiled module has ever said about itself", readable)


def test_texts_that_stay_when_docstrings_are_stripped(tmp_path: Path) -> None:
    doc = "Tell at length what this function is good for, and to whom."
    usage = "Print at length how this program is called, and by whom it is."
    (tmp_path / "tool.py").write_text(
        f"'{usage[::-1]}'\nUSAGE = '{usage}'\ndef f():\n    '{doc}'\n    return 'short'\n"
    )
    assert build.texts_of(tmp_path / "tool.py") == ([doc], [usage])
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert build.texts_of(tmp_path / "broken.py") == ([], [])
