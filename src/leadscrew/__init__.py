"""leadscrew: evolve programs, and the procedures that improve them, on your own scored tasks.

Everything public is a name of this module; each is loaded when it is first used, so that importing leadscrew is cheap.
`docs/library.md` says what they are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leadscrew.config import Config as Config
    from leadscrew.config import load_config as load_config
    from leadscrew.core.program import Program as Program
    from leadscrew.core.proposal import Edge as Edge
    from leadscrew.core.proposal import Proposal as Proposal
    from leadscrew.core.task import Instance as Instance
    from leadscrew.core.task import Interface as Interface
    from leadscrew.core.task import Limits as Limits
    from leadscrew.core.task import Objective as Objective
    from leadscrew.core.task import Score as Score
    from leadscrew.errors import LeadscrewError as LeadscrewError
    from leadscrew.ports import BadAnswer as BadAnswer
    from leadscrew.ports import Domain as Domain
    from leadscrew.ports import Event as Event
    from leadscrew.ports import Proposer as Proposer
    from leadscrew.runs import RunResult as RunResult
    from leadscrew.runs import demo as demo
    from leadscrew.runs import doctor as doctor
    from leadscrew.runs import finalize as finalize
    from leadscrew.runs import fork as fork
    from leadscrew.runs import improve as improve
    from leadscrew.runs import resume as resume
    from leadscrew.runs import run as run
    from leadscrew.runs import verify as verify

__version__ = "0.2.0"

_ROOMS = {
    "config": ("Config", "load_config"),
    "core.program": ("Program",),
    "core.proposal": ("Edge", "Proposal"),
    "core.task": ("Instance", "Interface", "Limits", "Objective", "Score"),
    "errors": ("LeadscrewError",),
    "ports": ("BadAnswer", "Domain", "Event", "Proposer"),
    "runs": ("RunResult", "demo", "doctor", "finalize", "fork", "improve", "resume", "run", "verify"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "BadAnswer",
    "Config",
    "Domain",
    "Edge",
    "Event",
    "Instance",
    "Interface",
    "LeadscrewError",
    "Limits",
    "Objective",
    "Program",
    "Proposal",
    "Proposer",
    "RunResult",
    "Score",
    "demo",
    "doctor",
    "finalize",
    "fork",
    "improve",
    "load_config",
    "resume",
    "run",
    "verify",
]


def __getattr__(name: str) -> object:
    room = _HOME.get(name)
    if room is None:
        raise AttributeError(f"module 'leadscrew' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"leadscrew.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
