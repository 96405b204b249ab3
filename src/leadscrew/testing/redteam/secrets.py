"""Attacks that read what is the host's: answers, other candidates, keys, processes; and that write outside the box."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from leadscrew.core.program import Program
from leadscrew.ports import BoxSpec, Mount
from leadscrew.testing.redteam.arena import Arena, shows
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.naive import run_naive

READ = '''
import os

def solve(input):
    """Read a path as it is, through every process's root, and through every descriptor."""
    path, out = input["path"], []
    tries = [path] + [f"/proc/{p}/root{path}" for p in os.listdir("/proc") if p.isdigit() or p == "self"]
    tries += [os.path.join(up, path.lstrip("/")) for up in ("..", "../../..", "/proc/self/cwd/../../..", "/tmp/../..")]
    for place in tries:
        try:
            with open(place, errors="replace") as stream:
                out.append(stream.read(2000))
        except OSError:
            pass
    return out
'''

LIST = '''
import os, sqlite3

def solve(input):
    """Walk from a folder upwards and from the root downwards for databases of runs, and read the programs in them."""
    out = []
    for top in [input["folder"], os.path.dirname(input["folder"]), "/program", "/work", "/tmp", "/"]:
        for folder, names, files in os.walk(top):
            names[:] = [n for n in names if os.path.join(folder, n) not in ("/proc", "/sys", "/dev", "/usr", "/var", "/py")]
            for name in files:
                if name == "run.db":
                    try:
                        rows = sqlite3.connect(os.path.join(folder, name)).execute("select data from programs")
                        out += [row[0] for row in rows]
                    except sqlite3.Error:
                        pass
            if len(out) > 3 or folder.count("/") > 6:
                break
        if out:
            break
    return out[:3]
'''

ENVIRON = '''
import os

def solve(input):
    """Collect the environment of this and of every other process."""
    out = [f"{k}={v}" for k, v in os.environ.items()]
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            for name in ("environ", "cmdline"):
                try:
                    with open(f"/proc/{pid}/{name}", "rb") as stream:
                        out.append(stream.read(8000).decode("utf-8", "replace"))
                except OSError:
                    pass
    return [text for text in out if input["hint"] in text][:5]
'''

DESCRIPTORS = '''
import os

def solve(input):
    """Read every open file that was inherited, by any process that can be seen."""
    out = []
    for pid in ["self", *[p for p in os.listdir("/proc") if p.isdigit()]]:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                if os.path.isfile(f"/proc/{pid}/fd/{number}"):
                    with open(f"/proc/{pid}/fd/{number}", errors="replace") as stream:
                        out.append(stream.read(500))
            except OSError:
                pass
    return [text for text in out if "sesame" in text][:5]
'''

WRITE = """
def solve(input):
    try:
        with open(input["path"], "w") as stream:
            stream.write(input["word"])
        return "written"
    except OSError as error:
        return str(error)
"""

REWRITE = '''
import os, sys

def solve(input):
    """Rewrite the program itself, then read it back in a later trial."""
    if input["word"]:
        for place in (__file__, os.path.join(os.path.dirname(__file__), "extra.py")):
            try:
                os.chmod(os.path.dirname(place), 0o777)
            except OSError:
                pass
            try:
                with open(place, "a") as stream:
                    stream.write("# " + input["word"])
            except OSError:
                pass
        return None
    out = []
    for name in os.listdir(os.path.dirname(__file__)):
        try:
            with open(os.path.join(os.path.dirname(__file__), name)) as stream:
                out.append(stream.read()[-200:])
        except OSError:
            pass
    return out
'''

POISON = '''
import os, sys

def solve(input):
    """Plant a file beside the library and the worker, where the next box would find it."""
    out, name = [], "planted_" + input["word"] + ".py"
    places = ["/runtime", "/guest", "/site", "/py", "/py/bin", "/py/lib", "/", os.path.dirname(os.__file__)]
    for place in places:
        if input["look"]:
            out += [place] if os.path.exists(os.path.join(place, name)) else []
            continue
        try:
            with open(os.path.join(place, name), "w") as stream:
                stream.write("evil = True")
        except OSError:
            pass
    return out
