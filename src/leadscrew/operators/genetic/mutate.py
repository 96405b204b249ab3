"""The pure heart of the genetic proposer: a base, donors and a random generator in, a new program out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from leadscrew.core.program import EVERYTHING, File, Program, Region
from leadscrew.operators.genetic.names import problems, tree_digest
from leadscrew.operators.genetic.options import MOVES, Options


@dataclass(frozen=True, slots=True)
class Mutation:
    """A new program, the moves behind it, the donors it took from (indices), what was done in words, and to what."""

    program: Program
    moves: tuple[str, ...]
    used_donors: tuple[int, ...]
    text: str = ""
    components: tuple[str, ...] = ()


def mutate(
    base: Program,
    donors: Sequence[Program],
    rng: random.Random,
    options: Options | None = None,
    *,
    region: Region = EVERYTHING,
    labels: Sequence[str] = (),
    known: Callable[[str], bool] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Mutation | None:
    """Return a program made from `base` by one or two moves; None if `options.tries` attempts found no new one.

    The result differs from the base and from every donor in more than its looks (see `tree_digest`), and its digest is
    none that `known` accepts. Only files in `region` change. Python files parse and have no unresolved name that the
    base had not. `labels` are words for the base and each donor; `weights` replace those of the options.

    >>> base = Program.of({"main.py": "A = 1\\nV = [A]\\n"}); donor = Program.of({"main.py": "B = 2\\nV = [B]\\n"})
    >>> done = mutate(base, [donor], random.Random(3), Options.of({"weights": {"graft": 1000}}))
    >>> print(done.program.text("main.py"))
    A = 1
    B = 2
    V = [A, B]
    <BLANKLINE>
    """
    # LibCST takes a quarter of a second to import and is not needed to read this module.
    from libcst import CSTValidationError

    from leadscrew.operators.genetic.moves import SIMPLE
    from leadscrew.operators.genetic.scene import Scene, Step

    options = options or Options()
    names = tuple(labels) or ("the base", *(f"donor {i}" for i in range(len(donors))))
    chances = {**options.weights, **(weights or {})}
    old = {tree_digest(base), *(tree_digest(donor) for donor in donors)}
    kinds = [move for move in MOVES if chances.get(move, 0) > 0]
    simple = [move for move in kinds if move != "compose"]
    if not simple:
        return None
    for _ in range(options.tries):
        first = rng.choices(kinds, [chances[move] for move in kinds])[0]
        wanted = rng.choices(simple, [chances[move] for move in simple], k=2) if first == "compose" else [first]
        scene = Scene(base, donors, names, region, options, rng)
        steps: list[Step] = []
        moves: list[str] = []
        for move in wanted:
            try:
                step = SIMPLE[move](scene)
            except (SyntaxError, ValueError, RecursionError, CSTValidationError):
                continue  # what the move made is no Python: another draw
            if step is None:
                continue
            scene = replace(scene, base=scene.base.with_files(_kept_modes(scene.base, step.files)))
            steps.append(step)
            moves.append(move)
        if not steps or not _sound(base, scene.base, options):
            continue
        digest = tree_digest(scene.base)
        if digest in old or (known is not None and known(digest)):
            continue
        if first == "compose" and len(moves) == 2:
            moves.insert(0, "compose")
        return Mutation(
            scene.base,
            tuple(moves),
            tuple(sorted({donor for step in steps for donor in step.donors})),
            ", and ".join(step.text for step in steps),
            tuple(dict.fromkeys(part for step in steps for part in step.components)),
        )
    return None


def _kept_modes(base: Program, files: Mapping[str, bytes]) -> dict[str, File]:
    return {path: replace(base[path], data=data) if path in base else File(data) for path, data in files.items()}


def _sound(base: Program, new: Program, options: Options) -> bool:
    """Whether changed Python files parse, resolve their names as well as before, and the whole stays small enough."""
    if new.size > max(base.size, options.max_bytes):
        return False
    for path, file in new.items():
        if not path.endswith(".py") or (path in base and base[path].data == file.data):
            continue
        try:
            found = problems(file.data)
            before = problems(base[path].data) if path in base else frozenset()
        except (SyntaxError, ValueError, RecursionError):
            return False
        if found - before:
            return False
    return True
