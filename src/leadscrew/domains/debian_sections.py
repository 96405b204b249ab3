"""`debian-sections`: to which archive section does this package description belong? From the machine's apt lists."""

from __future__ import annotations

import gzip
import lzma
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from leadscrew.core.canonical import digest_of
from leadscrew.core.task import SPLITS, Instance, Provenance, Split
from leadscrew.domains.classification import Classification
from leadscrew.domains.masks import existing
from leadscrew.domains.options import sizes, whole
from leadscrew.errors import DomainError

GENERATOR = 1
LISTS = "/var/lib/apt/lists"
SHARES = (0.6, 0.18)
"""Shares of train and val in each section; the rest is test."""
MIN_PER_LABEL = 15
MAX_CHARS = 400
_DROPPED = ("-dev", "-doc", "-data", "-dbg", "-dbgsym")
_REMEDY = "Run `apt-get update` to fetch the lists, or take the domain 'docstrings', which needs none."


class DebianSections(Classification):
    """Package description -> section, of the packages in the machine's apt lists; -dev, -doc and -data are dropped.

    `per_label` caps the packages drawn per section by the seed (sections with fewer than 15 are left out), `limit` the
    rows of the splits; `lists` is the folder of apt lists, `mode` how learners see train, `solver = "llm"` puts programs
    that ask a model among the baselines.
    Raises `DomainError` with the remedy when there are no lists.

    Descriptions are read where they lie and never redistributed: each has the terms of its package.
    """

    name = "debian-sections"
    public_since = "1993-08-16"

    def __init__(
        self,
        *,
        seed: int = 0,
        per_label: int = 60,
        limit: int | dict[str, int] | None = None,
        lists: str = LISTS,
        mode: str = "offline",
        solver: str = "none",
    ) -> None:
        super().__init__(mode=mode, solver=solver)
        self._seed = whole(self.name, "seed", seed, 0)
        self._per_label = whole(self.name, "per_label", per_label, MIN_PER_LABEL)
        self._limit = sizes(self.name, "limit", limit)
        self._lists = Path(lists)
        self._files = package_files(self._lists)
        self._splits: dict[Split, tuple[Instance, ...]] = {}
        digest = digest_of([GENERATOR, *((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in self._files)])
        self.provenance = Provenance(
            f"{len(self._files)} apt lists in {lists}, generator {GENERATOR}",
            "each description under its package's terms",
            self.public_since,
            digest,
        )

    def instances(self, split: Split) -> Sequence[Instance]:
        """Return a split's rows. All are drawn anew, but only the split that is asked for is kept."""
        if split not in self._splits:
            self._splits[split] = self._draw(split)
        return self._splits[split]

    def masks(self) -> Sequence[str]:
        """Return the apt lists and caches, the package database, and the packages' documentation."""
        return existing(
            [
                str(self._lists),
                LISTS,
                "/var/cache/apt",
                "/var/lib/dpkg",
                "/var/cache/apt-xapian-index",
                "/usr/share/doc",
            ]
        )

    def _draw(self, wanted: Split) -> tuple[Instance, ...]:
        pool: dict[str, list[str]] = {}
        for text, section in descriptions(self._files):
            pool.setdefault(section, []).append(text)
        rng = random.Random(f"debian-sections:{GENERATOR}:{self._seed}")
        rows: dict[Split, list[tuple[str, str]]] = {split: [] for split in SPLITS}
        for section in sorted(pool):
            if len(pool[section]) < MIN_PER_LABEL:
                continue
            drawn = rng.sample(pool[section], min(self._per_label, len(pool[section])))
            train = round(SHARES[0] * len(drawn))
            val = train + max(1, round(SHARES[1] * len(drawn)))
            for split, part in zip(SPLITS, (drawn[:train], drawn[train:val], drawn[val:]), strict=True):
                rows[split].extend((text, section) for text in part)
        for split in SPLITS:
            rng.shuffle(rows[split])
        kept = rows[wanted][: self._limit.get(wanted, len(rows[wanted]))]
        if not kept:
            raise DomainError(f"the apt lists in {self._lists} hold too few packages to draw a data set. {_REMEDY}")
        return tuple(Instance(f"{wanted}-{i:04d}", wanted, text, section) for i, (text, section) in enumerate(kept))


def package_files(lists: Path) -> tuple[Path, ...]:
    """Return the package lists in a folder, of the form apt keeps them in; raises `DomainError` when there are none."""
    found = sorted(lists.glob("*_Packages*")) if lists.is_dir() else []
    usable = [p for p in found if p.suffix in (".gz", ".xz", ".lzma") or p.name.endswith("_Packages")]
    if shutil.which("lz4") or Path("/usr/lib/apt/apt-helper").exists():
        usable += [p for p in found if p.suffix == ".lz4"]
    if not usable:
        what = f"only lists that cannot be unpacked here ({found[0].name})" if found else "no package lists"
        raise DomainError(f"there are {what} in {lists}. {_REMEDY}")
    return tuple(sorted(usable))


def read_list(path: Path) -> str:
    """Return the text of a package list, plain or compressed; raises `DomainError` if it cannot be unpacked."""
    try:
        if path.suffix == ".gz":
            data = gzip.decompress(path.read_bytes())
        elif path.suffix in (".xz", ".lzma"):
            data = lzma.decompress(path.read_bytes())
        elif path.suffix == ".lz4":
            data = _unpack_lz4(path)
        else:
            data = path.read_bytes()
    except (OSError, EOFError, lzma.LZMAError, subprocess.SubprocessError) as error:
        raise DomainError(f"the package list {path} cannot be unpacked ({error}). {_REMEDY}") from None
    return data.decode("utf-8", "replace")


def _unpack_lz4(path: Path) -> bytes:
    # apt brings its own reader for the form it stores lists in; the standard library has none.
    helper = Path("/usr/lib/apt/apt-helper")
    command = [str(helper), "cat-file", str(path)] if helper.exists() else ["lz4", "-dc", str(path)]
    return subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=120).stdout


def descriptions(files: tuple[Path, ...]) -> tuple[tuple[str, str], ...]:
    """Return (description, section) of the packages in some lists, each text once, in list order.

    A text that stands under two sections is left out. Area prefixes (`contrib/`) are removed from sections.
    """
    sections: dict[str, str | None] = {}
    texts: dict[str, str] = {}
    for path in files:
        for fields in _records(read_list(path)):
            name, section, text = fields.get("Package", ""), fields.get("Section", ""), fields.get("Description", "")
            text = text or fields.get("Description-en", "")
            text = " ".join(text.split())[:MAX_CHARS].rstrip()
            section = section.rpartition("/")[2]
            if not section or len(text) < 10 or name.endswith(_DROPPED):
                continue
            key = text.casefold()
            texts.setdefault(key, text)
            if sections.setdefault(key, section) != section:
                sections[key] = None
    return tuple((texts[key], section) for key, section in sections.items() if section is not None)


def _records(text: str) -> Iterator[dict[str, str]]:
    for record in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in record.split("\n"):
            name, colon, value = line.partition(": ")
            if colon and not line.startswith(" "):
                fields[name] = value
        if fields:
            yield fields
