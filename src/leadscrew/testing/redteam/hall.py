"""Where attacks on models take place: a scripted provider, a gateway before it, and real boxes that ask it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from leadscrew.adapters.executors.local import LocalExecutor
from leadscrew.adapters.models.gateway import ModelGateway
from leadscrew.adapters.models.metering import RoleModel
from leadscrew.adapters.models.redact import Redactor
from leadscrew.adapters.models.upstream import Upstream
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Caps
from leadscrew.core.call import Pin
from leadscrew.core.program import Program
from leadscrew.core.task import Interface, Limits
from leadscrew.engine.commit import Committer
from leadscrew.engine.meter import Meter
from leadscrew.ports import Access, BoxTrial, Gateway, Item, Job, Sandbox
from leadscrew.testing.redteam.arena import QUICK, Arena, Play
from leadscrew.testing.redteam.naive_gateway import Made, NaiveGateway
from leadscrew.testing.upstream import Fault, Reply, ScriptedUpstream

# What hostile clients do to the scripted provider is no news for the terminal.
logging.getLogger("aiohttp.server").addHandler(logging.NullHandler())

KEY_NAME = "REDTEAM_KEY"
ROLES = {"solver": "small", "judge": "large", "proposer": "small"}
"""The roles of a hall and the models behind them."""
MAX_TOKENS = 64
FREE = Caps()
"""No cap at all."""

CLIENT = '''
import http.client, json, os, socket

def place(given):
    """The door of this box, or where a naive harness has it."""
    return os.environ.get("LEADSCREW_SOCKET") or given.get("socket") or "/run/leadscrew.sock"

def opened(given, way="socket"):
    if way == "socket":
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(given.get("timeout", 3))
        link.connect(place(given))
        return link
    base = os.environ.get("OPENAI_BASE_URL") or "http://127.0.0.1:%d/v1" % given["port"]
    return socket.create_connection(("127.0.0.1", int(base.split(":")[2].split("/")[0])), given.get("timeout", 3))

def raw(body, path="/v1/chat/completions", method="POST", headers=(), http="HTTP/1.1"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = ["%s %s %s" % (method, path, http), "Host: gateway", "Content-Type: application/json",
             "Content-Length: %d" % len(data)]
    return "\\r\\n".join(lines + ["%s: %s" % h for h in headers]).encode() + b"\\r\\n\\r\\n" + data

def chat(text, **more):
    return {"model": "small", "messages": [{"role": "user", "content": text}], **more}

def ask(given, body, path="/v1/chat/completions", headers=(), way="socket"):
    """One call; returns (status, whole text). Status 0: nothing came back."""
    try:
        link = opened(given, way)
        link.sendall(raw(body, path, headers=headers))
        answer = http.client.HTTPResponse(link)
        answer.begin()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, type(error).__name__
'''
"""What hostile programs have at hand: calls by hand, so that no client of ours keeps them from anything."""


def solver(body: str) -> str:
    """Return a program with `CLIENT` whose `solve` has this body (not indented); `given` is its input."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return f"{CLIENT}\ndef solve(given):\n{lines}\n"


