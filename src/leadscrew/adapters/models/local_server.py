"""A small model in a process of its own: requests as JSON lines on standard input, replies on standard output, one at a time.

Started as `python -m leadscrew.adapters.models.local_server MODEL.gguf`. Native code that crashes takes nothing along but itself.
Requests are answered in the order in which they come, so that a reply depends on the request alone.
"""

from __future__ import annotations

import argparse
import ctypes
import heapq
import json
import os
import secrets
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

ALIAS = "smollm2"
TOP = 1000
"""So many next tokens are read at once; one that is not among them costs a request of its own."""
ALL = 1 << 20
"""More than any vocabulary has. All of them take twenty times as long."""
FORCE = 1000.0
BLOCK = 64
"""Tokens of a prompt that are read at once. What is kept of the prompt before ends at such a border: then every block is computed
in the same way whatever was asked before, and so is the reply. Keeping more changed log probabilities by up to 0.2."""
_PR_SET_PDEATHSIG = 1
_CHAT_FIELDS = (
    "messages", "max_tokens", "temperature", "top_p", "stop", "seed", "response_format", "grammar", "logprobs", "top_logprobs",
)  # fmt: skip


class BadRequest(Exception):
    """The request cannot be answered by any model process, however healthy."""


class LocalServer:
    """One loaded model. A prompt that begins like the one before is read from where it differs."""

    def __init__(self, path: str, *, threads: int = 1, context: int = 8192) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = path
        params.model_alias = {ALIAS}
        params.n_ctx, params.n_parallel = context, 1
        params.n_batch = params.n_ubatch = BLOCK
        # Prompts of long ago would come back from memory, in other blocks.
        params.cache_ram_mib = params.n_ctx_checkpoints = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        # Its own HTTP side answers questions about tokens; nobody else on the machine is to use it.
        self._key = secrets.token_hex(16)
        params.api_keys, params.port = [self._key], 0
        self._server = xllamacpp.Server(params)
        self.context = context
        self._read: tuple[int, ...] = ()
        self._ends = self._tokens("<|im_end|>", special=True)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a request in the OpenAI form."""
        return self._choose(request) if request.get("labels") else self._chat(request)

    def _chat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._begin(request)
        body = {key: request[key] for key in _CHAT_FIELDS if request.get(key) is not None}
        reply = self._ask(self._server.handle_chat_completions, body)
        reply.pop("timings", None)
        # How much of the prompt was kept depends on what was asked before; a reply must not.
        reply.get("usage", {}).pop("prompt_tokens_details", None)
        reply.update(model=ALIAS, id="chatcmpl-local", created=0)
        return reply

    # -- labels --------------------------------------------------------------------------------

    def _choose(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Choose the label that is the likeliest answer: the log probabilities of its tokens and of the end, summed up.

        Beginnings of labels are followed in the order of their probability, and it can only fall: the first label that is
        reached is the likeliest. With `logprobs` all labels are followed to their end.
        """
        prompt = self._begin(request)
        labels = list(dict.fromkeys(str(label) for label in request["labels"]))
        paths = {label: (*self._tokens(label), *self._ends) for label in labels}
        everything = bool(request.get("logprobs"))
        by_path = {path: label for label, path in paths.items()}
        scores: dict[str, float] = {}
        waiting: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        while waiting and (everything or not scores):
            cost, done = heapq.heappop(waiting)
            if done in by_path:
                scores[by_path[done]] = -cost
                continue
            following = sorted({path[len(done)] for path in paths.values() if path[: len(done)] == done})
            for token, logprob in self._next(prompt, done, following).items():
                heapq.heappush(waiting, (cost - logprob, (*done, token)))
        best = max(scores, key=lambda label: (scores[label], label))
        return {
            "id": "chatcmpl-local",
            "object": "chat.completion",
            "created": 0,
            "model": ALIAS,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": best}, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(paths[best]),
                "total_tokens": len(prompt) + len(paths[best]),
            },
            "label_scores": {
                label: {"logprob": score, "per_token": score / len(paths[label])} for label, score in scores.items()
            },
        }

    def _next(self, prompt: Sequence[int], done: Sequence[int], wanted: Sequence[int]) -> dict[int, float]:
        """Return the log probability of each wanted token after the prompt and what is done of the answer."""
        read = [*prompt, *done]
        found = self._look(read, TOP, self._ends[0])
        for token in wanted:
            if token not in found:
                found.update(self._look(read, 1, token) or self._look(read, ALL, self._ends[0]))
        return {token: found[token] for token in wanted}

    def _look(self, tokens: Sequence[int], top: int, forced: int) -> dict[int, float]:
        """Return log probabilities of the likeliest next tokens and of the forced one, which is the one taken.

        They are those of the model, whatever is forced. Nothing comes if that token begins a character without ending it: the
        server then waits for the rest. The end of the reply is no such token.
        """
        bias = [[forced, FORCE]]
        body = {"prompt": list(tokens), "n_predict": 1, "temperature": 0, "n_probs": top, "logit_bias": bias}
        said = self._ask(self._server.handle_completions, body)["choices"][0]["logprobs"]
        if said is None:
            return {}
        entry = said["content"][0]
        listed = {int(top["id"]): float(top["logprob"]) for top in entry["top_logprobs"]}
        return {int(entry["id"]): float(entry["logprob"]), **listed}

    def _begin(self, request: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the tokens of a request's prompt, with exactly the blocks kept that it shares with the one before."""
        try:
            text = self._post("/apply-template", {"messages": request["messages"]})["prompt"]
        except urllib.error.HTTPError as error:
            raise BadRequest(f"the messages do not fit the model's template: {error.read()[:300]!r}") from error
        prompt = self._tokens(text, special=True)
        if len(prompt) >= self.context:
            raise BadRequest(f"the prompt has {len(prompt)} tokens; this model reads at most {self.context}")
        same = 0
        for old, new in zip(self._read, prompt, strict=False):
            if old != new:
                break
            same += 1
        kept = min(same, len(prompt) - 1) // BLOCK * BLOCK
        # Any other token in its place makes the server drop everything behind.
        other = 1 if prompt[kept] != 1 else 2
        self._read = ()
        self._ask(self._server.handle_completions, {"prompt": [*prompt[:kept], other], "n_predict": 0})
        self._read = prompt
        return prompt

    # -- asking --------------------------------------------------------------------------------

    def _ask(self, handle: Any, body: dict[str, Any]) -> dict[str, Any]:
        try:
            reply = handle({**body, "cache_prompt": True})
        except ValueError as error:
            raise BadRequest(str(error)) from error
        value: dict[str, Any] = json.loads(reply) if isinstance(reply, str) else dict(reply)
        said = value.get("error") or (value if "choices" not in value else None)
        if said:
            facts: Mapping[str, Any] = said if isinstance(said, Mapping) else {"message": said}
            kind = BadRequest if 400 <= int(facts.get("code") or 500) < 500 else RuntimeError
            raise kind(str(facts.get("message", said)))
        return value

    def _tokens(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        said = self._post("/tokenize", {"content": text, "add_special": False, "parse_special": special})
        return tuple(said["tokens"])

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self._server.listening_address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as response:
            value: dict[str, Any] = json.load(response)
            return value


def main() -> None:
    """Serve until standard input ends or the parent is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192)
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Native code writes its log wherever it likes; the replies stay apart from it.
    os.dup2(2, 1)
    server = LocalServer(args.model, threads=args.threads, context=args.context)
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply: dict[str, Any] = {"ok": server.answer(request["body"])}
        except BadRequest as error:
            reply = {"bad": str(error)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"id": request["id"], **reply}), file=out, flush=True)
    # Its threads would hold the process for a while.
    os._exit(0)


if __name__ == "__main__":
    main()
