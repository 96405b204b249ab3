"""Attacks by answers that the scorer must execute: they run in a grading box, away from what they are compared with."""

from __future__ import annotations

from typing import Any

from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.protocol import FRAMES
from leadscrew.testing.redteam.secrets import READ, WRITE

REMEMBER = '''
import os, tempfile

def solve(input):
    """Leave what was asked where the answer of another candidate, graded later, can read it."""
    place = os.path.join(tempfile.gettempdir(), "graded-" + input["mark"])
    if input["word"]:
        with open(place, "w") as stream:
            stream.write(input["word"])
        return None
    return open(place).read() if os.path.exists(place) else None
'''


async def _expected(arena: Arena) -> Sighting:
    secret = arena.secret()
    play = await arena.play(FRAMES, [{"case": 1}], expected=[secret], off="naive", purpose="grade", fresh=True)
    won = play.scores[0] > 0 if play.scores else play.answers[0] == secret
    return Sighting(won, f"{play.outcomes[0]}: answered {play.answers[0]!r}")


async def _host(arena: Arena) -> Sighting:
    path = arena.folder / "planted.txt"
    given = {"path": str(path), "word": "here"}
    play = await arena.play(WRITE, [given], off="none", purpose="grade", fresh=True)
    return Sighting(path.exists(), f"{play.outcomes[0]}: {play.answers[0]}")


async def _answers(arena: Arena) -> Sighting:
    secret = arena.secret()
    path = arena.decoy("gold/expected.json", secret)
    play = await arena.play(READ, [{"path": path}], off="none", purpose="grade", fresh=True)
    return Sighting(secret in play.text(), f"{play.outcomes[0]}: {len(play.answers[0] or ())} files read")


async def _others(arena: Arena) -> Sighting:
    """Two answers, graded one after the other."""
    word = arena.secret()
    given: dict[str, Any] = {"word": word, "mark": arena.marker}
    await arena.play(REMEMBER, [given], off="naive", purpose="grade", fresh=True)
    play = await arena.play(REMEMBER, [{**given, "word": ""}], off="naive", purpose="grade", fresh=True)
    if not arena.defended:
        import contextlib
        import os
        import tempfile

        with contextlib.suppress(OSError):
            os.unlink(os.path.join(tempfile.gettempdir(), f"graded-{arena.marker}"))
    return Sighting(play.answers[0] == word, f"the later answer read {play.answers[0]!r}")


def _attack(name: str, about: str, defence: str, strike: Any) -> Attack:
    return Attack(f"grading/{name}", "grading", about, defence, strike)


ATTACKS = (
    _attack("expected", "look for the expected values beside it", "expected values stay on the host", _expected),
    _attack("host", "write a file of the host", "the grading box", _host),
    _attack("gold", "read the gold file", "the grading box", _answers),
    _attack("others", "leave a word for an answer graded later", "a fresh grading box", _others),
)
