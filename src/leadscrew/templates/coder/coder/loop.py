"""The tool loop: ask the model, run what it calls, show it the result, until it is done or something is used up."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from coder import dialects
from coder.budget import Budget
from coder.context import Context
from coder.ends import MODEL_DECLINED, MODEL_FAILED, MODEL_REFUSED, PROTOCOL_FAILURES, End
from coder.events import Events
from coder.speech import Read, Speech
from coder.talk import Call, Reply, Result, Turn
from coder.tools import FINISH, Toolbox, problem_of

_TOO_LONG = re.compile(r"context|too long|too many tokens|maximum.{0,20}tokens", re.IGNORECASE)
"""How the providers say that a request does not fit into the window."""
Ask = Callable[[dict[str, Any], float], object]


@dataclass
class Session:
    """One conversation about one task. `ask` sends a request body, within so many seconds, and returns the reply's body."""

    system: str
    turns: list[Turn]
    speech: Speech
    ask: Ask
    toolbox: Toolbox
    budget: Budget
    context: Context
    events: Events
    dialect: str = "openai"
    model: str = "model"
    reply_tokens: int = 4096
    most_failures: int = 5
    failures: int = 0
    called: int = 0
    last_words: str = field(default="")

    def run(self) -> str:
        """Work until the model is done; return its last words. Raises `End` for every other end."""
        self.events.write("message", role="system", text=self.system)
        for turn in self.turns:
            self.events.write("message", role=turn.role, text=turn.text)
        while True:
            reply = self._reply()
            if reply.text:
                self.last_words = reply.text
                self.events.write("message", role="assistant", text=reply.text)
            if reply.stop == "declined":
                raise End(MODEL_DECLINED, reply.text[:500])
            read = self.speech.read(reply)
            if not read.calls and not read.problem:
                return reply.text
            if read.calls and read.calls[0].tool == FINISH and not self._problem(read.calls[0]):
                summary = str(read.calls[0].arguments["summary"])
                self.events.write(
                    "tool_call", id=f"call_{self.called + 1}", tool=FINISH, arguments={"summary": summary}
                )
                self.last_words = summary
                return summary
            if read.problem:
                self._hint(read)
            else:
                self._calls(read)
            if self.failures >= self.most_failures:
                raise End(PROTOCOL_FAILURES, f"{self.failures} in a row")

    def _reply(self) -> Reply:
        """Ask the model for its next turn, within window and budgets."""
        while True:
            self.turns, shortened = self.context.fit(self.turns, self._body)
            if shortened:
                self.events.write("context", shortened=shortened)
            body = self._body(self.turns)
            prompt = self.context.tokens(body)
            body["max_tokens"] = self.budget.reply_room(prompt, self.reply_tokens)
            start = time.monotonic()
            try:
                found = self.ask(body, self.budget.seconds_left)
                break
            except End as end:
                if end.code != MODEL_REFUSED or not _TOO_LONG.search(end.detail) or not self.context.too_much():
                    raise
        try:
            reply = dialects.parse(self.dialect, found)
        except dialects.NoReply as error:
            raise End(MODEL_FAILED, str(error)) from None
        self._count(body, prompt, reply, found, time.monotonic() - start)
        return reply

    def _body(self, turns: list[Turn]) -> dict[str, Any]:
        """Return the request that a conversation makes."""
        spoken = self.speech.turns(turns)
        return dialects.body(self.dialect, self.model, self.system, spoken, self.speech.tools(), self.reply_tokens)

    def _count(self, body: dict[str, Any], prompt: int, reply: Reply, found: object, seconds: float) -> None:
        """Book the tokens of a request: the model's figures, or ours where it gave none."""
        usage = reply.usage
        if usage.prompt:
            self.context.learn(body, usage.prompt)
        used_in = usage.prompt or prompt
        used_out = usage.reply if usage.reply is not None else min(body["max_tokens"], self.context.tokens(found))
        self.budget.tokens_used += used_in + used_out
        self.events.write(
            "usage",
            prompt_tokens=used_in,
            reply_tokens=used_out,
            estimated=not usage.prompt or usage.reply is None,
            seconds=round(seconds, 3),
            calls=self.budget.calls_used,
            tokens=self.budget.tokens_used,
        )

    def _hint(self, read: Read) -> None:
        """Answer a reply that cannot be acted on at all."""
        self.failures += 1
        self.budget.calls_used += 1
        example = self.speech.example("shell")
        text = f"[Nothing was run: {read.problem}. A right call, for example: {example}]\n[{self.budget.line()}]"
        self.turns += [read.turn, Turn("user", text)]
        self.events.write("message", role="user", text=text)

    def _calls(self, read: Read) -> None:
        """Run the first call of a reply and answer all of them."""
        calls = tuple(self._numbered(call) for call in read.calls)
        results = []
        for place, call in enumerate(calls):
            self.budget.calls_used = min(self.budget.calls, self.budget.calls_used + 1)
            self.events.write("tool_call", id=call.id, tool=call.tool, arguments=dict(call.arguments))
            start = time.monotonic()
            result = self._run(call, dropped=read.dropped) if place == 0 else self._refuse(call)
            results.append(result)
            seconds = round(time.monotonic() - start, 3)
            self.events.write(
                "tool_result", id=call.id, tool=call.tool, ok=result.ok, text=result.text, seconds=seconds
            )
        self.turns += [replace(read.turn, calls=calls), Turn("results", results=tuple(results))]

    def _numbered(self, call: Call) -> Call:
        self.called += 1
        return replace(call, id=f"call_{self.called}")

    def _problem(self, call: Call) -> str:
        return call.problem or problem_of(call.tool, call.arguments)

    def _run(self, call: Call, *, dropped: bool) -> Result:
        problem = self._problem(call)
        if problem:
            self.failures += 1
            text = f"[Not run: {problem}. A right call, for example: {self.speech.example(call.tool)}]"
        else:
            self.failures = 0
            answer = self.toolbox.run(call.tool, call.arguments, self.budget.seconds_left)
            text = self.toolbox.text(f"result {self.called}, {call.tool}", answer)
            problem = "" if answer.ok else answer.note
        if dropped:
            text += "\n[Your reply held further calls, which were dropped: one call in one reply.]"
        return Result(call.id, call.tool, f"{text}\n[{self.budget.line()}]", ok=not problem)

    def _refuse(self, call: Call) -> Result:
        text = "[Not run: one call in one reply, and this was not the first. Call again if it is still wanted.]"
        return Result(call.id, call.tool, f"{text}\n[{self.budget.line()}]", ok=False)
