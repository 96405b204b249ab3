"""The prepared runtime and the packages mounted beside it."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from leadscrew.adapters.sandboxes import packages, runtime
from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.adapters.sandboxes.build_runtime import WithoutTexts
from leadscrew.core.task import ProgramEnvironment
from leadscrew.errors import ConfigError, SandboxUnavailable
from leadscrew.testing.sandbox import finish, spec


async def run(code: str, **more) -> str:
    sandbox = BubblewrapSandbox()
    try:
        status, out, err = await finish(await sandbox.open(spec(code, **more)))
    finally:
        await sandbox.close()
    assert status == 0, err
    return out


async def test_documentation_is_gone_from_the_standard_library():
    code = """
import argparse, base64, json, os, random, shutil, socket, typing
print(json.__doc__, json.loads.__doc__, random.Random.shuffle.__doc__, argparse.__doc__, shutil.copytree.__doc__)
print(repr(base64.b32encode.__doc__))
found = [os.path.join(t, f) for t, _, fs in os.walk('/py') for f in fs if f.endswith(('.py', '.txt', '.rst', '.html'))]
print(found)
for name in ('pydoc', 'idlelib', 'tkinter', 'test', 'ensurepip', 'lib2to3'):
    try:
        __import__(name)
        print('imported', name)
    except ImportError:
        pass
"""
    assert await run(code) == "None None None None None\n''\n[]\n"


async def test_the_standard_library_works():
    code = """
