"""The pure part of the genetic proposer: what it may and may not do to a program."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leadscrew.core.program import File, Program, Region
from leadscrew.errors import ConfigError
from leadscrew.operators.genetic import MOVES, Options, mutate
from leadscrew.operators.genetic.names import problems, tree_digest

FOLDER = Path(__file__).parent / "test_genetic_programs"
TOY = {
    name: Program.of(
        {
            "main.py": (FOLDER / f"{name}.py").read_text(),
            "prompt.md": f"# {name}\n\nAnswer with one label.\nBe brief.\n",
            "data.bin": b"\0\1\2",
        }
    )
    for name in ("words_1nn", "chars_5nn", "bayes", "centroid", "majority")
}
ZOO = {
    "decorated": '''import functools


@functools.lru_cache(maxsize=8)
def twice(x: int, *, by: int = 2) -> int:
    """Twice."""
    return x * by


PARTS = (twice,)
''',
    "async": """import asyncio


async def wait(n=3):
    async with asyncio.Lock():
        async for item in stream():
            n += item
    return [x async for x in stream() if x > 0]


async def stream():
    for i in range(4):
        yield i


PARTS = (wait, stream)
""",
    "matching": """import math as m

LIMITS = {"low": 1, "high": 2.5}


def kind(value):
    match value:
        case {"a": 1, **rest} if rest:
            return f"{value!r:>{LIMITS['low']}} {m.pi:.2f}"
        case [1, 2, *others]:
            return others
        case int() | float() as number if (half := number / 2) > 3:
            return half
        case _:
            return None


PARTS = (kind,)
""",
    "nested": """from __future__ import annotations

import typing as t

if t.TYPE_CHECKING:
    from collections.abc import Callable

STEP: t.Final[int] = 3
a, b = 1, 2.0
x = 1; y = x + 2


class Outer:
    size = STEP

    class Inner:
        def get(self) -> int:
            def deep(k: int = STEP) -> int:
                nonlocal_sum = 0
                for i in range(k):
                    nonlocal_sum += i
                return nonlocal_sum
            return deep()

    def make(self) -> Callable[[], int]:
        global a
        a = self.size
        return lambda: a + b


try:
    import numpy
except ImportError:
    numpy = None

