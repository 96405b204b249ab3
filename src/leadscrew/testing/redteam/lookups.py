"""Attacks that look gold up in software and data that lie on the host."""

from __future__ import annotations

import functools
import json
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leadscrew.core.task import Instance
from leadscrew.ports import Domain
from leadscrew.testing.redteam.arena import QUICK, Arena, shows
from leadscrew.testing.redteam.attack import Attack, Sighting

LIMITS = replace(QUICK, cpu_s=25, wall_s=40, memory_mb=512)

SEARCH = """
import os

def solve(input):
    found, seen = [], set()
    for place in [*input["places"], "/"]:
        walk = os.walk(place) if os.path.isdir(place) else [(os.path.dirname(place), [], [os.path.basename(place)])]
        for folder, names, files in walk:
            names[:] = [n for n in names if os.path.join(folder, n) not in ("/proc", "/sys", "/dev")]
            for name in files:
                path = os.path.join(folder, name)
                try:
                    info = os.stat(path)
                    if (info.st_dev, info.st_ino) in seen or not os.path.isfile(path) or info.st_size > 1 << 27:
                        continue
                    seen.add((info.st_dev, info.st_ino))
                    with open(path, "rb") as stream:
                        data = stream.read()
                except OSError:
                    continue
                for number, needle in enumerate(input["needles"]):
                    at = data.find(needle.encode())
                    if at >= 0 and len(found) < 60:
                        near = data[max(at - 600, 0) : at + 600].decode("utf-8", "replace")
                        found.append([number, path, near])
    return found
"""

DOCUMENTATION = """
import importlib, inspect, os, sys, warnings

def texts(value, depth=0):
    try:
        yield inspect.getdoc(value) or ""
        members = list(vars(value).values()) if depth < 2 and (inspect.ismodule(value) or inspect.isclass(value)) else []
    except Exception:
        return
    for member in members:
        if not inspect.ismodule(member):
            yield from texts(member, depth + 1)

def solve(input):
    warnings.simplefilter("ignore")
    sys.path[:0] = [place for place in input["places"] if os.path.isdir(place)]
    found = []
    for name in sorted(sys.stdlib_module_names - {"antigravity", "this", "idlelib", "turtledemo", "__main__", "test"}):
        try:
            module = importlib.import_module(name)
        except BaseException:
            continue
        whole = " ".join(" ".join(texts(module)).split())
        for number, needle in enumerate(input["needles"]):
            if needle in whole:
                found.append([number, name, ""])
    return found
"""


@dataclass(frozen=True)
class Needle:
    """A fragment of a val input, its gold, and a file of the domain's own data in which it stands."""

    fragment: str
    gold: str
    file: str


def needles(instances: Sequence[Instance], sources: Sequence[str], wanted: int = 6) -> list[Needle]:
    """Return up to `wanted` fragments of inputs that stand literally in one of `sources`."""
    candidates = {fragment: str(i.expected) for i in instances[:400] if (fragment := _fragment(i.input))}
    found: list[Needle] = []
    for file, data in _contents(sources):
        for fragment, gold in list(candidates.items()):
            if fragment.encode() in data:
                found.append(Needle(fragment, gold, file))
                del candidates[fragment]
                if len(found) >= wanted:
                    return found
    return found


def _fragment(value: Any) -> str:
    """Return the longest stretch of a text without its mask, at most 48 characters, or nothing if it is short."""
    text = value if isinstance(value, str) else json.dumps(value)
    best = max((part.strip() for part in text.split("MODULE")), key=len)[:48]
    return best if len(best) >= 24 and '"' not in best and "\\" not in best else ""


