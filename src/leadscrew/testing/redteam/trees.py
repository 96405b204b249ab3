"""Attacks by what a proposed tree holds: links, devices, paths, sizes, byte code, sources that break a parser."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import marshal
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leadscrew.core.program import Program
from leadscrew.engine.folders import read_folder, write_folder
from leadscrew.errors import ProgramError
from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.secrets import needs_root


def trusting(folder: Path) -> dict[str, bytes]:
    """Read a folder as a naive engine does: everything that can be opened, links followed."""
    out = {}
    for top, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = Path(top, name)
            with open(path, "rb") as stream:
                out[str(path.relative_to(folder))] = stream.read(1 << 28)
    return out


def _tree(arena: Arena) -> Path:
    folder = arena.folder / "proposal"
    folder.mkdir()
    (folder / "main.py").write_text("def solve(input):\n    return 1\n", encoding="utf-8")
    return folder


async def _read(arena: Arena, folder: Path, bad: Callable[[dict[str, bytes]], bool]) -> Sighting:
    """Read a proposed tree; `bad` tells whether what was taken is what the attacker wanted. Hanging is bad, too."""

    def read() -> dict[str, bytes]:
        if arena.defended:
            return {path: file.data for path, file in read_folder(folder).items()}
        return trusting(folder)

    result: list[dict[str, bytes] | ProgramError] = []

    def work() -> None:
        try:
            result.append(read())
        except ProgramError as error:
            result.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, 1.5)
    if not result:
        return Sighting(True, "reading the tree did not end")
    if isinstance(result[0], ProgramError):
        return Sighting(False, f"refused: {result[0]}"[:200])
    return Sighting(bad(result[0]), f"taken: {len(result[0])} files, {sum(map(len, result[0].values()))} bytes")


async def _link(arena: Arena) -> Sighting:
    secret, folder = arena.secret(), _tree(arena)
    (folder / "notes.txt").symlink_to(arena.decoy("gold.txt", secret))
    return await _read(arena, folder, lambda files: any(secret.encode() in data for data in files.values()))


async def _linked_folder(arena: Arena) -> Sighting:
    secret, folder = arena.secret(), _tree(arena)
    (folder / "data").symlink_to(os.path.dirname(arena.decoy("gold/test.jsonl", secret)))
    return await _read(arena, folder, lambda files: any(secret.encode() in data for data in files.values()))


async def _hard_link(arena: Arena) -> Sighting:
    secret, folder = arena.secret(), _tree(arena)
    os.link(arena.decoy("gold.txt", secret), folder / "notes.txt")
    return await _read(arena, folder, lambda files: any(secret.encode() in data for data in files.values()))


async def _pipe(arena: Arena) -> Sighting:
    folder = _tree(arena)
    os.mkfifo(folder / "zz")
    seen = await _read(arena, folder, lambda files: "zz" in files)
    with contextlib.suppress(OSError):  # let a reader that hangs go
        os.close(os.open(folder / "zz", os.O_WRONLY | os.O_NONBLOCK))
    return seen


async def _device(arena: Arena) -> Sighting:
    folder = _tree(arena)
    os.mknod(folder / "zero", 0o600 | 0o020000, os.makedev(1, 5))
    return await _read(arena, folder, lambda files: "zero" in files)


async def _huge(arena: Arena) -> Sighting:
    folder = _tree(arena)
    with open(folder / "big.bin", "wb") as stream:
        stream.truncate(96 << 20)
    return await _read(arena, folder, lambda files: sum(map(len, files.values())) > 32 << 20)


async def _many(arena: Arena) -> Sighting:
    folder = _tree(arena)
    for number in range(3000):
        (folder / f"f{number}").touch()
    return await _read(arena, folder, lambda files: len(files) > 2000)


async def _traversal(arena: Arena) -> Sighting:
    """A reply of a model or an inbox message names its files itself; none may land outside the folder laid out for it."""
    target = arena.folder / "planted.txt"
    place = arena.folder / "a" / "b"
    place.mkdir(parents=True)
    refused = []
    for path in (
        "../../planted.txt",
        str(target),
        "x/../../../planted.txt",
        "..\\..\\planted.txt",
        "./../../planted.txt",
    ):
        if arena.defended:
            try:
                write_folder(Program.of({path: "evil"}), place)
            except ProgramError as error:
                refused.append(str(error))
        else:
            with contextlib.suppress(OSError):
                Path(place, path).write_text("evil", encoding="utf-8")
    return Sighting(target.exists(), f"{len(refused)} of 5 paths refused")


async def _swap(arena: Arena) -> Sighting:
    """A folder changes into a link and back while it is read."""
    secret, folder = arena.secret(), _tree(arena)
    outside = os.path.dirname(arena.decoy("gold/x.txt", secret))
    (folder / "d").mkdir()
    (folder / "d" / "x.txt").write_text("harmless", encoding="utf-8")
    other = arena.folder / "other"
    other.symlink_to(outside)
    done = threading.Event()
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    mine, theirs = os.fsencode(folder / "d"), os.fsencode(other)

    def swap() -> None:
        while not done.is_set():
            exchange(-100, mine, -100, theirs, 2)

    def checked() -> dict[str, bytes]:
        """Look first whether it is a link, and read it then."""
        found = {}
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                for name in os.listdir(entry.path):
                    found[name] = Path(entry.path, name).read_bytes()
        return found

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    leaked = tries = 0
    until = time.monotonic() + 2.0
    try:
        while time.monotonic() < until and not leaked:
            tries += 1
            with contextlib.suppress(ProgramError, OSError):
                files = {p: f.data for p, f in read_folder(folder).items()} if arena.defended else checked()
                leaked += any(secret.encode() in data for data in files.values())
            await asyncio.sleep(0)
    finally:
        done.set()
        thread.join()
    return Sighting(bool(leaked), f"{leaked} leaks in {tries} readings")


async def _byte_code(arena: Arena) -> Sighting:
    """A child that changes nothing comes with byte code, so that it looks like a new program."""
    folder = _tree(arena)
    before = read_folder(folder).digest if arena.defended else repr(trusting(folder))
    cache = folder / "__pycache__"
    cache.mkdir()
    (cache / "main.cpython-311.pyc").write_bytes(os.urandom(64))
    (folder / "extra.pyc").write_bytes(os.urandom(64))
    after = read_folder(folder).digest if arena.defended else repr(trusting(folder))
    return Sighting(before != after, f"counts as a change: {before != after}")


async def _planted(arena: Arena) -> Sighting:
    """Byte code that does another thing than the source beside it, marked so that it is never checked against it."""
    word = arena.secret()
    code = compile(f"WORD = {word!r}", "helper.py", "exec")
    import importlib.util

    compiled = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)
    name = f"__pycache__/helper.{sys.implementation.cache_tag}.pyc"
    files: dict[str, str | bytes] = {
        "main.py": "import helper\n\ndef solve(input):\n    return helper.WORD\n",
        "helper.py": "WORD = 'source'\n",
    }
    if arena.defended:
        play = await arena.play({**files, name: compiled}, [None], off="naive")
        said = play.answers[0]
    else:
        folder = arena.folder / "copied"
        write_folder(Program.of(files), folder)
        (folder / "__pycache__").mkdir()
        (folder / name).write_bytes(compiled)
        line = "import sys; sys.path.insert(0, sys.argv[1]); import main; print(main.solve(None))"
        done = subprocess.run([sys.executable, "-c", line, str(folder)], capture_output=True, text=True, check=False)
        said = done.stdout.strip()
    return Sighting(said == word, f"the program said {said!r}")


HOSTILE = (
    '"x" + " and x" * 80000',
    '"import a" + ".a" * 200000',
    '"-" * 100000 + "1"',
    '"x = " + "(" * 100000',
    '"if a:\\n pass\\n" + "elif a:\\n pass\\n" * 30000',
    '"[x" + " for a in b" * 20000 + "]"',
    '"x = a" + ".b" * 100000',
    '"x = " + "\'a\' " * 60000',
)
"""Expressions for sources that drive a parser into the end of its stack, or into minutes of work."""

PARSE = """
import sys
source = {source}
if {defended}:
    from leadscrew.engine.check import source_fault
    if source_fault(source.encode()) is None:
        import random
        from leadscrew.core.program import Program
        from leadscrew.operators.genetic.mutate import mutate
        base, donor = Program.of({{"main.py": source}}), Program.of({{"main.py": "x = 2\\ny = 3\\n"}})
        for seed in range(4):
            mutate(base, [donor], random.Random(seed)), mutate(donor, [base], random.Random(seed))
