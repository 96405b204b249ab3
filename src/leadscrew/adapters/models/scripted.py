"""A deterministic model for tests and demonstrations: replies from a table or a function. Running out is an error."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leadscrew.adapters.models.dialects import OPENAI
from leadscrew.errors import ConfigError, InfrastructureError

Said = str | Mapping[str, Any]
"""A text, or a whole reply or message in the OpenAI form (`choices`, or `content` and `tool_calls`)."""
Script = Sequence[Said] | Mapping[str, Said | Sequence[Said]] | Callable[[Mapping[str, Any]], Any]


class ScriptedModel:
    """A model that says what it is told to say; a `leadscrew.ports.Model`.

    `replies` is one of three. A list: the replies in the order of the calls, each once. A mapping: the first key that fits the
    prompt (everything the model reads, as text, with a line like `[user]` before each message) answers; a key fits if it is
    contained in the prompt, or, written `/.../`, is found in it as a regular expression (`^` and `$` at the ends of lines too);
    a list behind a key is used up one by one. A function: it gets the request in the OpenAI form and returns the reply, or
    awaits it. Lists depend on the order of calls, so with calls at the same time on chance; the rest does not. Where no reply
    is left, `InfrastructureError` says for which prompt. Tokens are counted as one for each four bytes.

    >>> import asyncio
    >>> model = ScriptedModel({"2 + 2": "four"})
    >>> request = {"messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    >>> asyncio.run(model.complete(request))["choices"][0]["message"]["content"]
    'four'
    """

    name = "scripted"

    def __init__(self, replies: Script) -> None:
        self._replies = replies
        self._used: dict[str, int] = {}
        self.calls = 0

    async def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request; raises `InfrastructureError` if the script has no reply to it."""
        self.calls += 1
        prompt = OPENAI.prompt(request)
        replies = self._replies
        if callable(replies):
            said = replies(request)
            if inspect.isawaitable(said):
                said = await said
        elif isinstance(replies, Mapping):
            said = self._matching(replies, prompt)
        else:
            said = self._next("", replies, prompt)
        return _whole(said, request, prompt)

    async def close(self) -> None:
        """Nothing is held."""

    def _matching(self, replies: Mapping[str, Said | Sequence[Said]], prompt: str) -> Said:
        for key, said in replies.items():
            pattern = key[1:-1] if len(key) > 2 and key.startswith("/") and key.endswith("/") else ""
            if key in prompt or (pattern and re.search(pattern, prompt, re.MULTILINE)):
                return said if isinstance(said, (str, Mapping)) else self._next(key, said, prompt)
        raise InfrastructureError(f"the scripted model has no reply to this prompt: {_shown(prompt)}")

    def _next(self, key: str, replies: Sequence[Said], prompt: str) -> Said:
        number = self._used.get(key, 0)
        if number >= len(replies):
            where = f" for {key!r}" if key else ""
            raise InfrastructureError(
                f"the scripted model has used up its {len(replies)} replies{where}; this prompt is one too many: "
                f"{_shown(prompt)}"
            )
        self._used[key] = number + 1
        return replies[number]


def load(script: str) -> ScriptedModel:
    """Return the model of `FILE.json` (a list or a mapping of replies) or `FILE.py:function`; raises `ConfigError`."""
    file, colon, attribute = ("", "", "") if Path(script).is_file() else script.rpartition(":")
    path = Path(file if colon else script)
    if not path.is_file():
        raise ConfigError(
            f"the model 'scripted/{script}': there is no file {str(path)!r}. Write scripted/FILE.json or "
            "scripted/FILE.py:function.",
            value=script,
        )
    if (path.suffix == ".py") != bool(colon):
        raise ConfigError(
            f"the model 'scripted/{script}': a file of Python needs the name of its function, and no other file has one. Write "
            "scripted/FILE.json or scripted/FILE.py:function.",
            value=script,
        )
    if not colon:
        try:
            replies = json.loads(path.read_text("utf-8"))
        except (ValueError, OSError) as error:
            raise ConfigError(f"the script {str(path)!r} is no valid JSON: {error}.", value=script) from error
        if not isinstance(replies, (list, dict)):
            raise ConfigError(f"the script {str(path)!r} must hold a list or a mapping of replies.", value=script)
        fault = _fault(replies)
        if fault:
            raise ConfigError(f"the script {str(path)!r}: {fault}.", value=script)
        return ScriptedModel(replies)
    found = getattr(_module(path), attribute, None)
    if not callable(found):
        raise ConfigError(f"{str(path)!r} has no function {attribute!r} for the scripted model.", value=script)
    return ScriptedModel(found)


def _fault(replies: list[Any] | dict[str, Any]) -> str:
    """Say what is wrong with replies from a file; empty if nothing is."""
    rows = replies.items() if isinstance(replies, dict) else enumerate(replies)
    for key, said in rows:
        if isinstance(key, str) and len(key) > 2 and key.startswith("/") and key.endswith("/"):
            try:
                re.compile(key[1:-1])
            except re.error as error:
                return f"{key!r} is no regular expression: {error}"
        several = said if isinstance(replies, dict) and isinstance(said, list) else [said]
        if not all(isinstance(one, (str, dict)) for one in several):
            return f"the reply at {key!r} must be a text or a mapping" + (", or a list of them" * isinstance(key, str))
    return ""


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"leadscrew_script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the script {str(path)!r} cannot be loaded: {type(error).__name__}: {error}", value=str(path)
        ) from error
    return module


def _whole(said: Any, request: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    if isinstance(said, str):
        said = {"content": said}
    if not isinstance(said, Mapping):
        raise InfrastructureError(f"the scripted model must reply with text or a mapping, not {type(said).__name__}")
    if "choices" in said:
        whole = dict(said)
    else:
        message = {"role": "assistant", "content": None, **said}
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        whole = {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 0,
            "model": str(request.get("model", "scripted")),
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }
    if "usage" not in whole:
        tokens_in, tokens_out = _tokens(prompt), _tokens(OPENAI.text(whole))
        whole["usage"] = {
            "prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out,
        }  # fmt: skip
    return whole


def _tokens(text: str) -> int:
    return max(1, math.ceil(len(text.encode("utf-8", "replace")) / 4))


def _shown(prompt: str) -> str:
    return repr(prompt if len(prompt) <= 400 else f"{prompt[:200]} ... {prompt[-200:]}")