class Hall:
    """An arena with models: the real gateway, or in a control the naive one. Use it as an asynchronous context manager.

    `reply` and `fault` are those of the scripted provider. `caps` bind the run.
    """

    def __init__(
        self,
        arena: Arena,
        reply: Reply = lambda request: "yes",
        *,
        fault: Callable[[int, dict[str, Any]], Fault | None] | Sequence[Fault | None] = (),
        caps: Caps = FREE,
        raw: bool = False,
        serial: bool = False,
        delay_s: float = 0.0,
        base_url: str = "",
    ) -> None:
        self.arena = arena
        self.key = f"sk-{arena.secret()}-{arena.secret()}"
        self.upstream = ScriptedUpstream(reply, fault=fault, delay_s=delay_s)
        self._caps, self._raw, self._serial, self._base_url = caps, raw, serial, base_url
        self.gateway: Gateway | None = None
        self.store: SQLiteStore | None = None
        self.naive: NaiveGateway | None = None
        self.events: list[Any] = []
        self._next = 0

    async def __aenter__(self) -> Hall:
        await self.upstream.start()
        if not self.arena.defended:
            self.gateway = self.naive = NaiveGateway(
                self._base_url or self.upstream.url, self.key, raw=self._raw, serial=self._serial
            )
            return self
        provider = self.upstream.provider("scripted", key_env=KEY_NAME)
        if self._base_url:
            provider = replace(provider, base_url=self._base_url)
        store = self.store = SQLiteStore.create(self.arena.folder / "run", config={}, seed=1)
        meter = Meter(self._caps, before=store.spend(), calls_before=store.call_spend(), role_caps={})
        self.gateway = ModelGateway(
            roles={
                role: RoleModel(
                    Pin(role, f"scripted/{model}", temperature=0.0, max_tokens=MAX_TOKENS), provider, 5.0, retries=0
                )
                for role, model in ROLES.items()
            },
            store=store,
            committer=Committer(store),
            accounts=meter.calls,
            upstream=Upstream({KEY_NAME: self.key}),
            redact=Redactor({KEY_NAME: self.key}),
            observe=self.events.append,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.gateway is not None:
            await self.gateway.close()
        await self.upstream.stop()
        if self.store is not None:
            self.store.close()

    async def run(
        self,
        program: str | Mapping[str, str],
        inputs: Sequence[Any],
        *,
        allowance: Caps = FREE,
        role: str = "solver",
        candidate: str = "1.0",
        plan: int = 1,
        instances: Sequence[str] = (),
        repeats: Sequence[int] = (),
        train: Sequence[Item] = (),
        interface: Interface | None = None,
        limits: Limits = QUICK,
        fork_sharing: bool = False,
        sandbox: Sandbox | None = None,
        root: Path | None = None,
    ) -> Play:
        """Run a program in one real box with a door to the gateway, trial after trial, and return how it went.

        Trials have scopes of their own in the whole hall. A trial that is void has the outcome `infra`.
        """
        tree = Program.of({"main.py": program} if isinstance(program, str) else program)
        first, self._next = self._next, self._next + len(inputs)
        trials = tuple(
            BoxTrial(
                f"trial-{first + i}",
                value,
                instance=instances[i] if instances else f"val:{first + i}",
                repeat=repeats[i] if repeats else 0,
            )
            for i, value in enumerate(inputs)
        )
        job = Job(
            program=tree,
            interface=interface or Interface("solve"),
            limits=limits,
            trials=trials,
            train=tuple(train),
            access=Access(role, plan, candidate, allowance, f"learn:{candidate}"),
        )
        executor = LocalExecutor(
            sandbox or self.arena.sandbox, 1, spares=0, root=root, gateway=self.gateway, fork_sharing=fork_sharing
        )
        try:
            replies = [reply async for reply in executor.run(job)]
        finally:
            await executor.close()
        order = {trial.key: i for i, trial in enumerate(trials)}
        last = sorted((r for r in replies if not r.train), key=lambda r: order[r.key])
        return Play(tuple(last), tuple(r for r in replies if r.train))

    def made(self) -> list[Made]:
        """Return every call as it was booked."""
        if self.naive is not None:
            return self.naive.made
        assert self.store is not None
        return [
            Made(c.role, c.plan, c.candidate, c.scope, str(c.body["messages"][-1]["content"]))
            for _, c, _ in self.store.calls()
        ]

    def asked(self, word: str) -> int:
        """Return how many requests with this word in them reached the provider."""
        return sum(word in repr(body) for body in self.upstream.bodies)

    def written(self) -> str:
        """Return all that the run has kept of its calls: its files and events, or the naive gateway's log."""
        if self.naive is not None:
            return repr(self.naive.log) + repr(self.naive.cache)
        found = [repr(self.events)]
        for path in sorted((self.arena.folder / "run").rglob("*")):
            if path.is_file():
                found.append(path.read_bytes().decode("latin-1"))
        return "".join(found)
