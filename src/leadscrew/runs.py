"""Begin, continue and end a run. The command line's verbs of the same names are thin skins over these functions."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leadscrew import config as configuration
from leadscrew import wire
from leadscrew.config import Config
from leadscrew.core.budget import Caps
from leadscrew.core.program import Program
from leadscrew.core.task import Direction, Instance, Operation, Score
from leadscrew.engine.finalize import Finals, certificate_of, opened
from leadscrew.engine.finalize import finalize as finalize_run
from leadscrew.engine.folders import read_folder
from leadscrew.engine.ledger import Ledger
from leadscrew.errors import BudgetReached, RefusedError, UsageError
from leadscrew.plugins import load_domain, load_method
from leadscrew.ports import Domain, Event, Observer, Proposer
from leadscrew.roles import FINAL, caps_in_force, check_models
from leadscrew.sitting import (
    NewCaps,
    begin,
    begun,
    check_no_loop,
    check_not_closed,
    check_resumable,
    mounted,
    now,
    program_of,
    seed_of,
    sitting,
    write_durably,
)

ConfigLike = Config | str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run stands. `champion` is a candidate's id and `program` its tree; `value` is its primary objective on val.

    `stopped` says why the run rests before its end (a cap, a stop), empty when the method is done. `certificate` is set once
    the run was finalized.
    """

    folder: Path
    champion: str
    program: Program | None
    value: float | None
    candidates: int
    stopped: str = ""
    certificate: dict[str, Any] | None = None


def run(
    config: ConfigLike,
    *,
    observers: Sequence[Observer] = (),
    resume: bool = False,
    domain: Domain | None = None,
    program: Program | None = None,
    proposer: Proposer | None = None,
) -> RunResult:
    """Run a configuration to the method's end, a cap or a stop, and return how it stands.

    `config` is a checked configuration, a TOML file or a folder with `leadscrew.toml`, or a mapping. `domain`, `program` and
    `proposer` replace what the configuration names. An existing run folder is refused unless `resume` is true. Raises
    `ConfigError`, `DomainError`, `SandboxUnavailable`, and `InfrastructureError` when our own parts failed several times.
    """
    check_no_loop()
    config = _config(config)
    folder = config.out
    if (folder / "run.db").exists():
        if not resume:
            raise RefusedError(
                f"there is a run in {str(folder)!r} already. Go on with 'leadscrew resume {folder}', or set run.out to "
                "another folder."
            )
        return _go_on(folder, NewCaps(), observers, domain, program, proposer)
    domain = wire.fit(config, domain or load_domain(config))
    method = load_method(config)
    program = program_of(config, program)
    check_models(config, caps_in_force(config))
    with begun(folder):
        sandbox, report = wire.make_ready(config, folder, domain)
        prepared = wire.prepare(domain, mounted(sandbox, domain, config))
        store = wire.create_store(folder, config, method)
    try:
        begin(store, config, program, wire.prepared_event(prepared, domain))
        assembly = wire.assemble(config, domain, method, store, sandbox, report, observers, caps_in_force(config))
        return _search(assembly, program, proposer)
    except UsageError as error:
        raise type(error)(
            f"{str(error).rstrip('.')}. Nothing was searched yet: mend this, then remove {str(folder)!r} or set run.out to "
            "another folder."
        ) from error
    finally:
        store.close()
        shutil.rmtree(folder / "tmp", ignore_errors=True)


def resume(
    folder: str | os.PathLike[str],
    *,
    caps: Caps | None = None,
    role: str = "",
    observers: Sequence[Observer] = (),
    domain: Domain | None = None,
    proposer: Proposer | None = None,
) -> RunResult:
    """Go on with a run where it was. `caps` replaces the caps given so far, part by part: those of the whole run, or with
    `role` those of the model of that role.

    A run whose test was opened but not reported is finalized; a closed one raises `SealedError`. `domain` and `proposer` must
    be given again where the run was begun with objects rather than names.
    """
    check_no_loop()
    return _go_on(Path(folder).resolve(), NewCaps(caps, role), observers, domain, None, proposer)


