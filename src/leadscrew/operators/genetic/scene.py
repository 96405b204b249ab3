"""What a move works on, and what it gives back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leadscrew.core.program import Program, Region
from leadscrew.operators.genetic.options import Options
from leadscrew.operators.genetic.source import Source, parse

TEXT_ENDINGS = (".md", ".txt", ".prompt")


@dataclass(frozen=True)
class Scene:
    """A base, its donors and how to call them in words; `region` is what may change, `rng` decides everything."""

    base: Program
    donors: Sequence[Program]
    labels: Sequence[str]
    region: Region
    options: Options
    rng: random.Random

    def files(self, *endings: str) -> list[str]:
        """Return the files of the base that may change and end so."""
        return [path for path in self.base if path.endswith(endings) and self.region.covers(path)]

    def source(self, path: str) -> Source | None:
        """Return a Python file of the base, parsed."""
        return parse(self.base[path].data)

    def choose(self) -> tuple[str, Source] | None:
        """Draw a Python file of the base that parses."""
        found = [(path, source) for path in self.files(".py") if (source := self.source(path)) is not None]
        return self.rng.choice(found) if found else None

    def choose_pair(self) -> tuple[str, Source, int, str, Source] | None:
        """Draw a Python file of the base and one of a donor: the one at the same path, else any."""
        chosen = self.choose()
        if chosen is None or not self.donors:
            return None
        number = self.rng.randrange(len(self.donors))
        donor = self.donors[number]
        paths = [chosen[0]] if chosen[0] in donor else [path for path in donor if path.endswith(".py")]
        if not paths:
            return None
        path = self.rng.choice(paths)
        source = parse(donor[path].data)
        return None if source is None else (*chosen, number, path, source)


@dataclass(frozen=True)
class Step:
    """The outcome of a move: changed files, what was done in words, the donors used, and the parts it is about."""

    files: Mapping[str, bytes]
    text: str
    donors: frozenset[int] = frozenset()
    components: tuple[str, ...] = field(default=())
