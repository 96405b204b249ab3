"""The table of built-in domains."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from leadscrew.domains import BUILTIN
from leadscrew.domains.masks import existing
from leadscrew.ports import Domain


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_name_leads_to_a_domain_of_that_name(name: str) -> None:
    module, _, attribute = BUILTIN[name].partition(":")
    cls = getattr(importlib.import_module(module), attribute)
    assert issubclass(cls, Domain)
    assert cls.name == name
    kinds = {p.kind for p in inspect.signature(cls).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_the_table_loads_no_domain() -> None:
    code = "import sys, leadscrew.domains; sys.exit(any(m.startswith('leadscrew.domains.') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_masks_inside_others_are_left_out(tmp_path: object) -> None:
    from pathlib import Path

    root = Path(str(tmp_path))
    (root / "a" / "b").mkdir(parents=True)
    (root / "c").mkdir()
    assert existing([f"{root}/*", f"{root}/a/b", f"{root}/none"]) == [f"{root}/a", f"{root}/c"]