PARTS = (Outer, Outer.Inner)
""",
    "star": "from math import *\n\n\ndef area(r):\n    return pi * r ** 2\n\n\nPARTS = (area,)\n",
    "tabs": "def f(x):\n\tif x > 1:\n\t\tx -= 1\n\t\tx *= 3\n\treturn x\n\n\nPARTS = (f,)\n",
    "crlf": "A = 1\r\n\r\n\r\ndef g(x):\r\n    y = x + A\r\n    y += 2\r\n    return y\r\n\r\n\r\nPARTS = (g,)\r\n",
    "two_spaces": "def h(x):\n  # why\n  y = x\n  z = y and x\n  return min(y, z)\nPARTS = (h,)",
    "latin": "# -*- coding: latin-1 -*-\nNAME = 'caf\xe9'\nSIZE = 3\nRATE = 0.5\n\n\ndef p():\n    return NAME\n\n\nPARTS = (p,)\n",
    "bom": "\ufeffB = [1, 2]\n\n\ndef q():\n    return B\n\n\nPARTS = (q,)\n",
    "prompt": 'TEXT = """\nBe kind.\nBe brief.\nBe right.\n"""\n\n\ndef r():\n    return TEXT\n\n\nPARTS = (r,)\n',
    "empty": "",
    "comment": "# nothing here\n",
    "docstring": '"""Only this."""\n',
    "broken": "def f(:\n    pass\n",
    "nul": "x = 1\0\n",
}


def as_bytes(name: str) -> bytes:
    return ZOO[name].encode("latin-1" if name == "latin" else "utf-8")


def programs() -> st.SearchStrategy[Program]:
    odd = st.sampled_from(sorted(ZOO)).map(lambda name: Program.of({"main.py": as_bytes(name), "notes.txt": name}))
    return st.one_of(st.sampled_from(sorted(TOY)).map(TOY.__getitem__), odd)


LAW = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@LAW
@given(base=programs(), donors=st.lists(programs(), max_size=3), seed=st.integers(0, 10**6))
def test_what_holds_for_every_mutation(base: Program, donors: list[Program], seed: int) -> None:
    done = mutate(base, donors, random.Random(seed))
    again = mutate(base, donors, random.Random(seed))
    assert done == again
    if done is None:
        return
    new = done.program
    assert tree_digest(new) not in {tree_digest(base), *(tree_digest(donor) for donor in donors)}
    assert set(done.moves) <= set(MOVES)
    assert done.moves
    assert done.text
    assert all(0 <= i < len(donors) for i in done.used_donors)
    for path, file in new.items():
        if path in base and base[path].data == file.data:
            continue
        if path.endswith(".py"):
            ast.parse(file.data)
            before = problems(base[path].data) if path in base else frozenset()
            assert problems(file.data) <= before
        else:
            assert path.endswith((".md", ".txt"))


@LAW
@given(base=programs(), donors=st.lists(programs(), max_size=2), seed=st.integers(0, 10**6))
def test_only_the_region_changes(base: Program, donors: list[Program], seed: int) -> None:
    done = mutate(base, donors, random.Random(seed), region=Region(("**/*.md", "*.txt")))
    if done is not None:
        assert [path for path in done.program if done.program[path] != base[path]] in (["prompt.md"], ["notes.txt"])
        assert list(done.program) == list(base)


@pytest.mark.parametrize(
    "name", ["tabs", "crlf", "two_spaces", "latin", "bom", "nested", "matching", "async", "prompt"]
)
def test_lines_that_no_move_touched_stay_byte_for_byte(name: str) -> None:
    base = Program.of({"main.py": as_bytes(name)})
    old = base["main.py"].data
    seen = 0
    for seed in range(40):
        options = Options.of({"weights": {move: 0 for move in ("graft", "exchange", "drop", "compose")}})
        done = mutate(base, [], random.Random(seed), options)
        if done is None:
            continue
        new = done.program["main.py"].data
        kept = [line for line in new.splitlines(keepends=True) if line in old.splitlines(keepends=True)]
        assert len(kept) >= len(new.splitlines()) - 4
        assert (b"\r\n" in old) == (b"\r\n" in new)
        assert new.count(b"\n") == new.count(b"\r\n") or name != "crlf"
        assert (b"\t" in old) == (b"\t" in new)
        assert new.startswith(b"\xef\xbb\xbf") == (name == "bom")
        assert new.endswith(b"\n") == old.endswith(b"\n")
        seen += 1
    assert seen >= 20


def test_a_grafted_piece_takes_the_bases_indentation_and_line_ends() -> None:
    base = Program.of({"main.py": b"PARTS = []\r\n\r\n\r\ndef f():\r\n\treturn 1\r\n"})
    donor = Program.of({"main.py": "K = 2\n\n\ndef g():\n    if K:\n        return K\n\n\nPARTS = [g]\n"})
    assert only("graft", base, donor)["main.py"].data == (
        b"K = 2\r\n\r\n\r\ndef g():\r\n\tif K:\r\n\t\treturn K\r\n\r\n\r\nPARTS = [g]\r\n"
        b"\r\n\r\ndef f():\r\n\treturn 1\r\n"
    )


def only(move: str, base: Program, donor: Program, seed: int = 0) -> Program:
    weights = {name: (1 if name == move else 0) for name in MOVES}
    done = mutate(base, [donor], random.Random(seed), Options.of({"weights": weights, "tries": 200}))
    assert done is not None
    assert done.moves == (move,)
    return done.program


RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
from main import Classifier, VOTERS
model = Classifier()
texts = ["red apple pie", "green apple", "blue whale sea", "deep sea fish", "apple tart", "whale song"]
labels = ["fruit", "fruit", "ocean", "ocean", "fruit", "ocean"]
model.learn_from_batch([{"input": t, "ground_truth": y} for t, y in zip(texts, labels)])
print(json.dumps([len(VOTERS), [model.predict(t) for t in ("an apple", "a whale in the sea")]]))
"""


