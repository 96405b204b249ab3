"""The provider of the stories: the scripted upstream in a thread of its own, which goes out of order at a chosen prompt."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from leadscrew.config import config_from, to_toml
from leadscrew.testing.upstream import Fault, ScriptedUpstream

_T = TypeVar("_T")
TASK = Path(__file__).with_name("asking_task.py")


def prompt_of(request: dict[str, Any]) -> str:
    """Return the last message of a request."""
    return str(request["messages"][-1]["content"])


def reply(request: dict[str, Any]) -> str:
    """Answer as the task expects it: a product modulo 7, or a word for what was learnt."""
    found = re.match(r"tag (-?\d+): (?:times|ask) (\d+)\?", prompt_of(request))
    return str(int(found[1]) * int(found[2]) % 7) if found else "noted"


class Provider:
    """A scripted upstream that other threads and processes can reach. `trouble` is what happens to every request from the
    first one on whose prompt `when` accepts, until `mend`; `times` bounds how many requests it meets."""

    def __init__(self) -> None:
        self.trouble: Fault | None = None
        self.when: Callable[[str], bool] = lambda prompt: False
        self.times: int | None = None
        self.met = 0
        self.broken = False
        self.prompts: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = ScriptedUpstream(reply, fault=self._fault)
        self.start()

    def _fault(self, number: int, request: dict[str, Any]) -> Fault | None:
        prompt = prompt_of(request)
        self.prompts.append(prompt)
        if not self.broken and self.trouble is not None and self.when(prompt):
            self.broken = True
        if not self.broken or (self.times is not None and self.met >= self.times):
            return None
        self.met += 1
        # It can go down only once; calls that were on their way meet a connection that breaks.
        return "reset" if self.trouble == "down" and self.met > 1 else self.trouble

    def break_at(self, trouble: Fault, when: Callable[[str], bool], times: int | None = None) -> None:
        """Go out of order at the first request whose prompt `when` accepts."""
        self.trouble, self.when, self.times, self.met = trouble, when, times, 0

    def mend(self) -> None:
        """Be in order again."""
        self.trouble, self.broken = None, False
        self.start()

    def start(self) -> None:
        """Listen, at the same port as before."""
        self._do(self.server.start())

    def stop(self) -> None:
        """Refuse connections."""
        self._do(self.server.stop())

    def close(self) -> None:
        """End the server and its thread."""
        self.stop()
        self._do(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @staticmethod
    async def _cancel_all() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


def config(folder: Path, provider: Provider, *, learner: bool = False, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a story's run in `folder`. `changes` are keys as `section__key`."""
    table: dict[str, Any] = {
        "run": {"out": str(folder), "workers": 2, "plans_in_flight": 2},
        "domain": {"name": f"{TASK}:Asking", "options": {"learner": learner}},
        "proposer": {"name": f"{TASK}:Tagger"},
        "harness": {"iterations": 3, "candidates": 1, "promotion": "published", "constants_only": "off"},
        "evaluation": {"recheck": 2},
        "providers": {"mine": {"base_url": provider.server.url}},
        "models": {"solver": {"model": "mine/small", "retries": 0, "timeout_s": 20, "max_tokens": 16}},
    }
    for key, value in changes.items():
        *sections, name = key.split("__")
        target = table
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = value
    return table


def to_file(path: Path, table: dict[str, Any]) -> Path:
    """Write a configuration as a file and return where it is."""
    path.write_text(to_toml(config_from(table, path.parent)), encoding="utf-8")
    return path
