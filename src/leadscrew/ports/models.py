"""The way from a box to a model: doors, visits, and the models behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from leadscrew.core.budget import Caps, Spend


@dataclass(frozen=True, slots=True)
class Access:
    """The right of a job's boxes to call the model of one role, on the account of one plan, in the name of one program.

    `allowance` is the most that a single visit (a trial, a phase of learning) may use. `learning` is the scope of the calls
    made while a program loads and learns. Serialisable: a job carries it.
    """

    role: str
    plan: int = 0
    candidate: str = ""
    allowance: Caps = Caps()
    learning: str = ""


@dataclass(frozen=True, slots=True)
class Visit:
    """What the calls through a door belong to from now on; said by the host, never by what is inside the box.

    `scope` names the visit in the record (`core.call.Call.scope`). `instance` and `repeat` say which calls of other programs
    may share their replies. `input_chars` is the length of the instance's input, which is no context.
    """

    access: Access
    scope: str
    instance: str = ""
    repeat: int = 0
    input_chars: int = 0


@dataclass(frozen=True, slots=True)
class Visited:
    """What happened during a visit.

    `spend` and `costs` are logical: a reply from the cache or the record counts like a paid one. `calls` are entries for the
    trace. `void` says why the visit counts for nothing (a call was refused or failed for a reason that is not the
    program's); `cap` names the resource if it was a cap. `exhausted` says that the program wanted more than its allowance.
    """

    spend: Spend = field(default_factory=Spend)
    costs: Mapping[str, float] = field(default_factory=dict)
    calls: tuple[Mapping[str, Any], ...] = ()
    void: str = ""
    cap: str = ""
    exhausted: str = ""


class Door(Protocol):
    """One box's unix socket to the gateway. Outside a visit every call is refused."""

    path: str
    """The socket on the host."""

    def enter(self, visit: Visit) -> None:
        """Begin a visit; what is still running from the one before is cut off."""

    async def leave(self) -> Visited:
        """End the visit, cutting off what still runs, and return what happened. Spend is durable when this returns."""

    @property
    def busy_s(self) -> float:
        """Seconds of this visit in which a call was being answered: they are not the program's."""

    async def close(self) -> None:
        """Remove the socket."""


@runtime_checkable
class Gateway(Protocol):
    """Where all model calls go through."""

    async def door(self, path: Path) -> Door:
        """Open a door at a new socket `path`."""

    async def close(self) -> None:
        """Close all doors and what is behind them."""


@runtime_checkable
class Model(Protocol):
    """A model in this process or behind it. One that speaks HTTP needs no class: it is a provider of the configuration.

    `complete` takes a request in the OpenAI chat-completions form (a mapping with `messages`) and returns the reply in the
    same form, `usage` included. It raises `InfrastructureError` if it cannot answer.
    """

    name: str

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request."""

    async def close(self) -> None:
        """Free what it holds."""
