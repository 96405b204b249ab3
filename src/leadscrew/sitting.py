"""A sitting: one process at work on a run. How a run is begun, opened again as its writer, and what is checked before."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leadscrew import config as configuration
from leadscrew import roles, wire
from leadscrew.config import Config
from leadscrew.core.budget import Caps
from leadscrew.core.program import Program
from leadscrew.engine.finalize import check_evolvable, closed, opened
from leadscrew.engine.folders import read_folder
from leadscrew.errors import ConfigError, NotFoundError, SealedError, UsageError
from leadscrew.plugins import load_domain, load_method
from leadscrew.ports import BoxSpec, Domain, Observer
from leadscrew.roles import FINAL, CapsInForce, check_models


@dataclass(frozen=True, slots=True)
class NewCaps:
    """Caps given for a sitting and every later one. `scope` is empty for the whole run, a role, or `FINAL`."""

    caps: Caps | None = None
    scope: str = ""


def begin(
    store: wire.RunStore, config: Config, program: Program | None, prepared: Mapping[str, Any] | None, **more: Any
) -> None:
    """Write down, in one commit, who the run is and what it starts from. Without it a run was never begun."""
    (store.path / "config.toml").write_text(configuration.to_toml(config), encoding="utf-8")
    if prepared is not None:
        store.add_event("prepared", prepared)
    if program is not None:
        store.add_event("seed", {"program": store.put_program(program)})
    store.add_event("created", {"run": uuid.uuid4().hex, "when": now(), **more})
    store.commit()


def program_of(config: Config, given: Program | None) -> Program | None:
    """Return the program to start from: the given one, or what the configuration names, or None for the domain's own."""
    return read_folder(config.program.path) if given is None and config.program.path else given


def seed_of(store: wire.RunStore) -> Program | None:
    """Return the program that a stored run was begun with, or None for the domain's own."""
    return next((store.program(str(data["program"])) for _, _, data in store.events("seed")), None)


@contextmanager
def sitting(
    folder: Path,
    domain: Domain | None,
    observers: Sequence[Observer],
    caps: NewCaps,
    program: Program | None = None,
    *,
    check: Callable[[wire.RunStore], None],
) -> Iterator[tuple[wire.Assembly, wire.Prepared]]:
    """Open a stored run as its writer and put it together again, if `check` lets it pass."""
    if not (folder / "run.db").exists():
        raise NotFoundError(f"there is no run in {str(folder)!r}.", name=str(folder))
    peek = wire.open_store(folder)
    config = configuration.config_from(dict(peek.config), folder)
    peek.close()
    if domain is None and config.domain.name == "function":
        raise ConfigError(
            "this run was begun from a Python function: call improve(...) again with the same folder.",
            key="domain.name",
        )
    domain = wire.fit(config, domain or load_domain(config))
    method = load_method(config)
    store = wire.open_store(folder, readonly=False, method=method)
    try:
        check(store)
        sandbox, report = wire.start_sandbox(config, folder)
        prepared = wire.prepare(domain, mounted(sandbox, domain, config))
        wire.check_same_data(store, prepared, domain.scorer_digest())
        found = wire.prepared_event(prepared, domain)
        if not any(True for _ in store.events("created")):
            begin(store, config, program_of(config, program), found)
        elif not any(True for _ in store.events("prepared")):
            store.add_event("prepared", found)
        in_force = _raised(store, config, caps)
        yield wire.assemble(config, domain, method, store, sandbox, report, observers, in_force), prepared
    finally:
        store.close()
        shutil.rmtree(folder / "tmp", ignore_errors=True)


def check_not_closed(store: wire.RunStore) -> None:
    """Raise `SealedError` if the run was finalized."""
    if closed(store):
        raise SealedError(f"the run in {str(store.path)!r} is closed; see its certificate.json.")


def check_resumable(store: wire.RunStore) -> None:
    """Raise `SealedError` if the run's search is over and reported."""
    # Opened but not closed: the finalize that was cut short goes on.
    if not opened(store) or closed(store):
        check_evolvable(store)


def _raised(store: wire.RunStore, config: Config, given: NewCaps) -> CapsInForce:
    """Return the caps in force: the configured ones, overlaid by every change that was ever made, the newest last.

    New ones are written down only if they can be kept: a cap that once stands in the store cannot be taken back.
    """
    # A run whose test was opened has no search left that a cap could bound.
    scope = FINAL if not given.scope and opened(store) else given.scope
    if given.caps is not None and scope not in ("", FINAL, *config.models):
        raise ConfigError(
            f"--role {scope}: this run has no model for that role; it has {', '.join(config.models) or 'none'}.",
            key=f"models.{scope}",
        )
    new = {} if given.caps is None else {name: cap for name, cap in asdict(given.caps).items() if cap is not None}
    change = {**new, "scope": scope} if scope else new
    in_force = roles.caps_in_force(config, [*(data for _, _, data in store.events("caps")), change])
    check_models(config, in_force)
    if new:
        store.add_event("caps", change)
        store.commit()
    return in_force


def check_no_loop() -> None:
    """Raise `UsageError` inside a running event loop: a run brings its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "a run brings an event loop of its own, and one is running here already (a notebook, or a coroutine). "
        "Write `await asyncio.to_thread(leadscrew.run, ...)` instead."
    )


def mounted(sandbox: Any, domain: Domain, config: Config) -> list[str]:
    """Return the host paths to search for gold: what boxes of programs show, and what the user shows to a proposer's box."""
    spec = BoxSpec("evaluate", domain.limits, masks=tuple(domain.masks()), environment=domain.environment)
    shown = config.proposer.options.get("mounts", ())
    return [*sandbox.exposes(spec), *(os.path.expanduser(str(mount).partition(":")[0]) for mount in shown)]


@contextmanager
def begun(folder: Path) -> Iterator[None]:
    """Leave no half-made run folder behind if a run cannot begin."""
    existed = folder.exists()
    try:
        yield
    except BaseException:
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def write_durably(path: Path, text: str) -> None:
    """Replace a file as a whole; it is on disk when this returns."""
    draft = path.with_suffix(path.suffix + ".new")
    with open(draft, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(draft, path)


def now() -> str:
    """Return the time in UTC as the certificate writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