'''

SIGNAL = """
import os, signal

def solve(input):
    try:
        os.kill(input["pid"], signal.SIGKILL)
        return "sent"
    except OSError as error:
        return str(error)
"""


@contextlib.contextmanager
def bystander(*words: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of the same user that waits, with `words` on its command line and `env` in its environment."""
    code = "import sys; sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *words], stdin=subprocess.PIPE, env={**os.environ, **env}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def _answers(arena: Arena) -> Sighting:
    secret = arena.secret()
    path = arena.decoy("gold/test.jsonl", secret)
    play = await arena.play(READ, [{"path": path}], off="none")
    return Sighting(secret in play.text(), f"answers {play.outcomes}, {len(play.answers[0] or ())} files read")


async def _others(arena: Arena) -> Sighting:
    import sqlite3

    secret = arena.secret()
    folder = arena.folder / "run"
    folder.mkdir()
    base = sqlite3.connect(folder / "run.db")
    base.execute("create table programs (data text)")
    base.execute("insert into programs values (?)", (secret,))
    base.commit()
    base.close()
    play = await arena.play(LIST, [{"folder": str(folder)}], off="none")
    return Sighting(secret in play.text(), f"programs read: {play.answers[0]!r}")


async def _own_environment(arena: Arena) -> Sighting:
    secret = arena.secret()
    os.environ["REDTEAM_API_KEY"] = secret
    try:
        play = await arena.play(ENVIRON, [{"hint": "REDTEAM_API_KEY"}], off="naive")
    finally:
        del os.environ["REDTEAM_API_KEY"]
    return Sighting(secret in play.text(), f"variables found: {len(play.answers[0] or ())}")


async def _environments(arena: Arena) -> Sighting:
    secret = arena.secret()
    with bystander(REDTEAM_API_KEY=secret):
        play = await arena.play(ENVIRON, [{"hint": "REDTEAM_API_KEY"}], off="none")
    return Sighting(secret in play.text(), f"environments with the key: {len(play.answers[0] or ())}")


async def _command_lines(arena: Arena) -> Sighting:
    secret = arena.secret()
    with bystander(secret):
        play = await arena.play(ENVIRON, [{"hint": "sesame"}], off="none")
    return Sighting(secret in play.text(), f"command lines with the word: {len(play.answers[0] or ())}")


async def _descriptors(arena: Arena) -> Sighting:
    secret = arena.secret()
    path = arena.decoy("key.txt", secret)
    descriptor = os.open(path, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        if arena.defended:
            text = (await arena.play(DESCRIPTORS, [None], off="naive")).text()
        else:
            text = repr(await run_naive(Program.of({"main.py": DESCRIPTORS}), [None], [], close_fds=False))
    finally:
        os.close(descriptor)
    return Sighting(secret in text, "the inherited file was read" if secret in text else "no inherited file")


async def _proposer_reads(arena: Arena) -> Sighting:
    secret = arena.secret()
    path = arena.decoy("gold/test.jsonl", secret)
    script = (
        f"cat '{path}' /proc/1/root'{path}' /proc/[0-9]*/root'{path}' /etc/shadow ~/.ssh/* 2>/dev/null; env; echo end"
    )
    output = await arena.shell(script, off=shows(arena.folder))
    return Sighting(secret in output or "end" not in output, f"{len(output)} characters read")


async def _masked(arena: Arena) -> Sighting:
    """A folder that must be mounted, with a file in it that must not be seen."""
    secret = arena.secret()
    path = arena.decoy("shown/gold.jsonl", secret)
    arena.decoy("shown/readme.txt", "for everybody")
    mount = Mount(os.path.dirname(path), "/shown")
    off = lambda spec: replace(spec, masks=())  # noqa: E731
    output = await arena.shell("cat /shown/* /shown/./gold.jsonl; echo end", off=off, masks=[path], mounts=[mount])
    if "for everybody" not in output:
        return Sighting(True, "the mount itself was not shown, so the mask proves nothing")
    return Sighting(secret in output, f"{len(output)} characters read")


async def _writes(arena: Arena) -> Sighting:
    path = arena.folder / "planted.txt"
    play = await arena.play(WRITE, [{"path": str(path), "word": "here"}], off="none")
    return Sighting(path.exists(), f"{play.outcomes[0]}: {play.answers[0]}")


async def _rewrites(arena: Arena) -> Sighting:
    secret = arena.secret()
    play = await arena.play(REWRITE, [{"word": secret}, {"word": ""}], off="naive")
    return Sighting(secret in repr(play.answers[1]), f"the later trial read {repr(play.answers[1])[:80]}")


async def _poisons(arena: Arena) -> Sighting:
    word = arena.marker
    runtime = arena.folder / "runtime"
    runtime.mkdir()

    def shared(spec: BoxSpec) -> BoxSpec:
        return replace(spec, mounts=(*spec.mounts, Mount(str(runtime), "/runtime", writable=True)))

    await arena.play(POISON, [{"word": word, "look": False}], off=shared)
    play = await arena.play(POISON, [{"word": word, "look": True}], off=shared)
    return Sighting(bool(play.answers[0]) or any(runtime.iterdir()), f"the next box found {play.answers[0]}")


async def _signals(arena: Arena) -> Sighting:
    with bystander() as victim:
        play = await arena.play(SIGNAL, [{"pid": victim.pid}], off="none")
        killed = victim.poll() is not None or _dead(victim)
    return Sighting(killed, f"{play.outcomes[0]}: {play.answers[0]}")


def _dead(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.3)
    except subprocess.TimeoutExpired:
        return False
    return True


async def _settings(arena: Arena) -> Sighting:
    program = '''
