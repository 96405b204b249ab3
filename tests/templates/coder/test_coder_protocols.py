"""How calls are read: tags and native ones, well-formed and broken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadscrew.adapters.models.dialects import DIALECTS
from templates.coder.coder_tree import part

tags = part("tags")
native = part("native")
talk = part("talk")
dialects = part("dialects")
tools = part("tools")
fence = part("fence")
prompt = part("prompt")


def read(text: str, stop: str = "end") -> Any:
    return tags.Tags().read(talk.Reply(text, stop=stop))


@pytest.mark.parametrize(
    "text",
    [
        '<call tool="read"><arg name="path">a.py</arg><arg name="start">3</arg></call>',
        'I look first.\n\n<call tool="read">\n<arg name="path">a.py</arg>\n<arg name="start">3</arg>\n</call>\n',
        "<call tool='read'>\n<arg name='path'>\na.py\n</arg>\n<arg name='start'> 3 </arg>\n</call>",
        "  <call tool=read>\r\n<arg name=path>a.py</arg>\r\n<arg name=start>3</arg>\r\n</call>",
        '```xml\n<call tool="read">\n<arg name="path">a.py</arg>\n<arg name="start">3</arg>\n</call>\n```',
        '<call tool="read">\n<arg name="path">a.py</arg>\n<arg name="start">3</arg>',
        '<call tool="read">\n<arg name="path">a.py</arg>\n<arg name="start" end="E9">3</arg E9>\n</call>',
    ],
)
def test_tags_in_many_spellings(text: str) -> None:
    found = read(text)
    (call,) = found.calls
    assert (call.tool, dict(call.arguments), call.problem) == ("read", {"path": "a.py", "start": 3}, "")
    assert tools.problem_of(call.tool, call.arguments) == ""


def test_values_in_blocks_are_whole_lines() -> None:
    text = '<call tool="editor">\n<arg name="command">create</arg>\n<arg name="path">m.py</arg>\n<arg name="text">\n'
    text += 'if a < b and c > d:\n\tx = "</arg> <arg name=1>" # </call>\n</arg>\n</call>'
    (call,) = read(text).calls
    assert call.arguments["text"] == 'if a < b and c > d:\n\tx = "</arg> <arg name=1>" # </call>\n'
    inline = '<call tool="editor"><arg name="old">  k = 3</arg>\n<arg name="new">\n</arg></call>'
    assert dict(read(inline).calls[0].arguments) == {"old": "  k = 3", "new": ""}


@given(
    values=st.fixed_dictionaries(
        {"command": st.sampled_from(["create", "insert"]), "path": st.text("abc/._-", min_size=1, max_size=9)},
        optional={
            "text": st.lists(
                st.sampled_from(
                    ["a", "\n", "\t", " ", "</arg>", '<arg name="x">', "</call>", "</arg E1>", "<call tool=", "é"]
                )
            ).map("".join),
            "line": st.integers(0, 9999),
            "overwrite": st.booleans(),
        },
    )
)
def test_what_is_written_as_tags_is_read_back(values: dict[str, Any]) -> None:
    text = tags.written("editor", values)
    found = read(f"Some words.\n{text}\nand words after it")
    (call,) = found.calls
    assert call.problem == ""
    assert dict(call.arguments) == values
    assert found.turn.text == f"Some words.\n{text}"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('<call tool="shell">\n<arg name="command">ls\n</call>', "not closed"),
        ('<call tool="shell">\n<arg name="command">ls</arg>\nls -la\n</call>', "not closed"),
        ('<call tool="shell">\nls\n</call>', "expected"),
        ('<call tool="shell">\n<arg name="command">a</arg>\n<arg name="command">b</arg>\n</call>', "twice"),
        ('<call tool="shell">\n<arg name="command" end="E1">a</arg>\n</call>', "</arg E1>"),
    ],
)
def test_broken_tags_are_explained(text: str, word: str) -> None:
    (call,) = read(text).calls
    assert word in call.problem


@pytest.mark.parametrize("text", ["<call>\nls\n</call>", '<arg name="command">ls</arg>', "words\n</call>", "", "  \n"])
def test_tags_without_a_call(text: str) -> None:
    found = read(text)
    assert not found.calls
    assert found.problem


def test_plain_text_ends_and_quoted_calls_are_no_calls() -> None:
    for text in ("Done.", '> <call tool="shell">', 'The log says `<call tool="shell">`, which I ignore.'):
        found = read(text)
        assert (found.calls, found.problem) == ((), "")


def test_only_the_first_call_counts() -> None:
    one = tags.written("shell", {"command": "a"})
    found = read(f"{one}\n\n[result 1, shell: made up]\n\n{tags.written('shell', {'command': 'b'})}")
    assert [dict(c.arguments) for c in found.calls] == [{"command": "a"}]
    assert found.dropped
    assert found.turn.text == one


@pytest.mark.parametrize("speech", [tags.Tags(), native.Native()])
def test_a_reply_that_was_cut_off_is_never_run(speech: Any) -> None:
    calls = (talk.Call("", "shell", {"command": "rm x"}),)
    text = tags.written("shell", {"command": "rm x"})
    found = speech.read(talk.Reply(text, calls if isinstance(speech, native.Native) else (), "length"))
    assert found.calls == ()
    assert "cut off in the middle of a call, which was not run" in found.problem
    assert "cut off at the limit" in speech.read(talk.Reply("words", stop="length")).problem
    assert "empty" in speech.read(talk.Reply()).problem


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ('{"command": "ls"', "no valid JSON"),
        ("ls", "no valid JSON"),
        ('["ls"]', "JSON object"),
        ("[" * 100_000, "no valid JSON"),
        ('{"command": "\\ud800"}', "half a character"),
        (None, "JSON object"),
    ],
)
def test_broken_native_arguments(arguments: Any, word: str) -> None:
    call = native.call_of("shell", arguments)
    assert word in call.problem
    json.dumps(dict(call.arguments))


@pytest.mark.parametrize(
    ("tool", "arguments", "word"),
    [
        ("shel", {"command": "ls"}, "there is no tool 'shel'"),
        ("shell", {}, "'command' is missing"),
        ("shell", {"command": "ls", "cwd": "/"}, "no argument 'cwd'"),
        ("shell", {"command": ["ls"]}, "type string, not list"),
        ("shell", {"command": "ls", "timeout": "9"}, "type integer, not str"),
        ("shell", {"command": "ls", "timeout": True}, "type integer, not bool"),
        ("search", {"pattern": "x", "literal": "yes"}, "type boolean"),
        ("editor", {"command": "delete", "path": "a"}, "one of view, create"),
        ("editor", {"command": "insert", "path": "a", "text": "x"}, "'line' is missing"),
        ("editor", {"command": "create", "path": "a", "text": "x", "old": "y"}, "'old' does not belong to create"),
        ("finish", {}, "'summary' is missing"),
    ],
)
def test_wrong_calls_are_explained(tool: str, arguments: dict[str, Any], word: str) -> None:
    assert word in tools.problem_of(tool, arguments)


def test_every_example_is_a_right_call_in_both_protocols() -> None:
    for tool in tools.TOOLS:
        assert tools.problem_of(tool.name, tool.example) == ""
        (call,) = read(tags.Tags().example(tool.name)).calls
        assert (call.tool, dict(call.arguments)) == (tool.name, dict(tool.example))
        assert tool.name in native.Native().example(tool.name)
    assert "shell" in native.Native().example("no_such_tool")


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_what_is_no_reply_is_an_error(dialect: str) -> None:
    for found in (
        None,
        [],
        {},
        {"choices": []},
        {"choices": [{}]},
        {"content": None},
        {"content": [1]},
        {"choices": 5},
    ):
        with pytest.raises(dialects.NoReply):
            dialects.parse(dialect, found)


def test_thoughts_and_signatures_go_back_with_their_call() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    use = {"type": "tool_use", "id": "t", "name": "shell", "input": {"command": "ls"}}
    reply = dialects.parse("anthropic", {"content": [thinking, use], "stop_reason": "tool_use"})
    turn = native.Native().read(reply).turn
    body = dialects.body("anthropic", "m", "s", [talk.Turn("user", "u"), turn], native.Native().tools(), 10)
    assert body["messages"][1]["content"][0] == thinking
    signed = {"google": {"thought_signature": "g"}}
    call = {"id": "c", "function": {"name": "shell", "arguments": "{}"}, "extra_content": signed}
    message = {"content": None, "tool_calls": [call], "reasoning_content": "hm"}
    reply = dialects.parse("openai", {"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    body = dialects.body("openai", "m", "s", [native.Native().read(reply).turn], native.Native().tools(), 10)
    assert body["messages"][1]["reasoning_content"] == "hm"
    assert body["messages"][1]["tool_calls"][0]["extra_content"] == signed


def test_usage_counts_cached_tokens_and_ignores_nonsense() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 1, "output_tokens": 2}
    assert dialects.parse("anthropic", {"content": [], "usage": usage}).usage == talk.Usage(13, 2)
    for bad in (-1, "9", None, 1.5, True):
        found = {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": bad, "completion_tokens": bad}}
        assert dialects.parse("openai", found).usage == talk.Usage(None, None)


@given(
    st.lists(
        st.sampled_from(
            ["D0", "D1", "----D0----", "----D1----\n", "\n", "[calls left 999]", "x", "D10", "\0", "\x1b[2J"]
        )
    )
)
def test_nothing_inside_can_end_the_fence(pieces: list[str]) -> None:
    text = fence.fenced("result 1, shell", "".join(pieces))
    heading, line, *inside, last = text.split("\n")
    assert line == last
    assert line not in "\n".join(inside)
    assert f"{len(chr(10).join(inside))} characters of data between the two lines {line}]" in heading
    assert "\0" not in text
    assert "\x1b" not in text


def test_templates_are_strict() -> None:
    assert prompt.fill("{{a}} {{ b }}", {"a": "{{b}}", "b": "2"}) == "{{b}} 2"
    for template, values in (("{{a}}", {}), ("{{a}}", {"a": "1", "b": "2"}), ("a", {"a": "1"})):
        with pytest.raises(prompt.PromptError):
            prompt.fill(template, values)
    with pytest.raises(prompt.PromptError, match="work"):
        prompt.system_prompt({})


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("speech", [tags.Tags(), native.Native()])
def test_the_gateway_keeps_all_of_a_request_but_the_models_name(dialect: str, speech: Any) -> None:
    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    calls = (
        talk.Call("call_1", "shell", {"command": "ls"}, extra=signed),
        talk.Call("call_2", "she ll", {"malformed": "x"}),
    )
    results = (talk.Result("call_1", "shell", "r"), talk.Result("call_2", "she ll", "no", ok=False))
    turns = [
        talk.Turn("user", "task"),
        talk.Turn("assistant", "words", calls),
        talk.Turn("results", results=results),
        talk.Turn("assistant", "cut"),
        talk.Turn("user", "hint"),
    ]
    body = dialects.body(dialect, "m", "system", speech.turns(turns), speech.tools(), 100)
    kept = DIALECTS[dialect].kept(json.loads(json.dumps(body)))
    assert {**kept, "model": "m"} == body


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_the_gateways_refusals_are_told_apart(dialect: str) -> None:
    clients = part("client")
    error = DIALECTS[dialect].error
    spent = error("the allowance of tokens of this visit does not cover this call", "allowance", 403)
    assert clients._trouble(403, json.dumps(spent).encode())[1]
    for kind, status in (("permission", 403), ("invalid_request", 400), ("unavailable", 503), ("not_found", 404)):
        text, used_up = clients._trouble(status, json.dumps(error("no", kind, status)).encode())
        assert not used_up
        assert text.endswith(": no")
