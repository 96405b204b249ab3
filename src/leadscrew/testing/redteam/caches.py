"""Attacks on the store of replies: poison it, confuse its keys, or pass answers through it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from leadscrew.core.task import Interface
from leadscrew.ports import Item
from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.hall import Hall, solver
from leadscrew.testing.upstream import Fault

ASK = solver("""
if given.get("cut"):
    link = opened(given)
    link.sendall(raw(given["body"]))
    link.recv(300)
    link.close()
    import time
    time.sleep(0.3)
    return "cut"
body = given["body"].encode() if isinstance(given["body"], str) else given["body"]
return ask(given, body)
""")
"""Ask what is given, a text as it is."""


def _told(request: Mapping[str, Any]) -> str:
    """Reply with the request itself, so that a reply to another one shows."""
    return json.dumps({name: value for name, value in request.items() if name != "model"}, ensure_ascii=True)


def _chat(text: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def _tool(**more: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **more}}]


def _default(value: Any) -> dict[str, Any]:
    return _chat("default", tools=_tool(parameters={"type": "object", "properties": {"x": {"default": value}}}))


PAIRS: Mapping[str, tuple[tuple[Any, Any], ...]] = {
    "unicode": (
        (_chat("caf\u00e9"), _chat("cafe\u0301")),
        (_chat("\uff21\uff22"), _chat("AB")),
        (_chat("a b"), _chat("a  b")),
        (_chat("a\u00a0c"), _chat("a c")),
        (_chat("Abc"), _chat("abc")),
        (_chat("d"), _chat("d\n")),
        (_chat("e\u200b"), _chat("e")),
        (_chat("\ufefff"), _chat("f")),
        (_chat("\u017f"), _chat("s")),
        (_chat("g\u0000"), _chat("g")),
        (_chat("\\u0068"), _chat("h")),
    ),
    "numbers": (
        (_chat("seed", seed=1), _chat("seed", seed=2)),
        (_chat("big", seed=2**53), _chat("big", seed=2**53 + 1)),
        (_default(1), _default(True)),
        (_default(0), _default(False)),
        (_default("1"), _default(1)),
        (_default(None), _default("null")),
        (_default(1e16), _default("1e16")),
        (_default(0.1), _default(0.10000000000000002)),
        (_chat("top", top_p=0.5), _chat("top", top_p=0.25)),
    ),
    "shape": (
        (_chat("x", tools=_tool(description="one")), _chat("x", tools=_tool(description="two"))),
        (_chat("x", tools=_tool(strict=True)), _chat("x", tools=_tool(strict=False))),
        (_chat("y"), _chat("y", tools=_tool())),
        (_chat("z", stop=["a"]), _chat("z", stop=["b"])),
        (_chat("z", stop=["a", "b"]), _chat("z", stop=["a\nb"])),
        (_chat("t", response_format={"type": "json_object"}), _chat("t", response_format={"type": "text"})),
        (
            {"messages": [{"role": "system", "content": "s1"}, {"role": "user", "content": "u"}]},
            {"messages": [{"role": "system", "content": "s2"}, {"role": "user", "content": "u"}]},
        ),
        (
            {"messages": [{"role": "user", "name": "n1", "content": "v"}]},
            {"messages": [{"role": "user", "name": "n2", "content": "v"}]},
        ),
        (_chat("w", logit_bias={"1": 5}), _chat("w", logit_bias={"2": 5})),
    ),
    "double": (
        (
            '{"messages":[{"role":"user","content":"p"}],"seed":1}',
            '{"messages":[{"role":"user","content":"p"}],"seed":1,"seed":2}',
        ),
        (
            '{"messages":[{"role":"user","content":"q"}],"stop":["1"]}',
            '{"stop":["1"],"messages":[{"role":"user","content":"q"}],"stop":["2"]}',
        ),
        (
            '{"messages":[{"role":"user","content":"r"}],"seed":7}',
            '{"messages":[{"role":"user","content":"first"}],"seed":8,"messages":[{"role":"user","content":"r"}]}',
        ),
    ),
}
"""Pairs of requests that a careless key takes for one."""


async def _confuse(arena: Arena, kind: str) -> Sighting:
    """One candidate asks the first of each pair, another the second: nobody may get the reply to the other request."""
    pairs = PAIRS[kind]
    async with Hall(arena, _told) as hall:
        where = [f"val:{i}" for i in range(len(pairs))]
        await hall.run(ASK, [{"body": first} for first, _ in pairs], candidate="1.0", instances=where)
        before = len(hall.upstream.bodies)
        play = await hall.run(ASK, [{"body": second} for _, second in pairs], candidate="2.0", instances=where)
        wrong = []
        for (_, second), answer in zip(pairs, play.answers, strict=True):
            if not answer or answer[0] != 200:
                continue
            body = second if isinstance(second, dict) else json.loads(second)
            got = json.loads(json.loads(answer[1])["choices"][0]["message"]["content"])
            if any(_same(got.get(name)) != _same(value) for name, value in body.items() if name in _SEEN):
                wrong.append(str(second)[:60])
        fresh = len(hall.upstream.bodies) - before
        return Sighting(
            bool(wrong), f"{len(wrong)} of {len(pairs)} got another's reply ({fresh} asked anew): {wrong[:2]}"
        )


def _same(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


_SEEN = ("messages", "seed", "tools", "stop", "response_format", "top_p", "logit_bias")


async def _unicode(arena: Arena) -> Sighting:
    return await _confuse(arena, "unicode")


async def _numbers(arena: Arena) -> Sighting:
    return await _confuse(arena, "numbers")


async def _shape(arena: Arena) -> Sighting:
    return await _confuse(arena, "shape")


async def _double(arena: Arena) -> Sighting:
    return await _confuse(arena, "double")


async def _bad_reply(arena: Arena, fault: Fault | None, *, stream: bool = False, cut: bool = False) -> Sighting:
    """The first reply goes wrong; another candidate that asks the same must get a whole one."""
    whole = "a whole reply " * 20 + arena.marker

    def only_first(number: int, request: dict[str, Any]) -> Fault | None:
        return fault if number == 0 else None

    async with Hall(arena, lambda request: whole, fault=only_first) as hall:
        given = {"body": _chat("same", stream=stream)}
        await hall.run(ASK, [{**given, "cut": cut}], candidate="1.0", instances=["val:1"])
        play = await hall.run(ASK, [{"body": _chat("same")}], candidate="2.0", instances=["val:1"])
        status, text = play.answers[0] or (0, "")
        bad = status != 200 or arena.marker not in text or play.outcomes[0] != "ok"
        return Sighting(bad, f"the second got {status} with {len(text)} characters; {play.outcomes[0]}")


async def _failed(arena: Arena) -> Sighting:
    return await _bad_reply(arena, "error")


async def _in_reply(arena: Arena) -> Sighting:
    return await _bad_reply(arena, "error_in_reply")


async def _truncated(arena: Arena) -> Sighting:
    return await _bad_reply(arena, "truncated_json")


async def _stream_cut(arena: Arena) -> Sighting:
    return await _bad_reply(arena, "truncated_stream", stream=True)


async def _smuggle(
    arena: Arena, first: Mapping[str, Any], second: Mapping[str, Any], *, learning: bool = False
) -> Sighting:
    """Ask something where its reply holds an answer; whoever asks the same elsewhere must not be given that reply."""
    word = arena.secret()
    replies = iter([f"the answer is {word}"])
    async with Hall(arena, lambda request: next(replies, "who knows")) as hall:
        given = {"body": _chat("the question " + arena.marker)}
        if learning:
            source = ASK.replace("def solve(given):", "def kept(given):") + LEARNER
            item = Item("train:1", given, "x")
            await hall.run(source, [], train=[item], interface=Interface("predict"), candidate="1.0")
        else:
            await hall.run(ASK, [given], **first)
        play = await hall.run(ASK, [given], candidate="2.0", **second)
        got = word in play.text()
        return Sighting(
            got or hall.upstream.requests == 0, f"{hall.upstream.requests} asked; {str(play.answers[0])[:80]}"
        )


LEARNER = """
class Student:
    def predict(self, given):
        return kept(given)
    def learn(self, batch):
        pass
