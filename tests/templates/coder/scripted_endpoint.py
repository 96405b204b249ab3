"""A small model behind HTTP, in both dialects: it says what a script says, and remembers what it was asked."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Say:
    """One reply. `calls` are (tool, arguments); arguments that are text go out as they are (OpenAI dialect)."""

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    stop: str = ""
    usage: tuple[int, int] | None = (100, 20)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] | str = ""


Step = Say | Callable[[dict[str, Any]], Say]


class Endpoint:
    """Where it listens, and what it was sent: (path, body) of every request."""

    def __init__(self, script: Sequence[Step]) -> None:
        self.script = list(script)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.address = ""

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the next step."""
        self.requests.append((path, body))
        if len(self.requests) > len(self.script):
            return 400, {}, json.dumps({"error": {"message": "the script is over", "type": "script"}}).encode()
        step = self.script[len(self.requests) - 1]
        say = step if isinstance(step, Say) else step(body)
        if say.status != 200:
            error = say.error if isinstance(say.error, str) else json.dumps(say.error)
            return say.status, say.headers, error.encode()
        found = anthropic(say) if path.endswith("/messages") else openai(say)
        return 200, say.headers, json.dumps(found).encode()


def openai(say: Say) -> dict[str, Any]:
    """Return a reply as chat completions have it."""
    message: dict[str, Any] = {"role": "assistant", "content": say.text or None}
    if say.calls:
        message["tool_calls"] = [
            {
                "id": f"x{n}",
                "type": "function",
                "function": {"name": tool, "arguments": a if isinstance(a, str) else json.dumps(a)},
            }
            for n, (tool, a) in enumerate(say.calls)
        ]
    out: dict[str, Any] = {
        "choices": [{"message": message, "finish_reason": say.stop or ("tool_calls" if say.calls else "stop")}]
    }
    if say.usage:
        out["usage"] = {"prompt_tokens": say.usage[0], "completion_tokens": say.usage[1]}
    return out


def anthropic(say: Say) -> dict[str, Any]:
    """Return a reply as messages have it."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": say.text}] if say.text else []
    blocks += [{"type": "tool_use", "id": f"t{n}", "name": tool, "input": a} for n, (tool, a) in enumerate(say.calls)]
    stops = {"length": "max_tokens", "content_filter": "refusal"}
    reason = stops.get(say.stop, say.stop) or ("tool_use" if say.calls else "end_turn")
    out: dict[str, Any] = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": reason}
    if say.usage:
        out["usage"] = {"input_tokens": say.usage[0], "output_tokens": say.usage[1]}
    return out


@contextmanager
def serve(script: Sequence[Step], unix: Path | None = None) -> Iterator[Endpoint]:
    """Serve a script on loopback, or at a unix socket."""
    endpoint = Endpoint(script)

    class Handler(BaseHTTPRequestHandler):
        """Answers what is posted."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, headers, data = endpoint.answer(self.path, body)
            self.send_response(status)
            for name, value in ({"content-length": str(len(data))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def address_string(self) -> str:
            return "client"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class UnixServer(socketserver.ThreadingUnixStreamServer):
        """HTTP at a unix socket."""

        daemon_threads = True

    server: socketserver.BaseServer
    if unix is None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        endpoint.address = f"http://127.0.0.1:{server.server_address[1]}"
    else:
        server = UnixServer(str(unix), Handler)
        endpoint.address = f"unix:{unix}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
