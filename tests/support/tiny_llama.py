"""Stands in for the native package under the local model where it is not installed: a "model" over single characters.

Its next-token probabilities are a fixed function of everything before, so that they can be summed up by hand. It does what it
is told in a prompt: DIE ends the process, DIE-ONCE does so once (a file remembers), SLEEP never answers.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

END = 3
LISTED = 4
"""No more next tokens than this are ever listed, whatever was asked for."""


def logprobs(tokens: Sequence[int]) -> list[float]:
    """The log probability of each of 128 next tokens."""
    rng = random.Random(json.dumps(list(tokens)))
    raw = [rng.gauss(0, 3) for _ in range(128)]
    whole = math.log(sum(math.exp(x) for x in raw))
    return [x - whole for x in raw]


def tokens_of(text: str, special: bool) -> list[int]:
    """One token for each character, and one for the mark of an end."""
    if special and text == "<|im_end|>":
        return [END]
    return [ord(char) % 128 for char in text]


class CommonParams:
    """The parameters that are set."""

    def __init__(self) -> None:
        self.model = SimpleNamespace(path="")
        self.cpuparams, self.cpuparams_batch = SimpleNamespace(), SimpleNamespace()
        self.api_keys: list[str] = []


class Server:
    """A loaded model: completions as calls, questions about tokens over HTTP, to who knows the key."""

    def __init__(self, params: CommonParams) -> None:
        self.path = Path(params.model.path)
        if self.path.read_bytes() == b"broken":
            print("this file holds no model", file=sys.stderr)
            os._exit(3)
        key = params.api_keys[0]
        print("noise on standard output", flush=True)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.headers["Authorization"] == f"Bearer {key}"
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                said: dict[str, Any]
                if self.path == "/tokenize":
                    said = {"tokens": tokens_of(body["content"], body["parse_special"])}
                else:
                    said = {"prompt": "".join(f"<{m['role']}>{m['content']}\n" for m in body["messages"])}
                data = json.dumps(said).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is printed."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{self.http.server_port}"

    def handle_completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One next token, the likeliest or the forced one, with the log probabilities before any force."""
        after = logprobs(body["prompt"])
        order = sorted(range(128), key=lambda token: -after[token])
        chosen = body["logit_bias"][0][0] if body.get("logit_bias") else order[0]
        top = [{"id": t, "logprob": after[t]} for t in order[: min(LISTED, body.get("n_probs", 0))]]
        entry = {"id": chosen, "logprob": after[chosen], "top_logprobs": top}
        return {"choices": [{"text": "", "logprobs": {"content": [entry]}}]}

    def handle_chat_completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The last message again, or what it asks for."""
        text = body["messages"][-1]["content"]
        mark = self.path.with_name("died")
        if text == "DIE" or (text == "DIE-ONCE" and not mark.exists()):
            mark.touch()
            print("about to crash", file=sys.stderr, flush=True)
            os._exit(9)
        if text == "SLEEP":
            self.path.with_name("asleep").touch()
            time.sleep(3600)
        if body.get("grammar") == "nonsense":
            raise ValueError("no grammar")
        if text == "FAIL":
            return {"error": {"code": 500, "message": "out of luck"}}
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "prompt_tokens_details": {"cached": 1}}
        message = {"role": "assistant", "content": f"{os.getpid()} {text}"}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage, "timings": {}}
