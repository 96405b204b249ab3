"""A stand-in for the `docker` command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from leadscrew.adapters.sandboxes.bubblewrap import find_bwrap


@pytest.fixture
def fake_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a command that behaves like `docker` and keeps its containers in a folder."""
    monkeypatch.setenv("DOCKER_FAKE_STATE", str(tmp_path / "daemon"))
    monkeypatch.setenv("DOCKER_FAKE_BWRAP", find_bwrap()[0])
    script = Path(__file__).with_name("fake_docker.py")
    client = tmp_path / "docker"
    client.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(script))} "$@"\n')
    client.chmod(0o755)
    return client
