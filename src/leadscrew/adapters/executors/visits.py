"""What is said at a box's door: whose calls are made now; and what comes of a visit for the reply of its trial."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leadscrew.adapters.executors.replies import reply_of
from leadscrew.core.budget import Spend
from leadscrew.core.task import Answer
from leadscrew.core.trial import Outcome
from leadscrew.ports import Access, BoxReply, BoxTrial, Door, Item, Job, Visit, Visited

_TAIL = 200


def trial_visit(access: Access, trial: BoxTrial) -> Visit:
    """Return the visit of one trial."""
    return Visit(access, trial.key, trial.instance, trial.repeat, input_chars(trial.input))


def learning_visits(job: Job, access: Access, train: Sequence[Item]) -> tuple[Visit, Sequence[Visit]]:
    """Return the visit for loading, and for an online learner one for each item of its data set.

    Their scopes are the same in every box, so that a program that is loaded again finds what it was told before.
    """
    scope, name = access.learning or f"learn:{job.program.digest}", "learn"
    if job.interface.operation != "predict":
        return Visit(access, scope, name), ()
    dataset = train[0].dataset if train else ""
    scope, name = f"{scope}:{dataset}", f"{name}:{dataset}"
    items = train if job.interface.mode == "online" else ()
    return Visit(access, scope, name), [
        Visit(access, f"{scope}:{index}", f"train:{item.id}", 0, input_chars(item.input))
        for index, item in enumerate(items)
    ]


def input_chars(value: Any) -> int:
    """Return the length of an input as text.

    >>> input_chars("abc"), input_chars({"x": 1})
    (3, 8)
    """
    return len(value) if isinstance(value, str) else len(json.dumps(value, ensure_ascii=False))


def with_visit(reply: BoxReply, visited: Visited) -> BoxReply:
    """Return a reply with what its visit used; a void visit or an exhausted allowance decides whatever was answered."""
    if visited.void:
        return BoxReply(reply.key, Outcome.INFRA, message=visited.void, train=reply.train, cap=visited.cap)
    if reply.outcome is Outcome.INFRA:
        return reply
    used = visited.spend
    out = replace(
        reply,
        spend=reply.spend
        + Spend(calls=used.calls, tokens_in=used.tokens_in, tokens_out=used.tokens_out, micro_usd=used.micro_usd),
        costs={**reply.costs, **visited.costs},
        trace=replace(reply.trace, calls=(*visited.calls, *_own(reply.trace.calls, visited.calls))),
    )
    if visited.exhausted:
        out = replace(out, outcome=Outcome.TIMEOUT, message=visited.exhausted, answer=Answer())
    return out


def _own(logged: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out of what a program logged what only repeats a call that the gateway has recorded."""
    known, out = list(calls), []
    for entry in logged:
        same = next((call for call in known if _repeats(entry, call)), None)
        if same is None:
            out.append(entry)
        else:
            known.remove(same)
    return out


def _repeats(entry: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    # The gateway shows a prompt with its roles, and both sides cut long texts in the middle.
    if entry.keys() != {"prompt", "response"}:
        return False
    response = str(call.get("response", "")).strip()[-_TAIL:]
    prompt = str(entry["prompt"]).strip()[-_TAIL:]
    return str(entry["response"]).strip()[-_TAIL:] == response and str(call.get("prompt", "")).strip().endswith(prompt)


def together(first: Visited, second: Visited) -> Visited:
    """Return two visits as one."""
    costs = {n: first.costs.get(n, 0.0) + second.costs.get(n, 0.0) for n in {**first.costs, **second.costs}}
    return replace(second, spend=first.spend + second.spend, costs=costs, calls=(*first.calls, *second.calls))


@dataclass(slots=True)
class Stopped:
    """Why a program that loads or learns goes no further: its visit was void, or its allowance used up."""

    outcome: Outcome
    message: str
    cap: str = ""


class Lessons:
    """Loading and learning in one box: keeps each train reply back until the visit that belongs to it is over.

    `put` gets the number and the reply of every train item that is complete, in order. What was called before the first
    item belongs to it. Without a door everything goes straight through.
    """

    def __init__(
        self, job: Job, train: Sequence[Item], door: Door | None, put: Callable[[int, BoxReply], None]
    ) -> None:
        self._job, self._train, self._door, self._put = job, train, door, put
        self._before = Visited()
        self._held: tuple[int, BoxReply] | None = None
        self._loading: Visit | None = None
        self._items: Sequence[Visit] = ()
        self.stopped: Stopped | None = None
        if door is not None and job.access is not None:
            self._loading, self._items = learning_visits(job, job.access, train)

    @property
    def paced(self) -> bool:
        """Whether the box has to ask before each item."""
        return bool(self._items)

    def begin(self) -> None:
        """Loading begins."""
        if self._door is not None and self._loading is not None:
            self._door.enter(self._loading)

    def item(self, index: int, line: Mapping[str, Any]) -> None:
        """Take in what the box says of one item."""
        reply = reply_of(self._train[index].id, line, {}, self._job.interface, train=True)
        if self._door is None:
            self._put(index, reply)
        else:
            self._held = (index, reply)

    async def turn(self, index: int) -> bool:
        """Item `index` comes next: end the visit before and begin its own. False if nothing may follow."""
        await self.end()
        if self.stopped is not None or self._door is None or not 0 <= index < len(self._items):
            return False
        self._door.enter(self._items[index])
        return True

    async def end(self) -> None:
        """End the visit at hand and let the reply go that waited for it."""
        if self._door is None or self.stopped is not None:
            return
        visited, held = await self._door.leave(), self._held
        self._held = None
        if visited.void:
            self.stopped = Stopped(Outcome.INFRA, visited.void, visited.cap)
        elif held is not None:
            first, self._before = self._before, Visited()
            self._put(held[0], with_visit(held[1], together(first, visited)))
        elif visited.exhausted:
            self.stopped = Stopped(Outcome.TIMEOUT, f"while loading or learning, {visited.exhausted}")
        else:
            self._before = together(self._before, visited)
