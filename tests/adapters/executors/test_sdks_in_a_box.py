"""Both official SDKs, unchanged, inside a real box: forwarder, door and the real gateway over a model in this process."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.executors import LocalExecutor
from leadscrew.adapters.sandboxes import choose
from leadscrew.core.budget import Caps
from leadscrew.core.task import Interface, Limits, ProgramEnvironment
from leadscrew.core.trial import Outcome
from leadscrew.ports import BoxReply, Item, Job
from leadscrew.testing.executor import run
from leadscrew.testing.executor_models import ACCESS, ASKS, STUDENT, asking
from support.gateway_world import Counting, World, completion, role

_NEEDED = (
    "openai", "anthropic", "annotated_types", "anyio", "certifi", "distro", "docstring_parser", "h11", "httpcore",
    "httpcore2", "httpx", "httpx2", "idna", "jiter", "opentelemetry", "pydantic", "pydantic_core", "sniffio", "tqdm",
    "truststore", "typing_extensions", "typing_inspection",
)  # fmt: skip
"""What the SDKs import, over their versions; packages are mounted one by one."""
_PACKAGES = tuple(name for name in _NEEDED if importlib.util.find_spec(name) is not None)

OPENAI = """
import openai
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}]
def solve(input):
    client = openai.OpenAI()
    said = [{"role": "user", "content": f"hello {input}"}]
    whole = client.chat.completions.create(model="gpt-9", messages=said)
    events = list(client.chat.completions.create(model="gpt-9", messages=said, stream=True,
        stream_options={"include_usage": True}))
    text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    asked = client.chat.completions.create(model="gpt-9", messages=said, tools=TOOLS).choices[0]
    call = asked.message.tool_calls[0]
    after = client.chat.completions.create(model="gpt-9", tools=TOOLS, messages=[*said, asked.message,
        {"role": "tool", "tool_call_id": call.id, "content": "42"}])
    return {
        "whole": whole.choices[0].message.content, "streamed": text, "usage": whole.usage.completion_tokens,
        "counted": [e.usage.completion_tokens for e in events if e.usage],
        "tool": [asked.finish_reason, call.function.name, call.function.arguments],
        "after": after.choices[0].message.content,
    }
"""

ANTHROPIC = """
import anthropic, json
TOOLS = [{"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
def solve(input):
    client = anthropic.Anthropic()
    said = [{"role": "user", "content": f"hello {input}"}]
    whole = client.messages.create(model="claude-9", max_tokens=50, messages=said)
    with client.messages.stream(model="claude-9", max_tokens=50, messages=said) as stream:
        text = "".join(stream.text_stream)
        counted = stream.get_final_message().usage.output_tokens
    asked = client.messages.create(model="claude-9", max_tokens=50, messages=said, tools=TOOLS)
    call = next(block for block in asked.content if block.type == "tool_use")
    after = client.messages.create(model="claude-9", max_tokens=50, tools=TOOLS, messages=[*said,
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "42"}]}])
    return {
        "whole": whole.content[0].text, "streamed": text, "usage": whole.usage.output_tokens,
        "counted": [counted],
        "tool": [asked.stop_reason, call.name, json.dumps(call.input)],
        "after": after.content[0].text,
    }