def finalize(
    folder: str | os.PathLike[str],
    *,
    caps: Caps | None = None,
    observers: Sequence[Observer] = (),
    domain: Domain | None = None,
) -> dict[str, Any]:
    """Open the test split of a run, once, and return its certificate; it is also written to the run folder.

    `caps` replaces the caps on the model calls of the final test, part by part.

    Raises `SealedError` if the run is closed, `RefusedError` if there is nothing to test or candidates are still worked on.
    """
    check_no_loop()
    folder = Path(folder).resolve()
    if (folder / "run.db").exists() and not (folder / "certificate.json").exists():
        # Killed after the run was closed and before the file was written: the store holds the certificate too.
        store = wire.open_store(folder)
        lost = certificate_of(store)
        store.close()
        if lost is not None:
            return _publish(folder, lost)
    with sitting(folder, domain, observers, NewCaps(caps, FINAL), check=check_not_closed) as (assembly, prepared):
        store = assembly.store
        created = next(data for _, _, data in store.events("created"))
        finals = Finals(
            run_id=str(created["run"]),
            seed=assembly.config.run.seed,
            now=now(),
            test_digest=prepared.digests["test"],
            facts=wire.facts_of(assembly, prepared),
            recheck=assembly.config.evaluation.recheck,
        )

        async def load_test() -> Sequence[Instance]:
            return await asyncio.to_thread(assembly.domain.instances, "test")

        async def end() -> dict[str, Any]:
            try:
                return await finalize_run(
                    finals,
                    store=store,
                    archive=wire.load_run(store, assembly.domain),
                    method=assembly.method,
                    domain=assembly.domain,
                    evaluator=assembly.evaluator,
                    committer=assembly.committer,
                    meter=assembly.meter,
                    ledger=Ledger(wire.cache_folder() / "openings.jsonl"),
                    load_test=load_test,
                    observe=assembly.observe,
                )
            finally:
                await assembly.close()

        certificate = asyncio.run(end())
    return _publish(folder, certificate)


def fork(folder: str | os.PathLike[str], out: str | os.PathLike[str], changes: Mapping[str, Any]) -> RunResult:
    """Make a new run in `out` that starts from a run's champion, with some configuration keys changed.

    The new run is founded on the old champion as its seed, beside the domain's baselines; everything is measured anew. It does
    not start: resume it. The test split stays as sealed as it was.
    """
    source, out = Path(folder), Path(out)
    if (out / "run.db").exists():
        raise RefusedError(f"there is a run in {str(out)!r} already; name another folder for the fork.")
    store = wire.open_store(source)
    try:
        config = configuration.changed(
            configuration.config_from(dict(store.config), source), {**changes, "run.out": str(out.resolve())}
        )
        domain, method = wire.fit(config, load_domain(config)), load_method(config)
        archive = wire.load_run(store, domain)
        champion = archive.champion
        seed = store.program(champion.program) if champion is not None else seed_of(store)
        origin = next(data for _, _, data in store.events("created"))["run"]
    finally:
        store.close()
    made = wire.create_store(out, config, method)
    try:
        begin(made, config, seed, None, forked_from=origin)
    finally:
        made.close()
    return RunResult(out, "", None, None, 0, "not started")


def improve(
    program: str | os.PathLike[str] | Program,
    score: Callable[..., float | Mapping[str, Any] | Score],
    *,
    train: Sequence[Any] = (),
    val: Sequence[Any],
    test: Sequence[Any],
    operation: Operation = "solve",
    direction: Direction = "max",
    floor: float | None = None,
    out: str | os.PathLike[str] | None = None,
    observers: Sequence[Observer] = (),
    proposer: Proposer | None = None,
    **settings: Any,
) -> RunResult:
    """Improve a program on scored examples and certify the result: the shortest way to use leadscrew as a library.

    `program` is a folder, a file or a tree; `score(input, answer, expected)` returns a number, more being better unless
    `direction` is "min". `floor` is what a failed trial counts as, 0 if not given: name it where scores go below. Examples
    are mappings with `input` and `expected`, or pairs. Further settings are configuration keys with their section, the dot
    written as two underscores: `harness__iterations=10`, `budget__trials=500`. The run is kept in `out`; calling again with
    the same folder goes on. Raises what `run` and `finalize` raise.
    """
    from leadscrew.domains.function import FunctionDomain

    tree = program if isinstance(program, Program) else read_folder(program)
    domain = FunctionDomain(
        score, train=train, val=val, test=test, operation=operation, direction=direction, floor=floor
    )
    table: dict[str, Any] = {
        "run": {"out": str(Path(out or "leadscrew-run").resolve())},
        "domain": {"name": "function"},
    }
    for key, value in settings.items():
        section, _, name = key.partition("__")
        table.setdefault(section, {})[name] = value
    config = configuration.config_from(table, Path.cwd())
    result = run(config, observers=observers, resume=True, domain=domain, program=tree, proposer=proposer)
    if result.stopped or result.certificate is not None:
        return result
    return replace(result, certificate=finalize(result.folder, observers=observers, domain=domain))


