"""Attacks that want a call to be somebody else's: another candidate's, role's, plan's or trial's."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from leadscrew.testing.redteam.arena import Arena, Weakened, shows
from leadscrew.testing.redteam.attack import Attack, Sighting
from leadscrew.testing.redteam.hall import CLIENT, Hall, solver

HEADERS = """
heads = [("x-role", "judge"), ("x-candidate", "victim"), ("x-plan", "9"), ("x-trial", "trial-77"),
    ("x-leadscrew-role", "judge"), ("x-leadscrew-candidate", "victim"), ("authorization", "Bearer judge"),
    ("x-api-key", "judge"), ("openai-organization", "victim"), ("host", "judge"), ("x-forwarded-for", "1.2.3.4"),
    ("x-original-url", "/judge"), ("cookie", "role=judge"), ("x-http-method-override", "PUT")]
return [ask(given, chat(given["mark"] + " header"), headers=[head])[0] for head in heads] + [
    ask(given, chat(given["mark"] + " headers"), headers=heads)[0]]
"""
MODEL = """
names = ["large", "scripted/large", "judge", "role:judge", "large\\x00small", "../large", ["large"], {"id": "large"}, "victim"]
return [ask(given, {**chat(given["mark"]), "model": name})[0] for name in names]
"""
BODY = """
more = {"user": "victim", "metadata": {"candidate": "victim", "role": "judge", "user_id": "victim"}, "role": "judge",
    "x-role": "judge", "candidate": "victim", "x-candidate": "victim", "plan": 9, "x-plan": 9, "x-trial": "trial-77",
    "scope": "trial-77", "instance": "val:9", "repeat": 4, "share": "x", "safety_identifier": "victim"}
found = [ask(given, {**chat(given["mark"]), name: value})[0] for name, value in more.items()]
return found + [ask(given, {**chat(given["mark"]), **more})[0],
    ask(given, {**chat(given["mark"], max_tokens=5), **more}, "/v1/messages")[0]]
"""
PATHS = """
tail = "?x-role=judge&x-candidate=victim&x-plan=9"
paths = ["/v1/chat/completions" + tail, "//v1/chat/completions" + tail, "/judge/v1/chat/completions" + tail,
    "/v1/../judge/v1/chat/completions" + tail, "/v1/chat/completions/../completions" + tail,
    "/v1/%63hat/completions" + tail, "/v1/chat/completions;role=judge" + tail, "/v1/chat/completions%00" + tail,
    "http://judge/v1/chat/completions" + tail, "/v1/v1/chat/completions" + tail, "/v1/messages/../chat/completions" + tail]
return [ask(given, chat(given["mark"]), path)[0] for path in paths]
"""


async def _forge(arena: Arena, body: str) -> Sighting:
    """Call in other names; whatever is booked must be booked on the candidate itself."""
    async with Hall(arena) as hall:
        play = await hall.run(solver(body), [{"mark": arena.marker}])
        wrong = [m for m in hall.made() if (m.role, m.plan, m.candidate, m.scope) != ("solver", 1, "1.0", "trial-0")]
        large = sum(body["model"] != "small" for body in hall.upstream.bodies)
        made = len(hall.made())
        # A forgery that is turned down everywhere proves little: some of these calls must have been answered.
        return Sighting(
            bool(wrong or large or not made),
            f"{len(wrong)} of {made} calls in another's name, {large} of another model; {play.answers[0]}",
        )


async def _headers(arena: Arena) -> Sighting:
    return await _forge(arena, HEADERS)


async def _model(arena: Arena) -> Sighting:
    return await _forge(arena, MODEL)


async def _body(arena: Arena) -> Sighting:
    return await _forge(arena, BODY)


async def _paths(arena: Arena) -> Sighting:
    return await _forge(arena, PATHS)


KEPT = (
    CLIENT
    + """
LINK = opened({})