"""


class Tools(Counting):
    """Calls the tool it is given, once, and says what the tool said."""

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        last = request["messages"][-1]
        if not request.get("tools") or last["role"] == "tool":
            return await super().complete(request)
        reply = completion("", finish="tool_calls")
        reply["choices"][0]["message"] = {
            "role": "assistant", "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        }  # fmt: skip
        self.asked.append(request)
        return reply


async def replies(folder: Path, model: Any, made: Job) -> list[BoxReply]:
    world = World(folder, {"solver": role(model)})
    executor = LocalExecutor(choose("bubblewrap"), 1, spares=0, gateway=world.gateway)
    try:
        return await run(executor, made)
    finally:
        await executor.close()
        await world.close()


@pytest.mark.skipif(
    not {"openai", "anthropic"} <= set(_PACKAGES), reason="both official SDKs are needed: pip install openai anthropic"
)
@pytest.mark.parametrize(("source", "stop"), [(OPENAI, "tool_calls"), (ANTHROPIC, "tool_use")])
async def test_an_official_sdk_works_unchanged_in_a_box(tmp_path: Path, source: str, stop: str) -> None:
    model = Tools()
    environment = ProgramEnvironment(packages=_PACKAGES)
    made = asking(source, [1, 2], environment=environment, limits=Limits(), access=replace(ACCESS, allowance=Caps()))
    found = await replies(tmp_path, model, made)
    for n, reply in enumerate(found, 1):
        assert reply.outcome is Outcome.OK, reply.message
        answer = reply.answer.value
        assert (answer["whole"], answer["streamed"], answer["after"]) == (f"hello {n}", f"hello {n}", "42")
        assert (answer["usage"], answer["counted"]) == (3, [3])
        assert answer["tool"][:2] == [stop, "add"]
        assert json.loads(answer["tool"][2]) == {"a": 1}
        assert (reply.spend.calls, reply.spend.tokens_out) == (4, 12)
        assert reply.costs["model_calls"] == 4
        assert len(reply.trace.calls) == 4
    assert {request["model"] for request in model.asked} <= {"counting", "test/counting"}, (
        "the pin decides, not the program"
    )


async def test_our_own_client_and_the_real_gateway(tmp_path: Path) -> None:
    source = (
        ASKS
        + "import leadscrew_guest as g\nLEFT = g.left\n"
        + (
            "def solve(input):\n    before = LEFT()['calls']['left']\n    text = llm(f'say {input}', system='brief')\n"
            "    g.log(prompt=f'say {input}', response=text)\n    return [text, before, LEFT()['calls']['left']]\n"
        )
    )
    found = await replies(tmp_path, Counting(), asking(source))
    assert [r.answer.value for r in found] == [["say 1", 4, 3], ["say 2", 4, 3]]
    assert [len(r.trace.calls) for r in found] == [1, 1], "what is logged of a call is not there twice"


async def test_a_learner_and_its_calls_with_the_real_gateway(tmp_path: Path) -> None:
    train = tuple(Item(f"i{n}", n, n) for n in range(3))
    model = Counting()
    made = asking(STUDENT, range(4), interface=Interface("predict"), train=train, fresh=True)
    found = await replies(tmp_path, model, made)
    assert [(r.key, r.spend.calls) for r in found] == [
        ("i0", 3), ("i1", 2), ("i2", 2), *((f"t{n}", 1) for n in range(4)),
    ]  # fmt: skip
    assert len(model.asked) == 3 + 2 + 2 + 4, "every box learns the same, which is asked and paid for once"


async def test_two_boxes_that_learn_the_same_at_once_ask_once(tmp_path: Path) -> None:
    train = tuple(Item(f"i{n}", n, n) for n in range(3))
    model = Counting()
    made = asking(STUDENT, [1], interface=Interface("predict"), train=train)
    world = World(tmp_path, {"solver": role(model)})
    executor = LocalExecutor(choose("bubblewrap"), 2, spares=0, gateway=world.gateway)
    try:
        found = await asyncio.gather(run(executor, made), run(executor, made))
    finally:
        await executor.close()
        await world.close()
    assert [[r.spend.calls for r in replies] for replies in found] == [[3, 2, 2, 1]] * 2
    assert len(model.asked) == 3 + 2 + 2 + 1


async def test_processes_left_over_do_not_call_in_the_next_visit_of_the_real_gateway(tmp_path: Path) -> None:
    source = """
import os, socket
from leadscrew_guest import llm
PATH = os.environ["LEADSCREW_SOCKET"]
def solve(input):
    body = b'{"messages": [{"role": "user", "content": "left over from %d"}]}' % input
    head = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
    links = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    told, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        while True:
            os.write(tell, b"x")
            for link in links:
                try:
                    link.connect(PATH)
                except OSError:
                    pass
                try:
                    link.send(head + body)
                except OSError:
                    pass
    os.read(told, 1)
    llm(f"left over from {input}")
    return input
"""
    made = asking(source, range(12), access=replace(ACCESS, allowance=Caps()))
    made = replace(made, trials=tuple(replace(t, instance="") for t in made.trials))
    found = await replies(tmp_path, Counting(), made)
    assert [r.answer.value for r in found] == list(range(12))
    for n, reply in enumerate(found):
        said = {c["prompt"].rsplit(" ", 1)[-1] for c in reply.trace.calls}
        assert said == {str(n)}, reply.trace.calls
