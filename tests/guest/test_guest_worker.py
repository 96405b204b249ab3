"""The worker itself, as a plain process: what programs cannot reach, and the rules of its protocol."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from support.guest_worker import GUEST, worker_in


def test_no_program_holds_the_protocol_pipes(tmp_path: Path) -> None:
    source = """
import os
def inodes(pid):
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            info = os.stat(f"/proc/{pid}/fd/{fd}")
            found[int(fd)] = info.st_ino
        except OSError:
            pass
    return found
AT_LOAD = inodes("self")
def solve(input):
    return [sorted(AT_LOAD.values()), sorted(inodes("self").values()), os.read(0, 10).decode()]
"""
    with worker_in(tmp_path) as worker:
        worker.load(source)
        assert worker.process.stdin is not None
        assert worker.process.stdout is not None
        ours = {os.fstat(pipe.fileno()).st_ino for pipe in (worker.process.stdin, worker.process.stdout)}
        at_load, in_trial, stdin = worker.answer(1)
    assert not ours & set(at_load)
    assert not ours & set(in_trial)
    assert stdin == ""


def test_a_trial_cannot_leave_a_mark_on_the_pipes_that_all_trials_share(tmp_path: Path) -> None:
    source = """
import fcntl, os
def state():
    out = []
    for fd in range(256):
        try:
            out.append([fd, fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETOWN)])
            out.append(fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ))
        except OSError:
            pass
    return out
def solve(input):
    before = state()
    for fd in range(256):
        for command, value in ((fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND), (fcntl.F_SETOWN, os.getpid()),
                               (fcntl.F_SETPIPE_SZ, 4096)):
            try:
                fcntl.fcntl(fd, command, value)
            except OSError:
                pass
    return [before, state() != before]
"""
    with worker_in(tmp_path) as worker:
        worker.load(source)
        answers = [worker.answer(n) for n in range(3)]
    assert answers[0][1], "the control: marks can be left"
    assert answers[0] == answers[1] == answers[2]


def test_no_nonce_is_in_the_memory_of_a_process_that_runs_a_program(tmp_path: Path) -> None:
    source = """
import re
def solve(input):
    # The two halves are looked for apart, or the search itself would put the whole into memory.
    first, second = (half[::-1].encode() for half in input)
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, mode = line.split()[:2]
            if not mode.startswith("rw"):
                continue
            start, end = (int(x, 16) for x in span.split("-"))
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, OverflowError, ValueError):
                continue
            at = data.find(first)
            while at >= 0:
                found += data[at + len(first): at + len(first) + len(second)] == second
                at = data.find(first, at + 1)
    return found
"""
    if os.geteuid() != 0 and not os.access("/proc/self/mem", os.R_OK):
        pytest.skip("this kernel shows no process its own memory")
    with worker_in(tmp_path) as worker:
        load_nonce = "load" + secrets.token_hex(14)
        (tmp_path / "program" / "main.py").write_text(source)
        worker.ask({"op": "hello"}, "hello", load_nonce)
        worker.load(source)
        trial_nonce = "trial" + secrets.token_hex(14)
        halves = [[nonce[:16][::-1], nonce[16:][::-1]] for nonce in (worker.nonce, load_nonce, trial_nonce)]
        for pair in halves:
            report = worker.trial(pair, nonce=trial_nonce)
            if "PermissionError" in report.get("message", ""):
                pytest.skip("an undumpable process may not read its own memory here")
            assert report["raw"] == "0"
        # The control: what the input itself holds is found.
        assert int(worker.trial([halves[0][0], ""])["raw"]) > 0


def test_what_was_printed_belongs_to_its_trial(tmp_path: Path) -> None:
    source = """
import os, sys
print("loading")
def solve(input):
    os.write(1, b"raw ")
    print("out", input)
    os.write(2, b"err")
    os.system("echo child")
    return 1
"""
    with worker_in(tmp_path) as worker:
        loaded = worker.load(source)
        reports = [worker.trial(n) for n in range(3)]
    assert loaded["stdout"] == "loading\n"
    assert [r["stdout"] for r in reports] == [f"raw out {n}\nchild\n" for n in range(3)]
    assert [r["stderr"] for r in reports] == ["err"] * 3


def test_scratch_folders_are_emptied_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    source = f"""
import os
def solve(input):
    os.makedirs("a/b/c")
    open("a/b/c/d", "w").close()
    os.symlink({str(outside)!r}, "a/link")
    os.symlink({str(outside)!r}, "link")
    os.chmod("a/b", 0)
    return sorted(os.listdir("."))