def demo(out: str | os.PathLike[str], seed: int = 0, *, observers: Sequence[Observer] = ()) -> RunResult:
    """Run the built-in example: evolve a text classifier from nearest neighbour, without a model or key, and certify it."""
    path = Path(__file__).parent / "templates" / "demo" / "leadscrew.toml"
    config = configuration.changed(
        configuration.load_config(path), {"run.out": str(Path(out).resolve()), "run.seed": seed}
    )
    result = run(config, observers=observers)
    if result.champion and (not result.stopped or "seconds" in result.stopped):
        result = replace(result, stopped="", certificate=finalize(result.folder, observers=observers))
    return result


def verify(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Re-check every row, file and link of a run; raises `TamperedError` that names the first alteration."""
    folder = Path(folder)
    store = wire.open_store(folder)
    try:
        certificate = folder / "certificate.json"
        links = store.verify()
        found = {"links": links, "chain_head": store.chain_head(), "archive_digest": store.archive_digest()}
        if certificate.exists():
            from leadscrew.report.certificate import check_certificate

            check_certificate(json.loads(certificate.read_text("utf-8")), store)
            found["certificate"] = "matches"
        return found
    finally:
        store.close()


def doctor() -> dict[str, Any]:
    """Try what a run needs on this machine, and say what is missing and how to get it."""
    from leadscrew.report.doctor import examine

    return examine(wire.cache_folder())


# -- inside --------------------------------------------------------------------------------------


def _publish(folder: Path, certificate: dict[str, Any]) -> dict[str, Any]:
    from leadscrew.report.certificate import certificate_text

    write_durably(folder / "certificate.txt", certificate_text(certificate) + "\n")
    write_durably(folder / "certificate.json", json.dumps(certificate, indent=2, ensure_ascii=False) + "\n")
    return certificate


def _search(assembly: wire.Assembly, seed: Program | None, proposer: Proposer | None) -> RunResult:
    store = assembly.store
    engine = assembly.engine(seed, proposer)
    assembly.observe(Event("run", {"config": assembly.config, "report": assembly.report, "meter": assembly.meter}))

    async def search() -> str:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, engine.stop, signal.Signals(number).name)
            except (ValueError, RuntimeError):
                # Only the main thread may handle signals; a library user in another thread stops through the inbox.
                break
        try:
            return await engine.run()
        except BudgetReached as error:
            return str(error)
        finally:
            await assembly.close()

    ended = asyncio.run(search())
    stopped = "" if ended == "done" else ended.removeprefix("stopped: ")
    champion = engine.archive.champion
    assembly.observe(Event("done", {"stopped": stopped, "archive": engine.archive}))
    return RunResult(
        folder=store.path,
        champion=champion.id if champion else "",
        program=store.program(champion.program) if champion else None,
        value=champion.value if champion else None,
        candidates=len(engine.archive),
        stopped=stopped,
    )


def _go_on(
    folder: Path,
    caps: NewCaps,
    observers: Sequence[Observer],
    domain: Domain | None,
    program: Program | None,
    proposer: Proposer | None,
) -> RunResult:
    with sitting(folder, domain, observers, caps, program, check=check_resumable) as (assembly, _):
        if not opened(assembly.store):
            return _search(assembly, seed_of(assembly.store), proposer)
        asyncio.run(assembly.close())
    certificate = finalize(folder, observers=observers, domain=domain)
    store = wire.open_store(folder)
    try:
        champion = certificate["champion"]
        program = store.program(champion["program"])
    finally:
        store.close()
    return RunResult(
        folder, champion["id"], program, champion["val"], certificate["candidates"], certificate=certificate
    )


def _config(given: ConfigLike) -> Config:
    if isinstance(given, Config):
        return given
    if isinstance(given, Mapping):
        return configuration.config_from(dict(given), Path.cwd())
    return configuration.load_config(Path(given))