else:
    import ast, libcst
    for parser in (libcst.parse_module, ast.parse):
        try:
            parser(source)
        except (SyntaxError, libcst.ParserSyntaxError, RecursionError, MemoryError):
            pass
print("survived")
"""


async def _parser(arena: Arena) -> Sighting:
    """The engine checks and recombines sources in its own process; no source may bring that down or hold it up."""
    fallen = []
    for source in HOSTILE:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARSE.format(source=source, defended=arena.defended),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(8):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            fallen.append(f"{source[:24]}: no end")
            break
        if b"survived" not in out:
            fallen.append(f"{source[:24]}: exit {process.returncode} {err[-120:]!r}")
            break
    return Sighting(bool(fallen), "; ".join(fallen) or f"{len(HOSTILE)} sources refused or parsed")


def _attack(
    name: str,
    about: str,
    strike: Any,
    *,
    defence: str = "reading folders",
    obstacle: Callable[[], str] = lambda: "",
    slow: bool = False,
) -> Attack:
    return Attack(f"tree/{name}", "tree", about, defence, strike, obstacle, slow)


ATTACKS = (
    _attack("link", "a symbolic link to a gold file", _link),
    _attack("linked-folder", "a symbolic link to a folder", _linked_folder),
    _attack("hard-link", "a hard link to a gold file", _hard_link),
    _attack("pipe", "a named pipe that never ends", _pipe),
    _attack("device", "a device file", _device, obstacle=needs_root),
    _attack("huge-file", "a file that fills the memory", _huge),
    _attack("many-files", "more files than anybody wrote", _many),
    _attack("traversal", "paths that lead outside", _traversal, defence="checked paths"),
    _attack("swap", "a folder that turns into a link while it is read", _swap),
    _attack("byte-code", "byte code that makes a no-op child look new", _byte_code, defence="noise is no change"),
    _attack("planted-byte-code", "byte code that differs from its source", _planted, defence="noise is left out"),
    _attack("parser", "sources that bring a parser down", _parser, defence="checks before parsing", slow=True),
)
