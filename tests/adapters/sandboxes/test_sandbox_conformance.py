"""The conformance suite over every sandbox there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.adapters.sandboxes.docker import DockerSandbox
from leadscrew.adapters.sandboxes.none import PlainSandbox
from leadscrew.ports import Sandbox
from leadscrew.testing.sandbox import SandboxSuite


class TestBubblewrap(SandboxSuite):
    def make(self) -> Sandbox:
        return BubblewrapSandbox()


class TestBubblewrapWithWatchdog(SandboxSuite):
    def make(self) -> Sandbox:
        return BubblewrapSandbox(limits="watchdog")


class TestNone(SandboxSuite):
    def make(self) -> Sandbox:
        return PlainSandbox()


class TestDocker(SandboxSuite):
    @pytest.fixture(autouse=True)
    def _daemon(self, fake_docker: Path) -> None:
        self.client = str(fake_docker)

    def make(self) -> Sandbox:
        return DockerSandbox(client=self.client)