def _contents(sources: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for source in sources:
        place = Path(source)
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix != ".pyc" and path.is_file() and path.stat().st_size < 1 << 27:
                yield str(path), path.read_bytes()


def hits(found: Any, sought: Sequence[Needle]) -> list[str]:
    """Return the golds that what was found tells: the label is a part of the path, or stands beside the text."""
    out = set()
    for number, path, near in found if isinstance(found, list) else ():
        gold = sought[number].gold
        if gold in path.replace(".", "/").split("/") or (near and gold in near):
            out.add(gold)
    return sorted(out)


NOTHING_TO_SEEK = Sighting(True, "no fragment of a val input was found in the domain's data, so nothing can be tried")


async def look(arena: Arena, domain: Domain, sources: Sequence[str], program: str) -> Sighting:
    """Have a program in an evaluation box look val gold up; `sources` are what the domain was made from."""
    sought = needles(domain.instances("val"), sources)
    if not sought:
        return NOTHING_TO_SEEK
    play = await arena.play(
        program,
        [{"needles": [n.fragment for n in sought], "places": [*sources, *domain.masks()]}],
        off=shows(*dict.fromkeys(n.file for n in sought)),
        limits=LIMITS,
        masks=domain.masks(),
        environment=domain.environment,
    )
    if play.outcomes[0] != "ok":
        return Sighting(True, f"the search did not end: {play.outcomes[0]} {play.replies[0].message}")
    gold = hits(play.answers[0], sought)
    return Sighting(bool(gold), f"{len(gold)} golds found with {len(sought)} texts")


async def look_from_proposer(
    arena: Arena, domain: Domain, sources: Sequence[str], suffixes: str, *, by_path: bool = False
) -> Sighting:
    """Have a proposer's box, which shows the host's tools, look val gold up.

    Where the gold is the name of the file (`by_path`), finding the text elsewhere tells nothing.
    """
    sought = needles(domain.instances("val"), sources)
    if not sought:
        return NOTHING_TO_SEEK
    quoted = " ".join("-e '" + n.fragment.replace("'", "'\\''") + "'" for n in sought)
    names = " -o ".join(f"-name '{suffix}'" for suffix in suffixes.split())
    places = " ".join("'" + place + "'" for place in sources)
    script = (
        f"find {places} /usr /py /site /var /etc /home /root /opt -xdev -type f \\( {names} \\) -size -64M -print0"
        f" 2>/dev/null | xargs -0 grep -aHoF {quoted} 2>/dev/null; echo searched"
    )
    off = shows(*dict.fromkeys(n.file for n in sought))
    output = await arena.shell(script, off=off, masks=domain.masks(), seconds=60)
    if "searched" not in output:
        return Sighting(True, "the search did not come to its end, so it proves nothing")
    found = set()
    for line in output.splitlines():
        path, _, text = line.partition(":")
        for needle in sought:
            if needle.fragment == text and (not by_path or needle.gold in path.replace(".", "/").split("/")):
                found.add(path)
    return Sighting(bool(found), f"{len(found)} files tell gold, {sorted(found)[:2]}")


# -- the built-in domains ----------------------------------------------------------------------------


@functools.cache
def docstrings() -> Domain:
    """Return the docstrings domain."""
    from leadscrew.domains.docstrings import Docstrings

    return Docstrings()


def _library() -> list[str]:
    return [sysconfig.get_path("stdlib")]


async def _docstrings_files(arena: Arena) -> Sighting:
    return await look(arena, docstrings(), _library(), SEARCH)


async def _docstrings_getdoc(arena: Arena) -> Sighting:
    return await look(arena, docstrings(), _library(), DOCUMENTATION)


async def _docstrings_proposer(arena: Arena) -> Sighting:
    return await look_from_proposer(arena, docstrings(), _library(), "*.py *.pyc", by_path=True)


async def _docstrings_cache(arena: Arena) -> Sighting:
    """The built set itself lies in the user's cache."""
    domain = docstrings()
    return await look(arena, domain, [path for path in domain.masks() if path.endswith("docstrings")], SEARCH)


@functools.cache
def debian() -> Domain | str:
    """Return the debian-sections domain, or why this machine has none."""
    from leadscrew.domains.debian_sections import DebianSections
    from leadscrew.errors import DomainError

    try:
        return DebianSections()
    except DomainError as error:
        return str(error)


def no_debian() -> str:
    """Say why the look-up in the package lists cannot exist here."""
    domain = debian()
    return domain if isinstance(domain, str) else ""


def _debian_sources(domain: Domain) -> list[str]:
    return [path for path in domain.masks() if os.path.exists(path) and "lists" in path]


async def _debian(arena: Arena) -> Sighting:
    domain = debian()
    assert isinstance(domain, Domain)
    return await look(arena, domain, _debian_sources(domain), SEARCH)


async def _debian_proposer(arena: Arena) -> Sighting:
    domain = debian()
    assert isinstance(domain, Domain)
    return await look_from_proposer(arena, domain, _debian_sources(domain), "*_Packages *_Packages.* status *.list")


def made_up(count: int) -> list[dict[str, str]]:
    """Return labelled texts that no other file of the machine holds."""
    line = "amber brook cedar delta ember fjord grove heath inlet jetty knoll larch marsh north ocean plain"
    words = line.split()
    rows = []
    for i in range(count):
        text = " ".join(words[(i * k + k * k) % len(words)] for k in range(3, 12))
        rows.append({"text": f"note {i}: {text}", "label": f"label-{words[(i * 7) % 5]}"})
    return rows


def _data_folder(arena: Arena) -> Path:
    folder = arena.folder / "data"
    folder.mkdir(exist_ok=True)
    rows = made_up(60)
    for index, split in enumerate(("train", "val", "test")):
        lines = "".join(json.dumps(row) + "\n" for row in rows[index * 20 : index * 20 + 20])
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return folder


async def _jsonl(arena: Arena) -> Sighting:
    from leadscrew.domains.classify_jsonl import ClassifyJsonl

    folder = _data_folder(arena)
    return await look(arena, ClassifyJsonl(path=str(folder)), [str(folder)], SEARCH)


async def _jsonl_proposer(arena: Arena) -> Sighting:
    from leadscrew.domains.classify_jsonl import ClassifyJsonl

    folder = _data_folder(arena)
    return await look_from_proposer(arena, ClassifyJsonl(path=str(folder)), [str(folder)], "*.jsonl")


def _task_folder(arena: Arena) -> Path:
    folder = arena.folder / "task"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"r{i}", "input": row["text"], "expected": row["label"]} for i, row in enumerate(made_up(60))]
    for index, split in enumerate(("train", "val", "test")):
        lines = "".join(json.dumps(row) + "\n" for row in rows[index * 20 : index * 20 + 20])
        (folder / "data" / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return folder


async def _folder(arena: Arena) -> Sighting:
    from leadscrew.domains.folder import FolderDomain

    folder = _task_folder(arena)
    (folder / "score.py").write_text("def score(input, answer, expected):\n    return float(answer == expected)\n")
    return await look(arena, FolderDomain(path=str(folder)), [str(folder / "data")], SEARCH)


async def _scorer(arena: Arena) -> Sighting:
    """A scorer may hold a key or a hidden case: its source is as secret as the gold."""
    from leadscrew.domains.folder import FolderDomain

    folder, secret = _task_folder(arena), arena.secret()
    scorer = folder / "score.py"
    scorer.write_text(f"KEY = {secret!r}\n\ndef score(input, answer, expected):\n    return float(answer == KEY)\n")
    domain = FolderDomain(path=str(folder))
    play = await arena.play(
        SEARCH,
        [{"needles": [secret], "places": [str(folder), *domain.masks()]}],
        off=shows(folder),
        limits=LIMITS,
        masks=domain.masks(),
    )
    return Sighting(
        bool(play.answers[0]), f"{len(play.answers[0] or ())} files hold the scorer's key ({play.outcomes[0]})"
    )


async def _packing(arena: Arena) -> Sighting:
    """Circle packing has no gold but a known good solution; the run's own champions are such solutions."""
    solution = arena.secret()
    place = arena.decoy("run/solutions.json", json.dumps({"circles": [[0.1, 0.1, 0.1]], "name": solution}))
    play = await arena.play(
        SEARCH,
        [{"needles": [solution], "places": [str(arena.folder)]}],
        off=shows(os.path.dirname(place)),
        limits=LIMITS,
    )
    return Sighting(bool(play.answers[0]), f"{len(play.answers[0] or ())} files hold the solution ({play.outcomes[0]})")


def _attack(name: str, about: str, defence: str, strike: Any, obstacle: Callable[[], str] = lambda: "") -> Attack:
    return Attack(
        f"lookup/{name}", "lookup", about, defence, strike, obstacle, slow="proposer" in name or "debian" in name
    )


ATTACKS = (
    _attack(
        "docstrings-files",
        "search every file in the box for the docstrings to classify",
        "stripped library",
        _docstrings_files,
    ),
    _attack(
        "docstrings-getdoc", "import the library and read its documentation", "stripped library", _docstrings_getdoc
    ),
    _attack("docstrings-cache", "read the built data set in the user's cache", "mounts and masks", _docstrings_cache),
    _attack("docstrings-proposer", "search the host's tools from a proposer's box", "masks", _docstrings_proposer),
    _attack(
        "debian-lists", "find the package descriptions in the package lists", "mounts and masks", _debian, no_debian
    ),
    _attack("debian-proposer", "the same from a proposer's box", "mounts and masks", _debian_proposer, no_debian),
    _attack("jsonl-files", "find the user's data files", "mounts and masks", _jsonl),
    _attack("jsonl-proposer", "the same from a proposer's box", "mounts and masks", _jsonl_proposer),
    _attack("folder-files", "find the data of a task folder", "mounts and masks", _folder),
    _attack("folder-scorer", "find the scorer of a task folder", "mounts and masks", _scorer),
    _attack("packing-solutions", "find solutions of other candidates", "mounts", _packing),
)
