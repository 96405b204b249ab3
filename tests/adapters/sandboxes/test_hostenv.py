"""The words for a host on which no box can run."""

from __future__ import annotations

import pytest

from leadscrew.adapters.sandboxes import hostenv


def test_a_switch_that_is_set_against_us_is_named(monkeypatch, tmp_path):
    switch = tmp_path / "unprivileged_userns_clone"
    monkeypatch.setattr(
        hostenv, "_SWITCHES", {str(switch): ("0", "turn it on"), str(tmp_path / "absent"): ("0", "never")}
    )
    monkeypatch.setattr(hostenv, "in_container", lambda: False)
    switch.write_text("0\n")
    said = hostenv.explain("first line\nbwrap: No permissions to create new namespace", 1)
    assert "'bwrap: No permissions to create new namespace'" in said
    assert "Remedy: turn it on; or" in said
    switch.write_text("1\n")
    said = hostenv.explain("", 1)
    assert "turn it on" not in said
    assert "no message" in said
    assert "unprivileged_userns_clone=1" in said


@pytest.mark.parametrize("path", list(hostenv._SWITCHES))
def test_every_switch_has_a_remedy_that_can_be_typed(path):
    _, remedy = hostenv._SWITCHES[path]
    assert "`sysctl -w " in remedy
    assert path.removeprefix("/proc/sys/").replace("/", ".") in remedy


def test_a_container_is_told_about_its_profile(monkeypatch):
    monkeypatch.setattr(hostenv, "in_container", lambda: True)
    assert "seccomp=unconfined" in hostenv.explain("bwrap: x", 1)