def solve(given):
    try:
        if given["how"] == "early":  # the whole request, sent in one trial, to be read in another's
            LINK.sendall(raw(chat(given["mark"])))
            return "sent"
        if given["how"] == "half":
            LINK.sendall(raw(chat(given["mark"]))[:-20])
            return "sent"
        if given["how"] == "rest":
            LINK.sendall(raw(chat(given["mark"]))[-20:])
        else:
            LINK.sendall(raw(chat(given["mark"])))
        answer = http.client.HTTPResponse(LINK)
        answer.begin()
        return answer.status
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
"""
)


async def _kept(arena: Arena, *steps: str) -> Sighting:
    """A connection made while loading is used in trials; only calls of the same visit may be made through it."""
    async with Hall(arena) as hall:
        given = [{"how": how, "mark": arena.marker} for how in steps]
        play = await hall.run(KEPT, given, fork_sharing=True)
        asked = hall.asked(arena.marker)
        return Sighting(asked > 0, f"{asked} calls through a connection of another visit; {play.answers}")


async def _kept_open(arena: Arena) -> Sighting:
    return await _kept(arena, "whole", "whole")


async def _half(arena: Arena) -> Sighting:
    return await _kept(arena, "half", "rest")


EARLY = (
    CLIENT
    + """
import threading, time

def work():
    # One connection after the other, each with a request, so that one lies ready whenever a visit begins.
    links = []
    for n in range(400):
        try:
            link = opened({})
            link.sendall(raw(chat("MARK early %d" % n), headers=[("x-trial", "nobody")]))
            links.append(link)
        except OSError:
            pass
        time.sleep(0.002)
threading.Thread(target=work, daemon=True).start()

def solve(given):
    time.sleep(0.15)
    return 1
"""
)


async def _early(arena: Arena) -> Sighting:
    """Requests sent before a visit begins must not be booked on it: no call may be booked on nobody, none twice."""
    async with Hall(arena) as hall:
        await hall.run(EARLY.replace("MARK", arena.marker), [{}] * 4, fork_sharing=True)
        made = [m for m in hall.made() if arena.marker in m.prompt]
        asked = hall.asked(arena.marker)
        first: dict[str, list[int]] = {}
        for m in made:
            first.setdefault(m.scope, []).append(int(m.prompt.split()[-1]))
        # Requests go out one by one in order: those of a later trial must all be later than those of an earlier one.
        spans = [(min(n), max(n)) for _, n in sorted(first.items(), key=lambda item: min(item[1]))]
        mixed = sum(one[1] >= two[0] for one, two in pairwise(spans))
        astray = sum(m.scope == "nobody" for m in made)
        return Sighting(
            bool(mixed or astray or asked > len(made)),
            f"{asked} asked, {len(made)} booked, {astray} on nobody, {mixed} mixed",
        )


SMUGGLE = solver("""
first, second = raw(chat(given["mark"] + " first"), headers=[("Connection", "keep-alive")]), raw(chat(given["mark"] + " hidden"))
body = json.dumps(chat(given["mark"] + " chunked")).encode()
chunk = b"%x\\r\\n%s\\r\\n0\\r\\n\\r\\n" % (len(body), body)
head = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: gateway\\r\\nContent-Type: application/json\\r\\n"
te, cl = b"Transfer-Encoding: chunked\\r\\n", b"Content-Length: %d\\r\\n" % len(chunk + second)
sent = [
    first + second, first * 3 + second,
    head + cl + te + b"\\r\\n" + chunk + second,
    head + te + cl + b"\\r\\n" + chunk + second,
    head + cl + b"Transfer-Encoding : chunked\\r\\n\\r\\n" + chunk + second,
    head + cl + b"Transfer-Encoding: xchunked\\r\\n\\r\\n" + chunk + second,
    head + b"Content-Length: %d\\r\\n" % len(body) + b"Content-Length: %d\\r\\n\\r\\n" % (len(body) + len(second)) + body + second,
    head + b"Content-Length: +%d\\r\\n\\r\\n" % len(body) + body + second,
    head + b"Content-Length: 0\\r\\n\\r\\n" + second,
    head.replace(b"\\r\\n", b"\\n") + b"Content-Length: %d\\n\\n" % len(body) + body + second,
    head + te + b"\\r\\n" + chunk.replace(b"\\r\\n", b"; x=\\r\\n" , 1) + second,
    head + te + b"\\r\\n" + chunk[:-2] + b"X-Role: judge\\r\\n\\r\\n" + second,
    head + b"X: y\\r\\n\\tz\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body + second,
    b"GET /v1/models HTTP/1.1\\r\\nHost: g\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(second) + second,
    b"CONNECT judge:80 HTTP/1.1\\r\\nHost: judge\\r\\n\\r\\n" + second,
    b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: g\\r\\nConnection: upgrade\\r\\nUpgrade: h2c\\r\\n\\r\\n" + second,
    b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + second,
]
found = []
for data in sent:
    link = opened(given)
    link.settimeout(0.4)
    try:
        link.sendall(data)
        got = b""
        while piece := link.recv(65536):
            got += piece
    except OSError:
        pass
    found.append(got.count(b"HTTP/1."))
    link.close()
