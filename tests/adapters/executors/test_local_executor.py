"""The local executor passes the suite of its port in real boxes."""

from __future__ import annotations

from leadscrew.adapters.executors import LocalExecutor
from leadscrew.adapters.sandboxes import choose
from leadscrew.ports import Executor
from leadscrew.testing.executor import ExecutorSuite

_SANDBOX = choose("bubblewrap")


class TestLocalExecutor(ExecutorSuite):
    async def make(self, workers: int) -> Executor:
        return LocalExecutor(_SANDBOX, workers)
