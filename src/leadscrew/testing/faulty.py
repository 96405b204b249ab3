"""Faulty programs: one for every way in which a program goes wrong, and how it must be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leadscrew.core.task import Interface
from leadscrew.core.trial import Outcome
from leadscrew.ports import Item

_SOLVE = Interface("solve")
_PREDICT = Interface("predict")
_WORK = Interface("workspace")
_CRASH, _INVALID, _BAD = frozenset({Outcome.CRASH}), frozenset({Outcome.INVALID}), frozenset({Outcome.BAD_OUTPUT})
_OK, _TIMEOUT, _OOM = frozenset({Outcome.OK}), frozenset({Outcome.TIMEOUT}), frozenset({Outcome.OOM})


@dataclass(frozen=True, slots=True)
class Faulty:
    """A program, the outcomes that are right for each of its trials, and a text the message must hold."""

    name: str
    files: Mapping[str, str]
    outcomes: frozenset[Outcome]
    says: str = ""
    interface: Interface = _SOLVE
    train: tuple[Item, ...] = field(default=())


def _f(
    name: str,
    source: str,
    outcomes: frozenset[Outcome],
    says: str = "",
    interface: Interface = _SOLVE,
    train: int = 0,
) -> Faulty:
    return Faulty(
        name, {"main.py": source}, outcomes, says, interface, tuple(Item(f"i{n}", n, n) for n in range(train))
    )


def _body(code: str) -> str:
    return "import os, sys, time, json, signal\ndef solve(input):\n" + "".join(f"    {x}\n" for x in code.split("\n"))


FAULTY: tuple[Faulty, ...] = (
    # -- cannot be loaded
    _f("syntax error", "def solve(input)\n    return 1\n", _INVALID, "SyntaxError"),
    _f("null bytes", "x = 1\0\n", _INVALID, "null bytes"),
    _f("missing function", "def solver(input):\n    return 1\n", _INVALID, "does not define 'solve'"),
    _f("wrong signature", "def solve():\n    return 1\n", _INVALID, "solve()"),
    _f("keyword-only", "def solve(input, *, mode):\n    return 1\n", _INVALID, "solve("),
    _f("missing module", "import nowhere_to_be_found\n", _INVALID, "ModuleNotFoundError"),
    _f("raises at import", "1 / 0\n", _INVALID, "ZeroDivisionError"),
    _f("exits at import", "import sys\nsys.exit(0)\n", _INVALID, "SystemExit"),
    _f("leaves at import", "import os\nos._exit(0)\n", _INVALID, "left the process"),
    _f("loops at import", "while True:\n    pass\n", _TIMEOUT, "loading"),
    _f("closes all at import", "import os\nos.closerange(0, 4096)\ndef solve(i):\n    return 1\n", _INVALID, "left"),
    _f("no entry file", "", _INVALID, "does not define"),
    Faulty("other entry file", {"other.py": "def solve(input):\n    return 1\n"}, _INVALID, "no readable file"),
    # -- crashes
    _f("raises", _body("return 1 / 0"), _CRASH, "ZeroDivisionError"),
    _f("recursion", _body("return solve(input)"), _CRASH, "RecursionError"),
    _f("sys.exit", _body("sys.exit(0)"), _CRASH, "SystemExit"),
    _f("keyboard interrupt", _body("raise KeyboardInterrupt"), _CRASH, "KeyboardInterrupt"),
    _f("generator exit", _body("raise GeneratorExit"), _CRASH, "GeneratorExit"),
    _f("os._exit", _body("os._exit(0)"), _CRASH, "without an answer"),
    _f("segmentation fault", _body("os.kill(os.getpid(), signal.SIGSEGV)"), _CRASH, "signal 11"),
    _f("kills itself", _body("os.kill(os.getpid(), 9)"), _CRASH, "signal 9"),
    _f("kills everything", _body("os.kill(-1, 9)\ntime.sleep(9)"), _CRASH),
    _f("kills its parents", _body("os.kill(os.getppid(), 9)\nos.kill(2, 9)\ntime.sleep(9)"), _CRASH),
    _f("unprintable error", "class E(Exception):\n    def __str__(self):\n        raise self\n"
       "def solve(input):\n    raise E\n", _CRASH),
    _f("closes all", _body("os.closerange(0, 4096)\nreturn 1"), _CRASH, "without an answer"),
    _f("asks a model", "from leadscrew_guest import llm\ndef solve(input):\n    return llm('x')\n", _CRASH, "no"),
    # -- takes too much
    _f("loops", _body("while True:\n    pass"), _TIMEOUT, "s of"),
    _f("sleeps", _body("time.sleep(30)\nreturn 1"), _TIMEOUT, "s of"),
    _f("ignores signals", _body("for n in (1, 2, 15, signal.SIGXCPU): signal.signal(n, signal.SIG_IGN)\n"
       "while True: pass"), _TIMEOUT, "s of"),
    _f("burns in children", _body("for _ in range(3): os.fork()\nwhile True: pass"), _TIMEOUT, "s of"),
    _f("stops its parent", _body("os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(30)"), _TIMEOUT),
    _f("memory", _body("x = []\nwhile True: x.append(bytearray(10**7))"), _OOM),
    _f("endless output", _body("while True: print('x' * 10**4)"), _TIMEOUT),
    # -- answers what is no answer
    _f("nan", _body("return [1, float('nan')]"), _BAD, "not finite"),
    _f("infinity", _body("return {'x': float('-inf')}"), _BAD, "not finite"),
    _f("huge integer", _body("return 10**5000"), _BAD, "digits"),
    _f("object", _body("return object()"), _BAD, "type object"),
    _f("set", _body("return {1, 2}"), _BAD, "type set"),
    _f("bytes", _body("return b'x'"), _BAD, "type bytes"),
    _f("number as key", _body("return {1: 2}"), _BAD, "keys must be text"),
    _f("deep", _body("x = []\nfor _ in range(10**5): x = [x]\nreturn x"), _BAD, "nesting"),
    _f("circle", _body("x = []\nx.append(x)\nreturn x"), _BAD, "nesting"),
    _f("half a surrogate", _body("return chr(0xd800)"), _BAD, "surrogate"),
    _f("long answer", _body("return 'x' * 10**6"), _BAD, "KiB"),
    _f("writes to every descriptor", _body("for fd in range(4096):\n    try: os.write(fd, b'{\"id\": 3}\\n' * 9)\n"
       "    except OSError: pass\nreturn 1"), _BAD | _CRASH),
    _f("raw nan past the check", "import leadscrew_zygote\nleadscrew_zygote.encode = lambda answer: b'NaN'\n"
       "def solve(input):\n    return 1\n", _BAD, "not finite"),
    _f("raw junk past the check", "import leadscrew_zygote\nleadscrew_zygote.encode = lambda a: b'[' * 50000\n"
       "def solve(input):\n    return 1\n", _BAD, "nested"),
    # -- does odd things and still answers
    _f("prints a megabyte", _body("print('x' * 10**6)\nreturn 1"), _OK),
    _f("leaves a thread", "import threading, time\ndef solve(input):\n"
       "    threading.Thread(target=time.sleep, args=(60,)).start()\n    return 1\n", _OK),
    _f("thread at import", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
       "def solve(input):\n    return 1\n", _OK),
    _f("leaves a daemon", _body("if os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nreturn 1"), _OK),
    _f("child answers too", _body("os.fork()\nreturn 1"), _OK | _CRASH | _BAD),
    _f("replaces json", _body("json.dumps = json.loads = None\nsys.modules.clear()\nreturn 1"), _OK | _CRASH),
    _f("replaces os", _body("os.write = os._exit = os.fork = None\nreturn 1"), _OK | _CRASH),
    _f("fork bomb", _body("for _ in range(10**4):\n    try: os.fork()\n    except OSError: pass\ntime.sleep(30)"),
       _CRASH | _TIMEOUT | _OOM),
    _f("imported class", "from collections import Counter\nimport base\nfrom base import Base\n", _INVALID, "",
       _PREDICT),
    # -- learners
    _f("cannot learn", "def predict(input):\n    return 1\n", _INVALID, "learn", _PREDICT, 2),
    _f("constructor with two", "class A:\n    def __init__(self, a, b):\n        pass\n    def predict(self, x): pass\n"
       "    def learn(self, b): pass\n", _INVALID, "A()", _PREDICT, 2),
    _f("learning raises", "def predict(input):\n    return 1\ndef learn(batch):\n    1 / 0\n", _CRASH,
       "ZeroDivisionError", _PREDICT, 2),
    _f("learning hangs", "def predict(input):\n    return 1\ndef learn(batch):\n    while True: pass\n", _TIMEOUT,
       "learning", _PREDICT, 2),
    _f("learning leaves", "import os\ndef predict(input):\n    return 1\ndef learn(batch):\n    os._exit(1)\n", _CRASH,
       "learning", _PREDICT, 2),
    _f("predicting train raises", "ready = []\ndef predict(input):\n    return ready[0]\ndef learn(batch):\n"
       "    ready.append(1)\n", _OK, "", _PREDICT, 2),
    # -- workspaces
    _f("link in workspace", "import os\ndef work(input, folder):\n    os.symlink('/etc/passwd', folder + '/x')\n",
       _BAD, "no regular file", _WORK),
    _f("fifo in workspace", "import os\ndef work(input, folder):\n    os.mkfifo(folder + '/x')\n", _BAD,
       "no regular file", _WORK),
    _f("odd name in workspace", "def work(input, folder):\n    open(folder + '/a\\nb', 'w').close()\n", _BAD, "",
       _WORK),
    _f("no folder left", "import os\ndef work(input, folder):\n    os.rmdir(folder)\n", _BAD, "", _WORK),
    _f("huge workspace", "def work(input, folder):\n    with open(folder + '/x', 'wb') as f:\n"
       "        f.truncate(40 << 20)\n", _BAD, "MiB", _WORK),
    # -- commands
    Faulty("missing command", {"main.py": ""}, _INVALID, "cannot be run", Interface("solve", command=("nothing-here",))),
    Faulty("command leaves", {"main.py": ""}, _CRASH, "left", Interface("solve", command=("python3", "main.py"))),
    Faulty("command without answer", {"main.py": "input()\nprint('{}', flush=True)\ninput()\n"}, _BAD, "'answer'",
           Interface("solve", command=("python3", "main.py"))),
    Faulty("command reports", {"main.py": "input()\nprint('{\"error\": \"no idea\"}', flush=True)\ninput()\n"}, _CRASH,
           "no idea", Interface("solve", command=("python3", "main.py"))),
)  # fmt: skip
"""Limits are those of the suite: about a second of CPU, three of wall time, 256 MiB."""
