"""What a program may import inside a box: `llm`, `chat` and `scores` to ask a model, `log` to note what it did.

Which model answers, and how much of it there is, the run decides; a program cannot choose. Calls through here, through an
official SDK or by hand are all the same to the gateway: it counts and records each.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from leadscrew.guest import leadscrew_wire as wire
else:
    import leadscrew_wire as wire

_sink: Callable[[dict[str, Any]], None] | None = None


class ModelError(RuntimeError):
    """A model gave no reply. `status` is the HTTP status of the refusal, 0 where nothing came back at all.

    Calling again does not help: the gateway has retried what can be retried.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def log(prompt: object = None, response: object = None, **more: object) -> None:
    """Put anything worth reading later into the trace of the trial. Calls of the model of this run stand there already.

    Long texts are cut to the domain's output limit; values that JSON cannot hold are stored as their `repr`.
    """
    call: dict[str, Any] = dict(more)
    if prompt is not None:
        call["prompt"] = prompt
    if response is not None:
        call["response"] = response
    if _sink is not None:
        _sink(call)


def llm(
    prompt: str,
    *,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    labels: Sequence[str] | None = None,
    stop: str | Sequence[str] | None = None,
    **more: Any,
) -> str:
    """Ask the model of this run and return the text of its reply.

    `labels` restricts the reply to one of these texts, where the model can do that. `more` goes into the request as it is;
    what the run pins stays pinned. Raises `ModelError` where no reply comes, or where the run gives programs no model.
    """
    messages = [] if system is None else [{"role": "system", "content": system}]
    given = {"max_tokens": max_tokens, "temperature": temperature, "stop": stop, **more}
    if labels is not None:
        given["labels"] = list(labels)
    reply = chat([*messages, {"role": "user", "content": prompt}], **{k: v for k, v in given.items() if v is not None})
    return _text(reply)


def chat(messages: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Send messages in the OpenAI form, `tools` and the like by name, and return the whole reply in that form.

    Replies come in one piece; for a stream use an SDK at `OPENAI_BASE_URL` or `ANTHROPIC_BASE_URL`.
    """
    if more.get("stream"):
        raise ValueError("chat() returns whole replies; for a stream use an SDK at OPENAI_BASE_URL")
    reply: dict[str, Any] = _ask("POST", "/v1/chat/completions", {"messages": list(messages), **more})
    return reply


def scores(prompt: str, labels: Sequence[str]) -> dict[str, float]:
    """Return how likely the model finds each label as its reply, as natural logarithms; not every model can tell."""
    body = {"messages": [{"role": "user", "content": prompt}], "labels": list(labels), "logprobs": True}
    reply = _ask("POST", "/v1/chat/completions", body)
    found = reply.get("label_scores")
    if not isinstance(found, dict):
        raise ModelError("this model cannot score labels: its reply has no 'label_scores'")
    return {label: float(value["logprob"]) for label, value in found.items()}


def left() -> dict[str, Any]:
    """Return what is left of the allowance of this trial: calls and tokens, None where nothing bounds them."""
    reply: dict[str, Any] = _ask("GET", "/v1/allowance")
    return reply


def _prepare() -> None:
    """Import what a call needs, once and before trials are forked."""
    import http.client  # noqa: F401
    import socket  # noqa: F401


def _ask(method: str, path: str, body: object = None) -> Any:
    place = os.environ.get("LEADSCREW_SOCKET")
    if not place:
        raise ModelError(
            "this program asks a model, but the run gives programs none: there is no gateway socket in this box. "
            "Solve the task without llm(), or configure a model for the role 'solver'."
        )
    import http.client
    import socket

    data = b"" if body is None else wire.dumps(body)
    link = http.client.HTTPConnection("leadscrew")
    try:
        link.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.sock.connect(place)
        try:
            # One connection per call: an idle one would be shared by all trials that are forked afterwards.
            link.request(method, path, data, {"Content-Type": "application/json", "Connection": "close"})
            answer = link.getresponse()
        except BrokenPipeError:
            answer = link.getresponse()  # it may have said why before it hung up
        status, text = answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ModelError(f"the gateway cut the call off: {type(error).__name__}: {error}") from None
    finally:
        link.close()
    try:
        reply = wire.loads(text)
    except (ValueError, RecursionError):
        raise ModelError(f"the gateway said no JSON: {text[:500]!r}", status) from None
    if status != 200:
        raise ModelError(_complaint(reply), status)
    if not isinstance(reply, dict):
        raise ModelError(f"the gateway said no JSON object: {text[:500]!r}", status)
    return reply


def _complaint(reply: Any) -> str:
    error = reply.get("error") if isinstance(reply, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or reply)


def _text(reply: dict[str, Any]) -> str:
    try:
        content = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ModelError(f"the reply holds no message: {str(reply)[:500]}", 200) from None
    return content if isinstance(content, str) else ""
