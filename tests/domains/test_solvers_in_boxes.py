"""The classifiers that ask a model, as they run in earnest: on the docstrings, in real boxes, with a door to a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from leadscrew.adapters.executors import LocalExecutor
from leadscrew.adapters.sandboxes import choose
from leadscrew.core.budget import Caps
from leadscrew.core.trial import Outcome
from leadscrew.domains.docstrings import Docstrings
from leadscrew.domains.templates import SOLVERS
from leadscrew.ports import Access, BoxTrial, Item, Job
from leadscrew.testing.doors import FakeGateway
from leadscrew.testing.executor import run


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Docstrings:
    folder = str(tmp_path_factory.getbasetemp() / "docstrings-cache")
    return Docstrings(seed=3, labels=12, cache=folder, solver="llm")


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("purpose", ["evaluate", "smoke"])
async def test_one_call_per_prediction_and_none_to_learn(name: str, purpose: Any, domain: Docstrings) -> None:
    asked: list[Mapping[str, Any]] = []

    def answer(body: Mapping[str, Any]) -> str:
        asked.append(body)
        return f"I think that it is {body['labels'][len(asked) % 12].upper()}."

    val = domain.instances("val")[:5]
    job = Job(
        domain.baselines()[name],
        domain.interface,
        domain.limits,
        trials=tuple(BoxTrial(i.id, i.input, 0, i.dataset, i.id) for i in val),
        train=tuple(Item(i.id, i.input, i.expected, i.dataset) for i in domain.instances("train")),
        purpose=purpose,
        access=Access("solver", allowance=Caps(calls=1), learning="learn:x"),
    )
    gateway = FakeGateway(answer)
    executor = LocalExecutor(choose("auto"), 1, spares=0, gateway=gateway)
    try:
        replies = [reply for reply in await run(executor, job) if not reply.train]
    finally:
        await executor.close()
    assert [reply.outcome for reply in replies] == [Outcome.OK] * 5
    labels = asked[0]["labels"]
    assert len(labels) == 12
    prompts = [trial["prompt"] for reply in replies for trial in reply.trace.calls]
    assert [body["messages"][-1]["content"] for body in asked] == prompts
    for reply, instance in zip(replies, val, strict=True):
        assert reply.answer.value in labels
        assert reply.costs["model_calls"] == 1
        prompt = reply.trace.calls[0]["prompt"]
        assert f"Text: {instance.input}\nLabel:" in prompt
        assert reply.costs["context_chars"] == len(prompt) - len(instance.input)
        assert prompt.count("Label: ") == (0 if name == "no_memory" else prompt.count("Text: ") - 1)
    assert len(asked) == 5, "learning asks nothing, nor does the smoke test before there is anything learned"