@pytest.mark.parametrize(("base", "donor"), [("words_1nn", "bayes"), ("bayes", "centroid"), ("majority", "chars_5nn")])
def test_a_graft_brings_what_it_needs_and_the_merged_program_runs(base: str, donor: str, tmp_path: Path) -> None:
    for seed in range(20):
        merged = only("graft", TOY[base], TOY[donor], seed)
        if "Voter, " in merged.text("main.py"):
            break
    (tmp_path / "main.py").write_bytes(merged["main.py"].data)
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUN, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    count, answers = json.loads(done.stdout)
    assert count == 2
    assert answers[0] == "fruit"
    assert answers[1] == "ocean" or base == "majority"


def test_a_clash_of_names_is_renamed_in_everything_that_was_brought() -> None:
    base = Program.of({"main.py": "K = 1\n\n\ndef f():\n    return K\n\n\nPARTS = [f]\n"})
    donor = Program.of({"main.py": "K = 5\n\n\ndef g(a):\n    return a.K + dict(K=K)['K'] + K\n\n\nPARTS = [g]\n"})
    texts = {only("graft", base, donor, seed).text("main.py") for seed in range(30)}
    both = [text for text in texts if "PARTS = [f, g]" in text]
    assert any("K_2 = 5" in text and "return a.K + dict(K=K_2)['K'] + K_2" in text for text in both)
    assert any("K_2" not in text for text in both)


def test_a_name_that_is_local_in_what_is_brought_is_never_renamed() -> None:
    base = Program.of({"main.py": "def K():\n    return 1\n\n\nPARTS = [K]\n"})
    donor = Program.of(
        {"main.py": "K = 5\n\n\ndef g(x):\n    return K\n\n\ndef h(K):\n    return g(K)\n\n\nPARTS = [h]\n"}
    )
    options = Options.of({"weights": {name: (1 if name == "graft" else 0) for name in MOVES}})
    assert all(mutate(base, [donor], random.Random(seed), options) is None for seed in range(5))


def test_imports_come_along_and_so_do_the_donors_own_modules() -> None:
    base = Program.of({"main.py": '"""Doc."""\n\nimport os\n\nPARTS = [os.getcwd]\n'})
    donor = Program.of(
        {
            "main.py": "from lib.text import fold as f\nimport math\n\n\ndef g(x):\n    return f(x) * math.pi\n\n\nPARTS = [g]\n",
            "lib/__init__.py": "",
            "lib/text.py": "from lib.more import K\n\n\ndef fold(x):\n    return K\n",
            "lib/more.py": "K = 1\n",
            "other.py": "never = 1\n",
        }
    )
    new = only("graft", base, donor)
    assert set(new) == {"main.py", "lib/__init__.py", "lib/text.py", "lib/more.py"}
    assert new.text("main.py").startswith('"""Doc."""\n\nimport os\n')
    assert "from lib.text import fold as f\n" in new.text("main.py")
    assert "import math\n" in new.text("main.py")


def test_a_donors_module_that_differs_from_the_bases_stops_the_graft() -> None:
    base = Program.of({"main.py": "PARTS = []\n", "lib.py": "K = 1\n"})
    donor = Program.of({"main.py": "from lib import K\n\nPARTS = [K]\n", "lib.py": "K = 2\n"})
    options = Options.of({"weights": {name: (1 if name == "graft" else 0) for name in MOVES}})
    assert mutate(base, [donor], random.Random(1), options, region=Region(("main.py",))) is None


