"""Opening a run to read it: the folder that is meant, the store, the archive in it, and the candidate that is meant."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leadscrew.config import Config, config_file, load_config
from leadscrew.core.archive import Archive
from leadscrew.core.proposal import Candidate
from leadscrew.core.task import Objective
from leadscrew.errors import ConfigError, NotFoundError
from leadscrew.ports import Store


@dataclass(frozen=True, slots=True)
class Reading:
    """A run opened for reading: nothing here can change it."""

    folder: Path
    config: Config
    store: Store
    archive: Archive

    def candidate(self, name: str) -> Candidate:
        """Return the candidate of an id; `champion` or nothing means the champion, `seed` the first program."""
        if name in ("", "champion"):
            champion = self.archive.champion
            if champion is None:
                raise NotFoundError("the run has no champion yet; name a candidate, such as 0.0.", name=name)
            return champion
        if name == "seed":
            return next(iter(self.archive))
        return self.archive[name]


def run_folder(path: str | Path) -> Path:
    """Return the run folder meant by `path`: itself, or the one that the configuration there writes to.

    Raises `NotFoundError` where no run is found.
    """
    given = Path(path)
    if (given / "run.db").is_file():
        return given
    try:
        out = load_config(config_file(given)).out if given.exists() else None
    except ConfigError:
        out = None
    if out is not None and (out / "run.db").is_file():
        return out
    where = f"; its configuration would write to {str(out)!r}, where there is none yet" if out else ""
    raise NotFoundError(
        f"there is no run in {str(given)!r}{where}. A run folder holds run.db; `leadscrew run CONFIG` makes one.",
        name=str(given),
    )


@contextmanager
def reading(path: str | Path) -> Iterator[Reading]:
    """Open a run for reading, also while another process writes it."""
    from leadscrew.engine.restore import load_archive
    from leadscrew.wire import open_store

    folder = run_folder(path)
    store = open_store(folder, readonly=True)
    try:
        config = load_config(folder / "config.toml")
        yield Reading(folder, config, store, load_archive(store, objectives(store)))
    finally:
        store.close()


def held(r: Reading) -> list[str]:
    """Return the ids of the candidates that wait for a person's decision."""
    decided = {str(data.get("candidate", "")) for _, _, data in r.store.events("reject")}
    decided |= {e.source for c in r.archive for e in c.edges if e.detail.get("approved")}
    return [c.id for c in r.archive if c.status == "held" and c.id not in decided]


def objectives(store: Store) -> tuple[Objective, ...]:
    """Return the objectives that the run recorded when it began."""
    for _, _, data in store.events():
        found = data.get("objectives")
        if found:
            return tuple(_objective(item) for item in found)
    return (Objective("score"),)


def _objective(item: Mapping[str, Any]) -> Objective:
    return Objective(**{str(key): value for key, value in item.items()})


def is_running(folder: Path) -> bool:
    """Say whether a live process holds the writer's lock, without touching the lock."""
    try:
        number = (folder / "lock").stat().st_ino
        table = Path("/proc/locks").read_text("ascii")
    except OSError:
        return _holder_lives(folder)
    return any(line.split()[5].endswith(f":{number}") for line in table.splitlines() if "FLOCK" in line)


def _holder_lives(folder: Path) -> bool:
    try:
        os.kill(int((folder / "lock").read_text("ascii")), 0)
    except (OSError, ValueError):
        return False
    return True
