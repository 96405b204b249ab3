"""Executors: run jobs in boxes (`LocalExecutor`), and the domain in a process of its own (`ProcessScorer`)."""

from __future__ import annotations

from leadscrew.adapters.executors.local import LocalExecutor
from leadscrew.adapters.executors.scorer import ProcessScorer

__all__ = ["LocalExecutor", "ProcessScorer"]
