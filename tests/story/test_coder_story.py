"""The built-in coder improves a program: a whole run, its model behind a provider's address, everything else real.

The provider is a small HTTP server of this test that answers by a script, as a model would that knows what to do: it
reads the history, greps the logs, takes two recorded programs, joins them, tries the result, and delivers.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from leadscrew import runs
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.core.proposal import Edit
from leadscrew.errors import InfrastructureError, SandboxUnavailable
from support.coder_script import Step, Working, deliverable, shell

JOIN = """\
cd /work && mkdir -p candidates/joined && cd candidates/joined
bayes=$(grep -l ComplementBayes /bench/history/candidates/0.*/program/main.py | head -n 1)
chars=$(grep -l CharCentroid /bench/history/candidates/0.*/program/main.py | head -n 1)
words=$(grep -l WordNearest /bench/history/candidates/0.*/program/main.py | head -n 1)
cp "$words" main.py && cp "$bayes" likely.py && cp "$chars" characters.py
cat >> main.py <<'END'

import characters
import likely

VOTERS.extend(likely.VOTERS)
VOTERS.extend(characters.VOTERS)
END
"""
TRY = """\
cd /work/candidates/joined && python3 - <<'END'
import main
c = main.Classifier()
c.learn_from_batch([{"input": t, "ground_truth": t[0], "prediction": None, "was_correct": None, "metadata": {}}
                    for t in ("alpha beta", "beta gamma")])
print("answers", c.predict("alpha"))
END
"""
SCRIPT: tuple[Step, ...] = (
    shell("cut -c 1-300 /bench/history/evolution_summary.jsonl; cat /bench/history/frontier_val.json"),
    shell("grep -c '\"ok\": false' /bench/history/candidates/*/log.jsonl"),
    ("search", {"pattern": "^VOTERS", "path": "/bench/history/candidates", "glob": "*.py"}),
    shell(JOIN),
    shell(TRY),
    deliverable(
        {
            "name": "joined",
            "file": "candidates/joined",
            "hypothesis": "words and character patterns err on different texts, so their votes together err less",
            "axis": "exploitation",
            "base_system": "words_1nn",
            "components": ["voting"],
        }
    ),
    ("finish", {"summary": "joined"}),
)


class Provider:
    """An OpenAI-compatible endpoint over a script. `down` lets it fail instead."""

    def __init__(self) -> None:
        self.model = Working(SCRIPT)
        self.down = False
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if provider.down:
                    status, reply = 503, {"error": {"message": "overloaded"}}
                else:
                    status, reply = 200, dict(asyncio.run(provider.model.complete(body)))
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


def config(folder: Path, address: str) -> dict[str, Any]:
    return {
        "run": {"out": str(folder), "plans_in_flight": 1, "workers": 2, "seed": 3},
        "domain": {"name": "docstrings", "options": {"limit": {"train": 400, "val": 120, "test": 20}}},
        "proposer": {"name": "coder", "options": {"timeout_s": 120}},
        "harness": {"iterations": 1, "candidates": 1, "promotion": "published"},
        "providers": {"mine": {"base_url": address}},
        "models": {"proposer": {"model": "mine/scripted", "max_tokens": 2048, "retries": 0}},
    }


def go(settings: dict[str, Any]) -> runs.RunResult:
    try:
        return runs.run(settings)
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def test_the_coder_reads_the_history_and_improves_a_program(tmp_path: Path, provider: Provider) -> None:
    folder = tmp_path / "run"
    go(config(folder, provider.address))
    store = SQLiteStore.open(folder, readonly=True)
    candidates = {c.id: c for c in store.candidates()}
    joined = candidates["1.0"]
    assert (joined.name, joined.status, joined.operator) == ("joined", "evaluated", "coder"), joined.reason
    assert joined.value is not None
    base = candidates[joined.sources("base")[0]]
    assert (base.name, base.id) == ("words_1nn", "0.0")
    # The data are those of the interpreter's own library: how much better differs, that it is does not.
    assert base.value is not None
    assert joined.value > base.value
    assert set(store.program(joined.program)) == {"main.py", "likely.py", "characters.py"}
    calls = list(store.calls())
    assert len(calls) == len(SCRIPT) == len(provider.model.asked)
    assert {(c.role, c.plan, c.candidate) for _, c, _ in calls} == {("proposer", 1, "")}
    assert all(isinstance(stored.plan, Edit) for stored in store.plans())
    assert store.spend().calls == len(SCRIPT)
    store.close()

    session = folder / "sessions" / "1-1"
    meta = json.loads((session / "meta.json").read_text())
    assert meta["model"] == "mine/scripted"
    assert meta["read_share"]["scores"] > 0
    assert meta["read_share"]["traces"] > 0, "the logs were grepped on the way"
    assert "log.jsonl:" in (session / "tools" / "002_shell.txt").read_text()
    assert "answers (" in (session / "tools" / "005_shell.txt").read_text()
    assert list((folder / "tmp").iterdir() if (folder / "tmp").exists() else []) == []


def test_a_provider_that_is_down_costs_no_iteration_and_the_resumed_run_is_the_same(
    tmp_path: Path, provider: Provider
) -> None:
    provider.down = True
    folder = tmp_path / "run"
    with pytest.raises(InfrastructureError, match=r"the model behind the proposer failed"):
        go(config(folder, provider.address))
    store = SQLiteStore.open(folder, readonly=True)
    assert not list(store.proposals(1)), "nothing was written down as a proposal"
    store.close()
    provider.down = False
    runs.resume(folder)
    go(config(tmp_path / "other", provider.address))
    digests = []
    for place in (folder, tmp_path / "other"):
        store = SQLiteStore.open(place, readonly=True)
        digests.append(store.archive_digest())
        store.close()
    assert digests[0] == digests[1]
