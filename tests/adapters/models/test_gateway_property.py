"""Whatever happens to calls, every scope's account equals the record, nothing stays held, and no cap is passed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from leadscrew.core.budget import Caps, Spend
from leadscrew.errors import InfrastructureError
from support.gateway_world import Counting, World, chat, completion, last_text, post, role, visit

FATES = ("fine", "fine", "fine", "down", "broken", "cut", "silent", "liar", "slow")


class Fateful:
    """A model in this process whose requests say what becomes of them."""

    name = "fateful"

    def __init__(self) -> None:
        self.billed = 0

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request, or not."""
        fate = last_text(request).split()[0]
        await asyncio.sleep(0)
        if fate == "down":
            raise InfrastructureError("down")
        if fate == "broken":
            raise KeyError("broken")
        if fate == "slow":
            await asyncio.Event().wait()
        if fate == "cut":
            return {**completion("half"), "choices": []}
        if fate == "silent":
            return completion("text", None)
        if fate == "liar":
            return completion("text", 10**12)
        self.billed += 10
        return completion("text", 7, 3)

    async def close(self) -> None:
        """Nothing is held."""


Visits = list[tuple[int, str, list[str]]]


async def play(folder: Path, visits: Visits, tokens: int | None, allowance: int | None) -> None:
    """Let every visit make its calls at once, leave, and compare the books."""
    model = Fateful()
    roles = {name: role(model, name, timeout_s=0.05) for name in ("solver", "meta")}
    world = World(folder, roles, role_caps={"solver": Caps(tokens=tokens)})
    try:

        async def one(number: int, plan: int, name: str, fates: list[str]) -> None:
            door = await world.gateway.door(folder / f"{number}.sock")
            instance = f"i{number % 2}" if number % 3 else ""
            door.enter(visit(f"t{number}", role=name, plan=plan, instance=instance, allowance=Caps(calls=allowance)))
            calls = [asyncio.create_task(post(door.path, chat(f"{fate} {i // 2}"))) for i, fate in enumerate(fates)]
            waited = [call for call, fate in zip(calls, fates, strict=True) if fate != "slow"]
            if waited and "slow" not in fates:
                await asyncio.wait(waited)
            elif waited:
                # They may wait for the room that the slow one holds; leaving ends that.
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED, timeout=0.02)
            visited = await door.leave()
            assert visited.spend.calls == visited.costs["model_calls"]
            assert allowance is None or visited.spend.calls <= allowance
            await asyncio.gather(*calls)

        await asyncio.gather(*(one(n, *what) for n, what in enumerate(visits)))
        booked = world.store.call_spend()
        for name in ("solver", "meta"):
            for plan in (0, 1, 2):
                account = world.account(name, plan)
                assert account.held == Spend()
                assert account.spent == booked.get((name, plan), Spend())
        assert world.meter.run.held == Spend()
        assert world.meter.run.spent == sum(booked.values(), Spend())
        solver = sum((s for (name, _), s in booked.items() if name == "solver"), Spend())
        assert tokens is None or solver.tokens_in + solver.tokens_out <= tokens
        replies = [reply for _, _, reply in world.store.calls()]
        assert None not in replies
        paid = [r for r in replies if r and r.source == "upstream" and r.status == "ok" and r.usage == "reported"]
        assert sum(r.tokens_in + r.tokens_out for r in paid) == model.billed
    finally:
        await world.close()


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(("solver", "meta")), st.lists(st.sampled_from(FATES), max_size=5)),
        max_size=5,
    ),
    st.none() | st.integers(0, 1500),
    st.none() | st.integers(1, 4),
)
def test_the_books_agree(visits: Visits, tokens: int | None, allowance: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), visits, tokens, allowance))


WORDS = (
    "role",
    "content",
    "user",
    "assistant",
    "tool",
    "type",
    "text",
    "image_url",
    "tool_calls",
    "id",
    "stop",
    "input",
)
FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "max_tokens",
    "system",
    "stop",
    "response_format",
    "stream",
    "temperature",
)
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(WORDS) | st.text(max_size=4)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
)


BODIES = st.builds(
    lambda more, parts, whole: {**chat(parts or "fine", max_tokens=5), **(more if whole else {})},
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=2),
    st.none()
    | st.lists(st.dictionaries(st.sampled_from(("type", "text", "image_url")), VALUES, max_size=2), max_size=2),
    st.booleans(),
)


@settings(max_examples=25)
@given(st.lists(BODIES, min_size=1, max_size=6))
def test_no_request_can_blame_the_gateway(bodies: list[dict[str, Any]]) -> None:
    async def ask(folder: Path) -> None:
        world = World(folder, {"solver": role(Counting(answer=lambda request: "fine"))})
        door = await world.gateway.door(folder / "d.sock")
        door.enter(visit())
        for body in bodies:
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
                assert (await post(door.path, body, path)).status in (200, 400)
        assert (await door.leave()).void == ""
        assert world.events == []
        await world.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(ask(Path(folder)))
