"""Seed and baseline programs, which lie in the package as data files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from leadscrew.core.program import Program
from leadscrew.engine.folders import read_folder

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


@cache
def template(name: str) -> Program:
    """Return a program of the package's own by its path among the templates.

    >>> list(template("classifiers/majority"))
    ['main.py']
    """
    return read_folder(TEMPLATES / name)


CLASSIFIERS = ("words_1nn", "majority", "words_5nn", "chars_1nn", "chars_5nn", "chars_centroid", "bayes")
"""Text classifiers without a model. The first is the one to start from."""


def classifiers() -> dict[str, Program]:
    """Return the classifiers by name, the one to start from first."""
    return {name: template(f"classifiers/{name}") for name in CLASSIFIERS}


SOLVERS = ("no_memory", "fewshot_all")
"""Text classifiers that ask a model. The first is the one to start from."""


def solvers() -> dict[str, Program]:
    """Return the classifiers that ask a model by name, the one to start from first."""
    return {name: template(f"solvers/{name}") for name in SOLVERS}