def test_the_future_import_stays_first() -> None:
    base = Program.of({"main.py": '"""Doc."""\nimport os\nPARTS = [os]\n'})
    donor = Program.of(
        {"main.py": "from __future__ import annotations\n\n\ndef g(x: Later) -> Later: ...\n\n\nPARTS = [g]\n"}
    )
    options = Options.of({"weights": {name: (1 if name == "graft" else 0) for name in MOVES}})
    # Its hints name what exists nowhere, so the graft must be refused rather than bring an unresolved name.
    assert mutate(base, [donor], random.Random(1), options) is None


def test_dropping_an_element_takes_its_own_helpers_along_and_leaves_shared_ones() -> None:
    base = Program.of(
        {
            "main.py": "K = 1\nJ = 2\n\n\ndef shared():\n    return 1\n\n\ndef f():\n    return shared() + K\n\n\n"
            "def g():\n    return shared() + J\n\n\ndef predict(x):\n    return [part() for part in PARTS]\n\n\n"
            "PARTS = [f, g]\n"
        }
    )
    seen = set()
    for seed in range(10):
        text = only("drop", base, base, seed).text("main.py")
        seen.add("PARTS = [f]" in text)
        assert "def shared" in text
        assert "def predict" in text
        assert ("def f" in text) == ("K = 1" in text) == ("PARTS = [f]" in text)
        assert ("def g" in text) == ("J = 2" in text) == ("PARTS = [g]" in text)
    assert seen == {True, False}


def test_one_element_per_line_stays_so() -> None:
    base = Program.of({"main.py": "def f(): ...\n\n\nPARTS = [\n    f,  # first\n]\n"})
    donor = Program.of({"main.py": "def g(): ...\n\n\nPARTS = [g]\n"})
    text = only("graft", base, donor).text("main.py")
    assert text == "def f(): ...\n\n\ndef g(): ...\n\n\nPARTS = [\n    f,  # first\n    g,\n]\n"


def test_dictionaries_are_merged_by_key() -> None:
    base = Program.of({"main.py": 'def f(): ...\n\n\nROUTES = {"a": f}\n'})
    donor = Program.of({"main.py": 'def g(): ...\n\n\nROUTES = {"a": g, "b": g}\n'})
    assert 'ROUTES = {"a": f, "b": g}' in only("graft", base, donor).text("main.py")


def test_exchange_takes_a_method_with_the_methods_it_calls() -> None:
    base = Program.of(
        {"main.py": "class A:\n    def run(self, x):\n        return x\n\n    def stay(self):\n        return 0\n"}
    )
    donor = Program.of(
        {
            "main.py": "import math\n\n\nclass A:\n    def run(self, x):\n        return self.help(x)\n\n"
            "    def help(self, x):\n        return math.sqrt(x)\n\n    def stay(self):\n        return 0\n\n\nZ = 1\n"
        }
    )
    text = only("exchange", base, donor).text("main.py")
    assert text.startswith("import math\n")
    assert "return self.help(x)" in text
    assert "def help(self, x):" in text
    assert "Z = 1" not in text


def test_constants_keep_their_kind_and_stay_near() -> None:
    base = Program.of({"main.py": "N = 8\nRATE = 0.25\nON = True\nZERO = 0\nHUGE = 2_147_483_647\nNAME = 'a1'\n"})
    for seed in range(60):
        done = mutate(base, [], random.Random(seed), Options.of({"weights": {m: int(m == "constant") for m in MOVES}}))
        assert done is not None
        values: dict[str, object] = {}
        exec(done.program.text("main.py"), values)
        assert isinstance(values["N"], int)
        assert 1 <= int(str(values["N"])) <= 64
        assert isinstance(values["RATE"], float)
        assert 0 < values["RATE"] <= 1
        assert isinstance(values["ON"], bool)
        assert values["ZERO"] in (0, 1, 2, 3)
        assert values["HUGE"] == 2_147_483_647
        assert values["NAME"] == "a1"


