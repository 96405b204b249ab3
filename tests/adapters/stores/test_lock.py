"""One process writes a run; its death frees it, and its children never hold it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.errors import BusyError

HOLDER = """
import sys
from leadscrew.adapters.stores.sqlite import SQLiteStore
store = SQLiteStore.open(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    SQLiteStore.create(tmp_path, config={}, seed=1).close()
    return tmp_path


def test_busy_names_the_process_and_its_death_frees_the_run(run: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {child.pid}\\b"):
            SQLiteStore.open(run)
        with SQLiteStore.open(run, readonly=True) as reader:
            assert reader.seed == 1
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    SQLiteStore.open(run).close()


def test_a_forked_child_does_not_hold_the_run(run: Path) -> None:
    store = SQLiteStore.open(run)
    wake, sleep = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sleep)
        os.read(wake, 1)
        os._exit(0 if store._lock is not None and store._lock._fd is None else 1)
    os.close(wake)
    store.close()
    SQLiteStore.open(run).close()
    os.close(sleep)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child kept the lock's descriptor"


def test_a_started_program_inherits_no_descriptor_of_the_run(run: Path) -> None:
    with SQLiteStore.open(run) as store:
        store.add_event("so that the log is open", {})
        store.commit()
        script = (
            "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
        )
        out = subprocess.run(
            [sys.executable, "-c", script], close_fds=False, capture_output=True, text=True, check=False
        )
    assert str(run) not in out.stdout


def test_releasing_twice_is_harmless(run: Path) -> None:
    store = SQLiteStore.open(run)
    store.close()
    store.close()
    with SQLiteStore.open(run):
        store.close()
        with pytest.raises(BusyError, match=f"process {os.getpid()}\\b"):
            SQLiteStore.open(run)
