"""Debian descriptions: lists in every form apt keeps them, and what is said where there are none."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from leadscrew.domains.debian_sections import LISTS, DebianSections, descriptions, package_files
from leadscrew.errors import DomainError
from leadscrew.ports import Domain
from leadscrew.testing.domain import DomainConformance

SECTIONS = ("admin", "games", "contrib/net")


def packages(start: int = 0) -> str:
    records = [
        f"Package: p{i}{suffix}\nVersion: 1\nDescription: Thing {i}{suffix} for {section}\n long text\nSection: {section}\n"
        for section in SECTIONS
        for i in range(start, start + 20)
        for suffix in ("", "-dev")
    ]
    return "\n".join([*records, "Package: odd\nDescription: Same words in two\nSection: admin\n",
                      "Package: odd2\nDescription: Same words in two\nSection: games\n"])  # fmt: skip


class TestConformance(DomainConformance):
    @pytest.fixture(autouse=True)
    def _lists(self, tmp_path: Path) -> None:
        self.lists = tmp_path
        (tmp_path / "site_main_Packages").write_text(packages())
        (tmp_path / "site_more_Packages.xz").write_bytes(lzma.compress(packages(100).encode()))

    def domain(self) -> Domain:
        return DebianSections(seed=2, lists=str(self.lists), per_label=30)


def test_lists_are_read_plain_and_compressed(tmp_path: Path) -> None:
    (tmp_path / "a_Packages").write_text(packages())
    (tmp_path / "b_Packages.gz").write_bytes(gzip.compress(packages(50).encode()))
    (tmp_path / "a_InRelease").write_text("Origin: x")
    found = descriptions(package_files(tmp_path))
    assert len(found) == 120
    assert {section for _, section in found} == {"admin", "games", "net"}
    assert not any("-dev" in text or "Same words" in text for text, _ in found)


def test_the_seed_draws_and_the_cap_holds(tmp_path: Path) -> None:
    (tmp_path / "a_Packages").write_text(packages())
    a, b = (DebianSections(seed=s, lists=str(tmp_path), per_label=16) for s in (0, 1))
    assert a.instances("val") != b.instances("val")
    rows = [i for split in ("train", "val", "test") for i in a.instances(split)]
    assert len(rows) == 3 * 16
    limited = DebianSections(lists=str(tmp_path), limit={"test": 2})
    assert len(limited.instances("test")) == 2


def test_no_lists(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=r"no package lists.*apt-get update"):
        DebianSections(lists=str(tmp_path))
    with pytest.raises(DomainError, match="apt-get update"):
        DebianSections(lists=str(tmp_path / "nowhere"))
    (tmp_path / "a_Packages").write_text("Package: one\nDescription: Only one package\nSection: admin\n")
    with pytest.raises(DomainError, match="too few packages"):
        DebianSections(lists=str(tmp_path)).instances("train")
    (tmp_path / "a_Packages").unlink()
    (tmp_path / "b_Packages.gz").write_bytes(b"no gzip")
    with pytest.raises(DomainError, match=r"b_Packages\.gz cannot be unpacked"):
        DebianSections(lists=str(tmp_path)).instances("train")


def test_the_machines_own_lists() -> None:
    try:
        domain = DebianSections(limit=50)
    except DomainError as error:
        pytest.skip(str(error))
    assert [len(domain.instances(split)) for split in ("train", "val", "test")] == [50, 50, 50]
    assert LISTS in domain.masks()