def test_a_broken_file_leaves_only_the_other_files_to_change() -> None:
    base = Program.of({"main.py": as_bytes("broken"), "prompt.md": "One.\nTwo.\n"})
    done = mutate(base, [TOY["bayes"]], random.Random(0))
    assert done is not None
    assert done.moves[-1] == "lines"
    assert done.program["main.py"] == base["main.py"]
    assert mutate(Program.of({"main.py": as_bytes("broken")}), [TOY["bayes"]], random.Random(0)) is None
    assert mutate(Program.of({}), [TOY["bayes"]], random.Random(0)) is None


def test_size_is_capped_and_modes_are_kept() -> None:
    base = Program({**TOY["bayes"], "main.py": File(TOY["bayes"]["main.py"].data, executable=True)})
    options = Options.of({"max_bytes": 10})
    for seed in range(15):
        done = mutate(base, [TOY["centroid"]], random.Random(seed), options)
        if done is not None:
            assert done.program.size <= base.size
            assert done.program["main.py"].executable


def test_many_generations_do_not_grow_without_bound() -> None:
    options = Options.of({"max_bytes": 9_000})
    rng = random.Random(5)
    program = TOY["words_1nn"]
    for _ in range(60):
        done = mutate(program, [TOY["bayes"], TOY["centroid"], TOY["chars_5nn"]], rng, options)
        assert done is not None
        program = done.program
        assert program.size <= 9_000


def test_a_program_that_is_known_is_not_made_again() -> None:
    known: set[str] = set()
    base = Program.of({"main.py": "ON = True\n"})
    for _ in range(4):
        done = mutate(base, [], random.Random(1), known=known.__contains__)
        if done is None:
            break
        assert tree_digest(done.program) not in known
        known.add(tree_digest(done.program))
    assert len(known) == 1


@pytest.mark.parametrize(
    ("given_options", "key"),
    [
        ({"trys": 3}, "trys"),
        ({"tries": 0}, "tries"),
        ({"donors": True}, "donors"),
        ({"frontier": 1.5}, "frontier"),
        ({"frontier": 0.9, "any": 0.2}, "frontier"),
        ({"credit": 1}, "credit"),
        ({"weights": {"grafts": 1}}, "weights.grafts"),
        ({"weights": {"graft": -1}}, "weights.graft"),
        ({"weights": 3}, "weights"),
        ({"weights": {move: 0 for move in MOVES}}, "weights"),
    ],
)
def test_wrong_options_are_named(given_options: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Options.of(given_options)
    assert caught.value.key == key


def test_an_exchange_that_would_leave_the_donor_alone_is_not_made() -> None:
    base = Program.of({"main.py": "K = 1\n\n\ndef help(x):\n    return x\n\n\ndef solve(x):\n    return help(x) + K\n"})
    donor = Program.of(
        {"main.py": "K = 1\n\n\ndef other(x):\n    return x * 2\n\n\ndef solve(x):\n    return other(x) + K\n"}
    )
    options = Options.of({"weights": {name: int(name == "exchange") for name in MOVES}})
    for seed in range(30):
        done = mutate(base, [donor], random.Random(seed), options)
        # All that remains is to give the base's own helper another body.
        assert done is None or "def solve(x):\n    return help(x) + K\n" in done.program.text("main.py")


def test_a_shuffled_copy_has_the_same_digest_and_a_used_import_counts() -> None:
    one = Program.of({"a.py": '"""Doc."""\nimport re\n\nK = 1\n\n\ndef f():\n    return K\n'})
    two = Program.of({"a.py": "def f():\n    return K  # one\n\n\nK = 1\n"})
    assert tree_digest(one) == tree_digest(two)
    left = Program.of({"a.py": "from math import sin as f\n\n\ndef g(x):\n    return f(x)\n"})
    right = Program.of({"a.py": "from math import cos as f\n\n\ndef g(x):\n    return f(x)\n"})
    assert tree_digest(left) != tree_digest(right)
    assert tree_digest(Program.of({"a.py": "x = 1\n"})) != tree_digest(Program.of({"a.py": "x = 2\n"}))