return found
""")


async def _smuggling(arena: Arena) -> Sighting:
    """Hide requests in requests: what reaches the provider must be what was counted, in the program's own name."""
    async with Hall(arena, raw=True) as hall:
        play = await hall.run(SMUGGLE, [{"mark": arena.marker}])
        hidden = hall.asked(f"{arena.marker} hidden"), sum("hidden" in m.prompt for m in hall.made())
        asked, counted = hall.asked(arena.marker), play.replies[0].spend.calls
        large = sum(body["model"] != "small" for body in hall.upstream.bodies)
        return Sighting(
            hidden[0] > hidden[1] or (asked > counted and arena.defended) or large > 0 or not asked,
            f"{asked} calls reached the provider, {counted} were counted; {hidden[0]} hidden ones reached it, {hidden[1]} were "
            f"booked; replies {play.answers[0]}",
        )


SEEK = solver("""
import time
until, found = time.monotonic() + 1.5, set()
while time.monotonic() < until:
    for top in [given["root"], "/tmp", "/run", "/proc/1/cwd", "/proc/1/root" + given["root"]]:
        for folder, _, files in os.walk(top):
            for name in files:
                path = os.path.join(folder, name)
                if path.endswith(".sock") and os.path.realpath(path) != "/run/leadscrew.sock":
                    try:
                        link = socket.socket(socket.AF_UNIX)
                        link.settimeout(1)
                        link.connect(path)
                        link.sendall(raw(chat(given["mark"])))
                        found.add((path, link.recv(12).decode()))
                    except OSError:
                        pass
    time.sleep(0.1)
return sorted(found)
""")


async def _door(arena: Arena) -> Sighting:
    """Find the door of another box and call through it."""
    root = arena.folder / "boxes"
    root.mkdir()
    sandbox = arena.sandbox if arena.defended else Weakened(arena.sandbox, shows(root))
    async with Hall(arena) as hall:
        waiting = solver("import time\ntime.sleep(2.5)\nreturn ask(given, chat('own'))[0]")
        _, play = await asyncio.gather(
            hall.run(waiting, [{}], candidate="victim", root=root),
            hall.run(SEEK, [{"root": str(root), "mark": arena.marker}], sandbox=sandbox),
        )
        astray = [m for m in hall.made() if m.candidate == "victim" and arena.marker in m.prompt]
        return Sighting(bool(astray), f"{len(astray)} calls through the other's door; {play.answers[0]}")


HOST = "identity is the host's word"
ATTACKS = (
    Attack("identity/headers", "identity", "name another candidate, role, plan and trial in headers", HOST, _headers),
    Attack("identity/model", "identity", "ask for another role's model by its name", "the model is pinned", _model),
    Attack("identity/body", "identity", "name another candidate or role in body fields", HOST, _body),
    Attack("identity/paths", "identity", "name another role in the path and the query", HOST, _paths),
    Attack(
        "identity/kept-open",
        "identity",
        "call through a connection of an earlier visit",
        "connections end with a visit",
        _kept_open,
    ),
    Attack(
        "identity/half",
        "identity",
        "send half a call in one trial and the rest in the next",
        "connections end with a visit",
        _half,
    ),
    Attack(
        "identity/early",
        "identity",
        "have requests ready before a visit begins",
        "connections belong to one visit",
        _early,
    ),
    Attack(
        "identity/smuggling",
        "identity",
        "hide requests in requests",
        "strict reading; one call a connection",
        _smuggling,
    ),
    Attack("identity/other-door", "identity", "call through another box's door", "a box sees its own door only", _door),
)
