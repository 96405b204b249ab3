"""Sandboxes: ways to make boxes. `choose` returns one by name and never falls back to `none`."""

from __future__ import annotations

from pathlib import Path

from leadscrew.errors import ConfigError
from leadscrew.ports import Sandbox

NAMES = ("auto", "bubblewrap", "docker", "none")


def choose(name: str = "auto", *, image: str = "", folder: Path | None = None) -> Sandbox:
    """Return a sandbox by name. `auto` is `bubblewrap`; whether it can run is for `probe` to say, which refuses if not.

    `image` is for `docker`, `folder` where `none` keeps its temporary folders. Raises `ConfigError` for any other name.

    >>> choose("none").name
    'none'
    """
    if name in ("auto", "bubblewrap"):
        from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox()
    if name == "docker":
        from leadscrew.adapters.sandboxes.docker import DockerSandbox

        return DockerSandbox(image)
    if name == "none":
        from leadscrew.adapters.sandboxes.none import PlainSandbox

        return PlainSandbox(folder)
    raise ConfigError(
        f"there is no sandbox {name!r}; programs must run in one of: {', '.join(NAMES)}.",
        key="sandbox.name",
        value=name,
    )
