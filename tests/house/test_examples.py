"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib

import pytest

from house.tree import DATA_ROOMS, modules, room_of_module

MODULES = sorted(m for m in modules() if room_of_module(m) not in DATA_ROOMS and not m.endswith("__main__"))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [t for name in MODULES for t in finder.find(importlib.import_module(name)) if t.examples]
    assert len(found) >= 10
