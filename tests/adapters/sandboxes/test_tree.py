"""Looking at a process tree."""

from __future__ import annotations

import os
import subprocess
import sys

from leadscrew.adapters.sandboxes import tree


def _family() -> subprocess.Popen[bytes]:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        os.write(1, b'x'); time.sleep(600)\n"
        "    time.sleep(600)\n"
        "time.sleep(600)\n"
    )
    family = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert family.stdout is not None
    assert family.stdout.read(1) == b"x"
    return family


def test_both_ways_of_finding_descendants_agree(monkeypatch):
    family = _family()
    try:
        members = tree.descendants(family.pid)
        assert len(members) == 3
        monkeypatch.setattr(tree, "_LISTS_CHILDREN", False)
        assert sorted(tree.descendants(family.pid)) == sorted(members)
        assert tree.usage(members[1]).parent == family.pid
    finally:
        for pid in tree.descendants(family.pid):
            tree.kill(pid)
        family.communicate()


def test_a_number_used_again_is_not_killed():
    family = _family()
    try:
        tree.kill(family.pid, started=1)
        assert family.poll() is None
        now = tree.usage(family.pid)
        assert now is not None
        below = tree.descendants(family.pid)[1:]
        tree.kill(family.pid, now.started)
        assert family.wait(30) == -9
    finally:
        for pid in below:
            tree.kill(pid)
        family.communicate()


def test_a_tag_finds_processes_wherever_they_are():
    tag = f"LEADSCREW_TEST_TAG={os.getpid()}"
    child = subprocess.Popen(["sleep", "600"], env=dict([tag.split("=")]), start_new_session=True)
    try:
        assert tree.tagged(tag) == [child.pid]
    finally:
        child.kill()
        child.wait()


def test_memory_is_answered_for():
    assert 1 << 20 < tree.proportional(os.getpid()) < 1 << 32
    assert tree.proportional(0) == 0
    assert tree.usage(0) is None
