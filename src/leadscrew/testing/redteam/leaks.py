"""Attacks that carry words out to the provider where nobody looks for them.

Prompts and the definitions of tools reach the provider by design; everything else of a call must not.
"""

from __future__ import annotations

from leadscrew.testing.redteam.arena import Arena
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.hall import Hall, solver

WAYS = {
    "model": ("in the model's name", "the model is pinned", """
return [ask(given, {**chat("x"), "model": name})[0] for name in (given["word"], "small:" + given["word"])]
"""),
    "headers": ("in headers", "headers are not passed on", """
names = ("Authorization", "x-api-key", "User-Agent", "Cookie", "Referer", "X-Request-Id", "OpenAI-Organization", "OpenAI-Beta",
    "Idempotency-Key", "Accept-Language", "anthropic-beta", "traceparent", "X-Stainless-Lang", "Via", "If-None-Match", "Accept")
return [ask(given, chat("x"), headers=[(name, given["word"])])[0] for name in names] + [
    ask(given, chat("y", max_tokens=5), "/v1/messages", headers=[(name, given["word"])])[0] for name in names]
"""),
    "fields": ("in fields that nobody knows", "unknown fields are dropped", """
word = given["word"]
names = ("user", "metadata", "store", "extra_body", "prompt_cache_key", "safety_identifier", "service_tier", "x", "container",
    "prediction", "audio", "modalities", "betas", "system_fingerprint", "context_management", word)
return [ask(given, chat("x", **{name: value}))[0] for name in names for value in (word, {"a": word}, [word])] + [
    ask(given, chat("x", max_tokens=5, **{name: {"user_id": word}}), "/v1/messages")[0] for name in names]
"""),
    "messages": ("in unknown fields of messages, parts and tools", "unknown fields are dropped", """
word = given["word"]
text = {"type": "text", "text": "x"}
tool = {"type": "function", "function": {"name": "f", "description": "d"}}
return [ask(given, body)[0] for body in (
    {"messages": [{"role": "user", "content": "x", "id": word, "metadata": {"a": word}, "cache_control": word}]},
    {"messages": [{"role": "user", "content": [{**text, "cache_control": {"type": word}, "annotations": [word]}]}]},
    {"messages": [{"role": "assistant", "content": "x", "audio": {"id": word}, "function_call": {"name": word}},
        {"role": "user", "content": "x"}]},
    chat("x", tools=[{**tool, "cache_control": {"type": word}, "x": word}]),
    chat("x", tools=[{"type": "function", "function": {**tool["function"], "x": word}}]),
    chat("x", response_format={"type": "text", "x": word}), chat("x", tool_choice="auto", tools=[tool], stream_options={"x": word}),
    )] + [ask(given, {**body, "max_tokens": 5}, "/v1/messages")[0] for body in (
    {"messages": [{"role": "user", "content": [{**text, "citations": [{"cited_text": word}], "x": word}]}]},
    chat("x", system=[{**text, "cache_control": {"type": "ephemeral", "x": word}}]),
    chat("x", tools=[{"name": "f", "input_schema": {"type": "object"}, "x": word}]))]
"""),
    "address": ("in the path, the query, chunks and trailers", "each call is written anew", """
word = given["word"]
data = json.dumps(chat("x")).encode()
link = opened(given)
link.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: g\\r\\nTrailer: X-Word\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
    + b"%x;word=%s\\r\\n" % (len(data), word.encode()) + data + b"\\r\\n0\\r\\nX-Word: " + word.encode() + b"\\r\\n\\r\\n")
try:
    link.recv(1000)
except OSError:
    pass
return [ask(given, chat("x"), path)[0] for path in ("/v1/chat/completions?" + word, "/v1/chat/completions#" + word,
    "/v1/chat/completions/" + word, "//" + word + "/v1/chat/completions", "http://" + word + "/v1/chat/completions")]
"""),
}  # fmt: skip


def _attack(name: str) -> Attack:
    about, defence, body = WAYS[name]

    async def strike(arena: Arena) -> Sighting:
        word = arena.marker
        async with Hall(arena) as hall:
            if hall.naive is not None:
                hall.naive.whole = True
            play = await hall.run(solver(body), [{"word": word}])
            bodies, heads = hall.asked(word), sum(word in repr(headers) for headers in hall.upstream.headers)
            paths = sum(word in path for path in hall.naive.paths) if hall.naive is not None else 0
            found = bodies + heads + paths
            return Sighting(
                found > 0 or not hall.upstream.requests,
                f"the word came out in {bodies} bodies, {heads} heads, {paths} paths of {hall.upstream.requests}; "
                f"{play.answers[0]}",
            )

    return Attack(f"leak/{name}", "leak", f"carry a word out {about}", defence, strike)


ATTACKS = tuple(_attack(name) for name in WAYS)
