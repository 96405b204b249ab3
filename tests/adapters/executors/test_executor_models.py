"""The local executor leads programs to models, in real boxes."""

from __future__ import annotations

from leadscrew.adapters.executors import LocalExecutor
from leadscrew.adapters.sandboxes import choose
from leadscrew.ports import Executor, Gateway
from leadscrew.testing.executor_models import ExecutorModelSuite

_SANDBOX = choose("bubblewrap")


class TestLocalExecutorModels(ExecutorModelSuite):
    async def make(self, workers: int, gateway: Gateway | None) -> Executor:
        return LocalExecutor(_SANDBOX, workers, gateway=gateway)
