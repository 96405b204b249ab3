"""The small run of `made_run` with recorded model calls: paid, shared, failed, unanswered, of a proposer, of the final test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.budget import Spend
from leadscrew.core.call import Call, CallReply
from support.made_run import BETTER, make_run


def reply_body(text: str) -> dict[str, Any]:
    """A reply in the OpenAI form."""
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


def asked(prompt: str, **more: Any) -> Call:
    """A call of the candidate 1.0 on the instance a."""
    known = {
        "role": "solver", "plan": 1, "candidate": BETTER.digest, "scope": "1" * 64, "request": "2" * 64,
        "occurrence": 0, "model": "scripted/x.json", "instance": "val:a", "bound": 1000, "bound_micro_usd": 2000,
        "body": {"messages": [{"role": "user", "content": prompt}]},
    }  # fmt: skip
    return Call(**{**known, **more})


def make_asked_run(folder: Path, *, priced: bool = True) -> Path:
    """Write the run into `folder` and return it."""
    make_run(folder)
    toml = folder / "config.toml"
    toml.write_text(
        toml.read_text("utf-8").replace("trials = 50", "trials = 50\ntokens = 5000000\nusd = 2.0")
        + '\n[models.solver]\nmodel = "scripted/x.json"\n[models.solver.budget]\ncalls = 40\n'
        + '[models.proposer]\nmodel = "scripted/x.json"\n',
        "utf-8",
    )
    store = SQLiteStore.open(folder, readonly=False)
    paid = Spend(calls=1, tokens_in=30, tokens_out=4, micro_usd=120 if priced else None)
    first = store.add_call(asked("What is one plus one?"))
    store.add_reply(first, CallReply("ok", body=reply_body("two"), tokens_in=30, tokens_out=4, spend=paid, wall_ms=250))
    shared = store.add_call(asked("What is one plus one?", scope="3" * 64))
    body = reply_body("two")
    store.add_reply(shared, CallReply("ok", "cache", body=body, tokens_in=30, tokens_out=4, attempts=0))
    down = store.add_call(asked("And two plus two?"))
    lost = Spend(calls=1)
    store.add_reply(down, CallReply("failed", spend=lost, attempts=3, uncertain=1, message="503: overloaded"))
    store.add_call(asked("Improve it.", role="proposer", candidate="", instance="", scope="plan:1:propose"))
    last = store.add_call(asked("What is one plus one?", plan=-1, scope="4" * 64))
    store.add_reply(last, CallReply("ok", body=reply_body("two"), tokens_in=30, tokens_out=4, spend=paid))
    store.commit()
    store.close()
    return folder