"""
    with worker_in(tmp_path) as worker:
        worker.load(source)
        assert worker.answer(1) == worker.answer(2) == ["a", "link"]
        worker.trial(3)
        worker.ask({"op": "hello"}, "hello")
        assert os.listdir(tmp_path / "work") == []
    assert (outside / "precious").read_text() == "x"


def test_a_folder_that_was_not_empty_at_first_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "x").write_text("x")
    with worker_in(tmp_path) as worker:
        worker.load("def solve(input): return 1")
        worker.trial(1)
        worker.ask({"op": "hello"}, "hello")
    assert (tmp_path / "precious" / "x").read_text() == "x"


def test_the_class_defined_in_the_module_counts_not_an_imported_one(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "shots.py").write_text(
        "class AFewShots:\n    def predict(self, x):\n        return 'imported'\n    def learn(self, b):\n        pass\n"
    )
    source = (
        "from shots import AFewShots\n"
        "class Zed(AFewShots):\n    def predict(self, x):\n        return 'zed'\n"
        "class Other(AFewShots):\n    def predict(self, x):\n        return 'other'\n"
    )
    for more, expected in (("", "other"), ("PROGRAM = Zed\n", "zed"), ("PROGRAM = 'Zed'\n", "zed")):
        with worker_in(tmp_path) as worker:
            assert worker.load(source + more, "predict")["outcome"] == "ok"
            assert json.loads(worker.trial(1, "predict")["raw"]) == expected
    for more in ("PROGRAM = AFewShots\n", "PROGRAM = 'Nobody'\n"):
        with worker_in(tmp_path) as worker:
            loaded = worker.load(source + more, "predict")
            assert loaded["outcome"] == "invalid"
            assert "PROGRAM" in loaded["message"]
    with worker_in(tmp_path) as worker:
        assert worker.load("from shots import AFewShots\n", "predict")["outcome"] == "invalid"


def test_a_class_with_one_argument_gets_the_model(tmp_path: Path) -> None:
    source = (
        "class A:\n    def __init__(self, llm):\n        self.llm = llm\n"
        "    def predict(self, x):\n        return self.llm.__name__, {}\n    def learn(self, b):\n        pass\n"
    )
    with worker_in(tmp_path) as worker:
        assert worker.load(source, "predict")["outcome"] == "ok"
        assert worker.trial(1, "predict")["raw"] == '"llm"'


SMOKE = """
class A:
    def __init__(self):
        self.n = 0
    def predict(self, x):
        {predict}
    def learn(self, batch):
        self.n += len(batch)
    def get_state(self):
        {get}
    def set_state(self, text):
        {put}
"""


@pytest.mark.parametrize(
    ("predict", "get", "put", "says"),
    [
        ("return self.n", "return str(self.n)", "self.n = int(text)", ""),
        ("return 1 / self.n", "return str(self.n)", "self.n = int(text)", "before anything was learned"),
        ("return self.n", "return self.n", "self.n = int(text)", "must return text"),
        ("return self.n", "raise OSError('lost')", "self.n = 1", "get_state() failed"),
        ("return self.n", "return 'x'", "self.n = int(text)", "set_state()"),
        ("return self.n + 0", "return ''", "self.n = text", "predict() after set_state()"),
    ],
)
def test_the_smoke_test_of_a_learner(tmp_path: Path, predict: str, get: str, put: str, says: str) -> None:
    items = [{"input": n, "expected": n} for n in range(3)]
    with worker_in(tmp_path) as worker:
        loaded = worker.load(SMOKE.format(predict=predict, get=get, put=put), "predict", train=items, smoke=True)
    assert (loaded["outcome"], says in loaded["message"]) == ("invalid" if says else "ok", True), loaded


def test_signatures_are_checked_before_anything_runs(tmp_path: Path) -> None:
    good = ["def solve(x): return 1", "def solve(x, seed): return 1", "def solve(x, seed=0, *, k=1): return 1",
            "def solve(*args): return 1", "solve = lambda x: 1", "import functools\nsolve = functools.partial(max, 1)",
            "class C:\n    def __call__(self, x): return 1\nsolve = C()", "def solve(x, a=1, b=2, c=3): return 1"]  # fmt: skip
    bad = ["def solve(): return 1", "def solve(a, b, c): return 1", "def solve(x, *, k): return 1", "solve = 3"]
    for sources, outcome in ((good, "ok"), (bad, "invalid")):
        for source in sources:
            with worker_in(tmp_path) as worker:
                assert worker.load(source)["outcome"] == outcome, source


def test_the_guest_imports_the_standard_library_only() -> None:
    own = {path.stem for path in GUEST.glob("*.py")}
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import leadscrew_supervisor, leadscrew_command\n"
        "print(' '.join({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(GUEST)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert loaded - own - set(sys.stdlib_module_names) == {"__main__"}
    assert not loaded & {"asyncio", "typing", "dataclasses", "re", "inspect", "json", "enum", "subprocess"}
