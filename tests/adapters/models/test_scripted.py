"""The scripted model: tables, lists, functions and files; running out is an error that names the prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.models.scripted import ScriptedModel, load
from leadscrew.errors import ConfigError, InfrastructureError
from leadscrew.ports import Model


def asking(text: str, **more: Any) -> dict[str, Any]:
    """A request with one message."""
    return {"messages": [{"role": "user", "content": text}], **more}


async def said(model: ScriptedModel, text: str) -> Any:
    """The text of the reply."""
    return (await model.complete(asking(text)))["choices"][0]["message"]["content"]


async def test_a_list_in_order_until_it_ends() -> None:
    model = ScriptedModel(["one", {"content": "two"}])
    assert isinstance(model, Model)
    assert [await said(model, "a"), await said(model, "a")] == ["one", "two"]
    with pytest.raises(InfrastructureError, match=r"used up its 2 replies; this prompt is one too many: .*third"):
        await said(model, "the third")
    assert model.calls == 3


async def test_a_mapping_answers_by_what_the_prompt_holds_in_any_order() -> None:
    table: Mapping[str, Any] = {"exactly this": "exact", "sky": ["blue", "grey"], "/^[0-9]+ /": "a number"}
    model = ScriptedModel(table)
    texts = ["42 apples", "exactly this", "the sky", "more sky"]
    there = await asyncio.gather(*(said(model, text) for text in texts))
    assert there == ["a number", "exact", "blue", "grey"]
    other = ScriptedModel(table)
    assert await asyncio.gather(*(said(other, text) for text in (texts[1], texts[0], texts[2], texts[3]))) == [
        "exact",
        "a number",
        "blue",
        "grey",
    ]
    with pytest.raises(InfrastructureError, match="used up its 2 replies for 'sky'"):
        await said(model, "sky again")
    with pytest.raises(InfrastructureError, match=r"no reply to this prompt: .*nothing of that"):
        await said(model, "nothing of that")


async def test_functions_may_await_and_may_call_tools() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}

    async def reply(request: Mapping[str, Any]) -> Any:
        await asyncio.sleep(0)
        return {"tool_calls": [call]} if request.get("tools") else str(len(request["messages"]))

    model = ScriptedModel(reply)
    assert await said(model, "x") == "1"
    got = await model.complete(asking("x", tools=[{"type": "function", "function": {"name": "run"}}]))
    assert got["choices"][0]["finish_reason"] == "tool_calls"
    assert got["choices"][0]["message"]["tool_calls"] == [call]
    with pytest.raises(InfrastructureError, match="not int"):
        await ScriptedModel(lambda request: 5).complete(asking("x"))


async def test_usage_is_counted_the_same_each_time_and_can_be_scripted() -> None:
    model = ScriptedModel(lambda request: "12345678")
    usage = [(await model.complete(asking("é" * 6)))["usage"] for _ in range(2)]
    assert usage == [{"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}] * 2
    lie = {"content": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 10**6, "total_tokens": 1}}
    whole = {**(await model.complete(asking("x"))), "usage": lie["usage"]}
    assert (await ScriptedModel([whole]).complete(asking("x")))["usage"] == lie["usage"]


async def test_files(tmp_path: Path) -> None:
    table, code = tmp_path / "a.json", tmp_path / "b.py"
    table.write_text(json.dumps({"hello": "there"}))
    code.write_text("def reply(request):\n    return request['messages'][0]['content'].upper()\nnumber = 3\n")
    assert await said(load(str(table)), "say hello") == "there"
    assert await said(load(f"{code}:reply"), "quiet") == "QUIET"
    for script, why in [
        (f"{code}:number", "has no function 'number'"),
        (f"{code}:missing", "has no function 'missing'"),
        (str(tmp_path / "none.json"), "there is no file"),
        (str(code), "needs the name of its function"),
        (f"{table}:reply", "no other file has one"),
    ]:
        with pytest.raises(ConfigError, match=why):
            load(script)
    for text, why in [
        ("5", "a list or a mapping"),
        ("{", "no valid JSON"),
        ('["a", 5]', "the reply at 1 must be a text or a mapping"),
        ('{"a": 5}', "the reply at 'a' must be"),
        ('{"a": ["b", ["c"]]}', "the reply at 'a' must be"),
        ('{"/(/": "b"}', "no regular expression"),
    ]:
        table.write_text(text)
        with pytest.raises(ConfigError, match=why):
            load(str(table))
    table.write_bytes(b'["\xff"]')
    with pytest.raises(ConfigError, match="no valid JSON"):
        load(str(table))
    for text, why in [
        ("1 / 0\n", "ZeroDivisionError"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("def\n", "SyntaxError"),
    ]:
        code.write_text(text)
        with pytest.raises(ConfigError, match=why):
            load(f"{code}:reply")
    odd = tmp_path / "with:colon.json"
    odd.write_text('["yes"]')
    assert await said(load(str(odd)), "x") == "yes"


async def test_calls_at_the_same_time_get_what_calls_in_turn_get() -> None:
    async def reply(request: Mapping[str, Any]) -> str:
        text = str(request["messages"][0]["content"])
        # The first to ask is the last to be answered.
        for _ in range(40 - int(text)):
            await asyncio.sleep(0)
        return f"reply to {text}"

    for replies in (reply, {f"/^{n}$/": f"reply to {n}" for n in range(32)}):
        model = ScriptedModel(replies)
        got = await asyncio.gather(*(said(model, str(n)) for n in range(32)))
        assert got == [f"reply to {n}" for n in range(32)]