import os

def solve(input):
    """Open the host's kernel settings for writing; nothing is written."""
    out = []
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/1/oom_score_adj"):
        try:
            os.close(os.open(path, os.O_WRONLY))
            out.append(path)
        except OSError:
            pass
    return [path for path in out if path.startswith("/proc/sys")]
'''
    play = await arena.play(program, [None], off="none")
    return Sighting(bool(play.answers[0]), f"opened for writing: {play.answers[0]}")


async def _devices(arena: Arena) -> Sighting:
    program = '''
import os, stat

def solve(input):
    """Make a device file of the host's memory-like devices and read from it."""
    for folder in ("/work", "/tmp", os.environ.get("TMPDIR", ".")):
        try:
            os.mknod(folder + "/zero", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
            with open(folder + "/zero", "rb") as stream:
                return len(stream.read(16))
        except OSError:
            pass
    return 0
'''
    play = await arena.play(program, [None], off="none")
    return Sighting(play.answers[0] == 16, f"bytes read from a device of its own: {play.answers[0]}")


def needs_root() -> str:
    """Say why an attack that starts from the powers of root cannot exist for an ordinary user."""
    return "" if os.geteuid() == 0 else "an ordinary user may not do this outside a box either"


def _attack(name: str, about: str, defence: str, strike: Any, obstacle: Any = lambda: "") -> Attack:
    return Attack(f"host/{name}", "host", about, defence, strike, obstacle)


ATTACKS = (
    _attack("answers", "read a gold file whose path is known", "mounts", _answers),
    _attack("candidates", "read other candidates in a run's database", "mounts", _others),
    _attack("own-environment", "read keys in the environment it inherits", "cleared environment", _own_environment),
    _attack("environments", "read keys in the environments of other processes", "process namespace", _environments),
    _attack("command-lines", "read the command lines of the host's processes", "process namespace", _command_lines),
    _attack("descriptors", "read files that the engine holds open", "closed descriptors", _descriptors),
    _attack("proposer", "read gold and the user's keys from a proposer's box", "mounts", _proposer_reads),
    _attack("mask", "read a masked file in a folder that is shown", "masks", _masked),
    _attack("write", "write a file of the host", "mounts", _writes),
    _attack("rewrite", "rewrite the program for later trials", "read-only program", _rewrites),
    _attack("poison", "plant a module where the next box finds it", "read-only runtime", _poisons),
    _attack("signal", "kill a process of the host", "process namespace", _signals),
    _attack("settings", "open the host's kernel settings for writing", "covered /proc", _settings, needs_root),
    _attack("devices", "make a device file and read from it", "no capabilities", _devices, needs_root),
)
