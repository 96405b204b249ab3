"""The project's own papers agree with each other: versions, lock, licence, public names, documents."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

import leadscrew
from house.readme import commands
from house.tree import ROOT, text_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
PAGES = [p for p in text_files((".md",)) if "templates" not in p.parts]


def test_one_version() -> None:
    assert leadscrew.__version__ == PROJECT["version"]
    own = next(p for p in LOCK["package"] if p["name"] == "leadscrew")
    assert own.get("version", PROJECT["version"]) == PROJECT["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## \[?([\w.]+)", changes, re.MULTILINE)
    assert first
    assert first.group(1) in (PROJECT["version"], "Unreleased")
    assert PROJECT["version"] in changes


def test_the_lock_holds_what_the_project_asks_for() -> None:
    own = next(p for p in LOCK["package"] if p["name"] == "leadscrew")
    locked = sorted((d["name"], d.get("specifier", "")) for d in own["metadata"]["requires-dist"])
    wanted = []
    for line in [*PROJECT["dependencies"], *(d for extra in PROJECT["optional-dependencies"].values() for d in extra)]:
        name, specifier = re.fullmatch(r"([\w-]+)(?:\[\w+\])?([^;]*)(?:;.*)?", line).groups()  # type: ignore[union-attr]
        wanted.append((name, specifier.strip()))
    assert locked == sorted(wanted)


def test_the_lock_names_public_places_only() -> None:
    hosts = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text(encoding="utf-8")))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_public_face() -> None:
    names = leadscrew.__all__
    assert len(names) == len(set(names))
    assert 12 <= len(names) <= 26
    for name in names:
        assert getattr(leadscrew, name) is not None
    assert set(names) <= set(dir(leadscrew))


def test_the_public_face_is_documented() -> None:
    """The page on the library lists every public name at the start of a table row or list item, and nothing else."""
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    section = re.search(r"^## Public names\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, "docs/library.md needs a section '## Public names'"
    listed = re.findall(r"^(?:\| *|[-*] +)`(\w+)`", section.group(1), re.MULTILINE)
    assert sorted(listed) == sorted(leadscrew.__all__)


def test_the_readme_gives_both_commands() -> None:
    demo, tests = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "install" in demo
    assert "install" in tests


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/threat-model.md"])
def test_the_papers_are_there(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").split()) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            broken.append(target)
        elif anchor and there.suffix == ".md" and anchor not in _anchors(there):
            broken.append(target)
    assert broken == []


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}


def test_the_entry_point_exists() -> None:
    module, _, function = PROJECT["scripts"]["leadscrew"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