"""

HERE: dict[str, Any] = {"instances": ["val:1"], "repeats": [0]}


async def _from_proposer(arena: Arena) -> Sighting:
    return await _smuggle(arena, {"role": "proposer", "candidate": "", "instances": [""]}, HERE)


async def _from_proposer_here(arena: Arena) -> Sighting:
    """Even if a proposer's call stood on the same instance."""
    return await _smuggle(arena, {"role": "proposer", "candidate": "", **HERE}, HERE)


async def _instances(arena: Arena) -> Sighting:
    return await _smuggle(arena, {"instances": ["train:1"], "candidate": "1.0"}, HERE)


async def _repeats(arena: Arena) -> Sighting:
    return await _smuggle(arena, {"instances": ["val:1"], "repeats": [1], "candidate": "1.0"}, HERE)


async def _roles(arena: Arena) -> Sighting:
    return await _smuggle(arena, {"role": "judge", "candidate": "1.0", **HERE}, HERE)


async def _learning(arena: Arena) -> Sighting:
    return await _smuggle(arena, {}, HERE, learning=True)


KEY, WHOLE = "the key is a digest of the whole request", "only whole replies are shared"
PART = "replies are shared within role, instance and repeat only"
ATTACKS = (
    Attack("cache/unicode", "cache", "requests that look alike", KEY, _unicode),
    Attack("cache/numbers", "cache", "numbers, truth and texts that compare equal", KEY, _numbers),
    Attack("cache/shape", "cache", "the same words with other tools, orders and formats", KEY, _shape),
    Attack("cache/double", "cache", "names that stand twice in an object", KEY, _double),
    Attack("cache/failed", "cache", "leave a failure for the next who asks", WHOLE, _failed),
    Attack("cache/in-reply", "cache", "leave an error with the status 200", WHOLE, _in_reply),
    Attack("cache/truncated", "cache", "leave a reply cut short", WHOLE, _truncated),
    Attack("cache/stream", "cache", "leave a stream that broke off", WHOLE, _stream_cut),
    Attack("smuggle/proposer", "smuggle", "ask as proposer, to be answered as candidate", PART, _from_proposer),
    Attack("smuggle/same-place", "smuggle", "the same, were the proposer on that instance", PART, _from_proposer_here),
    Attack("smuggle/instances", "smuggle", "pass a reply to another instance", PART, _instances),
    Attack("smuggle/repeats", "smuggle", "pass a reply to another repeat", PART, _repeats),
    Attack("smuggle/roles", "smuggle", "pass a reply to another role", PART, _roles),
    Attack("smuggle/learning", "smuggle", "pass a reply from learning to a trial", PART, _learning),
)