import asyncio, bz2, concurrent.futures, csv, ctypes, dataclasses, datetime, decimal, difflib, email, encodings.idna
import hashlib, heapq, html, http.client, importlib.metadata, inspect, json, logging, lzma, math, multiprocessing, numbers
import pathlib, pickle, random, re, shutil, sqlite3, ssl, statistics, string, subprocess, tempfile, textwrap, threading
import tomllib, typing, unicodedata, unittest, urllib.request, uuid, xml.etree.ElementTree, zipfile, zlib, zoneinfo
print(sqlite3.connect(':memory:').execute('select 6 * 7').fetchone()[0], hashlib.sha256(b'').hexdigest()[:6])
print(asyncio.run(asyncio.sleep(0, 'slept')), statistics.mean([1, 2, 3]), 'é'.encode('latin-1'))
"""
    assert await run(code) == "42 e3b0c4\nslept 2 b'\\xe9'\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Return a cache folder in which two processes built the runtime at once."""
    folder = tmp_path_factory.mktemp("cache")
    code = (
        "import sys; from pathlib import Path; from leadscrew.adapters.sandboxes.runtime import prepare;"
        "print(prepare(cache=Path(sys.argv[1])).folder)"
    )
    builders = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = {builder.communicate()[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0]
    assert len(said) == 1
    return folder


def test_two_processes_may_build_at_once_and_it_is_built_once(cache):
    first = runtime.prepare(cache=cache)
    assert list((cache / "runtimes").iterdir()) == [first.folder]
    marker = first.folder / "layout.json"
    before = marker.stat().st_mtime_ns
    assert runtime.prepare(cache=cache) == first
    assert marker.stat().st_mtime_ns == before


def test_everybody_may_read_it(cache):
    for folder, folders, files in os.walk(runtime.prepare(cache=cache).folder):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o755
        for name in files:
            path = os.path.join(folder, name)
            assert os.path.islink(path) or os.stat(path).st_mode & 0o444 == 0o444
        assert "__pycache__" not in folders


SYSTEM = "/usr/bin/python3"
alone = not os.path.exists(SYSTEM) or os.path.realpath(SYSTEM) == os.path.realpath(sys.executable)


@pytest.mark.skipif(alone, reason="there is only one interpreter on this machine")
async def test_another_interpreter_of_the_host():
    code = "import sys, json, ssl, sqlite3; print(sys.version.split()[0], json.loads.__doc__)"
    said = await run(code, environment=ProgramEnvironment(interpreter=SYSTEM))
    assert said.split() == [_version(SYSTEM), "None"]


def _version(interpreter: str) -> str:
    code = "import sys; print(sys.version.split()[0])"
    return subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_an_interpreter_that_is_none_is_refused(tmp_path):
    with pytest.raises(SandboxUnavailable, match="cannot be run"):
        runtime.prepare("/nowhere/python3", cache=tmp_path)
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho /lib; echo 3.0\n[ $# -gt 4 ] && exit 3; exit 0\n")
    fake.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match="could not be built"):
        runtime.prepare(str(fake), cache=tmp_path)


def test_the_cache_folder_follows_the_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert runtime.cache_folder() == tmp_path / "leadscrew"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert runtime.cache_folder() == Path.home() / ".cache" / "leadscrew"


def test_texts_assigned_by_hand_are_emptied():
    source = "f.__doc__ = 'long'\n_B_DOCSTRING = 'long'\nDOC = 'long'\ndocks = 'kept'\nversion = 'kept'\n"
    names: dict[str, object] = {"f": lambda: None}
    exec(compile(WithoutTexts().visit(ast.parse(source)), "x", "exec"), names)
    assert (names["_B_DOCSTRING"], names["DOC"], names["docks"], names["version"]) == ("", "", "kept", "kept")
    assert names["f"].__doc__ == ""


async def test_a_named_package_is_mounted_alone(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    (site / "mine").mkdir(parents=True)
    (site / "mine" / "__init__.py").write_text("value = 41\n")
    (site / "single.py").write_text("import mine\nvalue = mine.value + 1\n")
    (site / "other").mkdir()
    monkeypatch.setattr(packages, "site_folders", lambda interpreter: [str(site)])
    environment = ProgramEnvironment(packages=("mine", "single"))
    code = "import os, single; print(single.value, sorted(os.listdir('/site')))"
    assert await run(code, environment=environment) == "42 ['mine', 'single.py']\n"
    assert BubblewrapSandbox().exposes(spec("", environment=environment))[-2:] == [
        str(site / "mine"), str(site / "single.py"),
    ]  # fmt: skip
    # A mask of the folder that happens to hold the packages does not take them away; one inside them does.
    masked = (str(site), str(site / "mine" / "__init__.py"))
    assert await run("import mine; print(hasattr(mine, 'value'))", environment=environment, masks=masked) == "False\n"


def test_a_package_that_is_not_installed_is_refused():
    environment = ProgramEnvironment(packages=("no_such_package",))
    with pytest.raises(ConfigError, match=r"'no_such_package'.*import name") as caught:
        BubblewrapSandbox().exposes(spec("", environment=environment))
    assert caught.value.key == "environment.packages"


async def test_an_installed_package_of_pure_python():
    pytest.importorskip("pluggy")
    code = "import pluggy; print(pluggy.__name__)"
    assert await run(code, environment=ProgramEnvironment(packages=("pluggy",))) == "pluggy\n"


async def test_an_installed_package_with_compiled_parts():
    pytest.importorskip("msgspec")
    code = "import msgspec; print(msgspec.json.encode([1, 2]))"
    assert await run(code, environment=ProgramEnvironment(packages=("msgspec",))) == "b'[1,2]'\n"


async def test_numpy_with_its_own_libraries():
    pytest.importorskip("numpy")
    code = "import numpy as np; print(np.linalg.inv(np.eye(2)).sum())"
    assert await run(code, environment=ProgramEnvironment(packages=("numpy",))) == "2.0\n"


def test_the_layout_is_described():
    made = runtime.prepare()
    layout = json.loads((made.folder / "layout.json").read_text())
    assert layout["modules"] > 300
    assert any(name.startswith("libc.") for name in layout["libraries"])
    assert os.path.exists(made.folder / "lib" / os.path.basename(made.loader))
