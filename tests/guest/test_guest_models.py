"""What a worker does for programs that call models: the host's word on time and turns, and the way out."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.guest_worker import Worker, worker_in

FOR_EVER = 1e6
SLEEPER = """
import os, time
MARK = os.urandom(8).hex()
def solve(input):
    print("began", flush=True)
    open("../tmp/began", "w").close()
    time.sleep(input)
    return MARK
"""
LEARNER = (
    "class L:\n    def __init__(self):\n        self.n = 0\n    def predict(self, input):\n        return self.n\n"
)
LEARNER += "    def learn(self, batch):\n        self.n += 1\n"
TRAIN = [{"input": n, "expected": n} for n in range(3)]


@contextmanager
def gateway(folder: Path, reply: bytes) -> Iterator[list[bytes]]:
    """A socket that answers every request with the same bytes; yields the requests."""
    seen: list[bytes] = []
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(folder / "llm.sock"))
    sock.listen(128)

    def serve() -> None:
        while True:
            try:
                link, _ = sock.accept()
            except OSError:
                return
            with link, suppress(ConnectionError):
                head, _, body = link.recv(1 << 16).partition(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", head.lower())
                while size and len(body) < int(size[1]) and (more := link.recv(1 << 16)):
                    body += more
                seen.append(head + b"\r\n\r\n" + body)
                link.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield seen
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        thread.join()


def http(body: Any, status: int = 200) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(data)) + data


def completion(text: object) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def stop_when_begun(worker: Worker) -> None:
    """Let the host say stop as soon as the program has begun, which it tells by a file."""

    def wait() -> None:
        while not (worker.root / "tmp" / "began").exists():
            time.sleep(0.01)
        worker.say("stop")

    threading.Thread(target=wait).start()


# -- time and turns ----------------------------------------------------------------------------------


def test_the_host_ends_a_trial_and_the_worker_serves_on(tmp_path: Path) -> None:
    with worker_in(tmp_path) as worker:
        worker.load(SLEEPER)
        mark = worker.answer(0)
        worker.say("stop", 1)
        assert worker.answer(0) == mark, "a stop that comes too late, for another request, is nothing"
        request = {"op": "trial", "operation": "solve", "input": 1000, "seed": 0, "wall_s": FOR_EVER}
        stop_when_begun(worker)
        report = worker.ask(request, "done")[-1]
        assert (report["outcome"], report["stdout"], report["last"]) == ("timeout", "began\n", False)
        assert "wall time" in report["message"]
        assert worker.answer(0) == mark


def test_the_host_ends_loading(tmp_path: Path) -> None:
    with worker_in(tmp_path) as worker:
        stop_when_begun(worker)
        report = worker.load("import time\nopen('../tmp/began', 'w').close()\ntime.sleep(1000)\n", wall_s=FOR_EVER)
    assert report["outcome"] == "timeout"


def test_a_worker_that_is_paced_waits_before_each_item(tmp_path: Path) -> None:
    with worker_in(tmp_path) as worker:
        assert worker.load(LEARNER, "predict", last="next", train=TRAIN, paced=True)["next"] == 0
        for turn in range(3):
            worker.say("go", 999)  # meant for another request
            worker.say("go")
            item, asks = worker.until("next" if turn < 2 else "loaded")
            assert (item["item"], item["raw"]) == (turn, str(turn))
            assert asks.get("next", 3) == turn + 1
        assert asks["outcome"] == "ok"


def test_the_host_ends_learning_between_items(tmp_path: Path) -> None:
    with worker_in(tmp_path) as worker:
        worker.load(LEARNER, "predict", last="next", train=TRAIN, paced=True)
        worker.say("go")
        worker.until("next")
        worker.say("stop")
        assert worker.until("loaded")[-1]["outcome"] == "timeout"


def test_the_host_ends_an_episode_instead_of_observing(tmp_path: Path) -> None:
    with worker_in(tmp_path) as worker:
        worker.load("def act(observation):\n    return 1\n", "act")
        request = {"op": "trial", "operation": "act", "input": 1, "observation": 0, "seed": 0, "wall_s": FOR_EVER}
        worker.ask(request, "step")
        worker.say("stop")
        assert worker.until("done")[-1]["outcome"] == "timeout"


# -- the way out -------------------------------------------------------------------------------------


def test_a_worker_without_a_door_imports_nothing_for_one(tmp_path: Path) -> None:
    source = "import os, sys\ndef solve(input):\n    return [m in sys.modules for m in ('http.client', 'socket', 'email')] + [\n"
    source += "        n for n in os.environ if 'OPENAI' in n or 'ANTHROPIC' in n or 'LEADSCREW' in n]\n"
    with worker_in(tmp_path) as worker:
        worker.load(source)
        assert worker.answer(1) == [False] * 3
    with worker_in(tmp_path, LEADSCREW_SOCKET="/run/leadscrew.sock") as worker, gateway(tmp_path, b""):
        worker.load(source, socket=str(tmp_path / "llm.sock"))
        assert worker.answer(1)[:3] == [True] * 3


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (http({"error": {"message": "enough now"}}, 429), [429, "enough now"]),
        (http({"error": "plain"}, 500), [500, "plain"]),
        (http(["odd"], 500), [500, "odd"]),
        (http(b"no json"), [200, "no json"]),
        (http([1]), [200, "no JSON object"]),
        (http({"choices": []}), [200, "no message"]),
        (b"", [0, "cut the call off"]),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", [0, "cut the call off"]),
        (b"nonsense\r\n\r\n", [0, "cut the call off"]),
    ],
)
def test_every_bad_reply_is_a_model_error(tmp_path: Path, reply: bytes, says: list[Any]) -> None:
    source = (
        "from leadscrew_guest import ModelError, llm\ndef solve(input):\n    try:\n        return llm('x')\n"
        "    except ModelError as error:\n        return [error.status, str(error)]\n"
    )
    with worker_in(tmp_path) as worker, gateway(tmp_path, reply):
        worker.load(source, socket=str(tmp_path / "llm.sock"))
        status, text = worker.answer(1)
    assert status == says[0]
    assert says[1] in text


def test_who_hangs_up_early_is_heard_and_nobody_dies_of_it(tmp_path: Path) -> None:
    source = (
        "from leadscrew_guest import ModelError, llm\ndef solve(input):\n    try:\n        return llm('x' * input)\n"
        "    except ModelError as error:\n        return [error.status, str(error)]\n"
    )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(tmp_path / "llm.sock"))
    sock.listen(10)

    def refuse() -> None:
        for _ in range(3):
            link, _ = sock.accept()
            link.recv(10)
            link.sendall(http({"error": "too large"}, 413))
            link.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    with worker_in(tmp_path) as worker:
        worker.load(source, socket=str(tmp_path / "llm.sock"))
        said = [worker.answer(5_000_000) for _ in range(3)]
    thread.join()
    sock.close()
    for status, text in said:
        assert (status, text) == (413, "too large") or (status == 0 and "cut the call off" in text)


def test_what_is_asked_arrives_as_it_was_said(tmp_path: Path) -> None:
    source = (
        "from leadscrew_guest import llm\ndef solve(input):\n"
        "    return [llm('ä', labels=('x', 'y'), response_format=None), llm('b')]\n"
    )
    with worker_in(tmp_path) as worker, gateway(tmp_path, http(completion("ü"))) as seen:
        worker.load(source, socket=str(tmp_path / "llm.sock"))
        assert worker.answer(1) == ["ü", "ü"]
    head, body = seen[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert json.loads(body) == {"messages": [{"role": "user", "content": "ä"}], "labels": ["x", "y"]}
    assert json.loads(seen[1].split(b"\r\n\r\n")[1]) == {"messages": [{"role": "user", "content": "b"}]}


def test_a_reply_without_text_is_empty_and_one_without_scores_is_told(tmp_path: Path) -> None:
    source = (
        "from leadscrew_guest import llm, scores\ndef solve(input):\n    try:\n        scores('x', ['a'])\n"
        "    except RuntimeError as error:\n        return [llm('x'), str(error)]\n"
    )
    with worker_in(tmp_path) as worker, gateway(tmp_path, http(completion(None))):
        worker.load(source, socket=str(tmp_path / "llm.sock"))
        text, error = worker.answer(1)
    assert text == ""
    assert "cannot score labels" in error


def test_a_trial_that_floods_the_way_out_harms_no_later_one(tmp_path: Path) -> None:
    source = """
import os, socket, urllib.request
def solve(input):
    url = os.environ["OPENAI_BASE_URL"]
    if input == "flood":
        port = int(url.split(":")[2].split("/")[0])
        links = []
        for _ in range(90):
            link = socket.socket()
            link.setblocking(False)
            try:
                link.connect(("127.0.0.1", port))
            except BlockingIOError:
                pass
            links.append(link)
        for link in links:
            try:
                link.send(b"x" * 1000000)
            except OSError:
                pass
        return len(links)
    return urllib.request.urlopen(url).read().decode()
"""
    with worker_in(tmp_path) as worker, gateway(tmp_path, http(b"hello")) as seen:
        worker.load(source, socket=str(tmp_path / "llm.sock"))
        for _ in range(3):
            assert worker.answer("flood") == 90
            assert worker.answer("ask") == "hello"
    assert len([request for request in seen if request.startswith(b"GET ")]) == 3
