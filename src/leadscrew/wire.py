"""The only room that knows all concrete classes: it puts a run together from its configuration and its store."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadscrew import roles
from leadscrew.adapters.executors.errands import ErrandRunner
from leadscrew.adapters.executors.judging import Judges
from leadscrew.adapters.executors.local import LocalExecutor
from leadscrew.adapters.executors.scorer import ProcessScorer
from leadscrew.adapters.sandboxes import choose
from leadscrew.adapters.stores import inbox
from leadscrew.adapters.stores.sqlite import SQLiteStore
from leadscrew.config import Config, to_dict
from leadscrew.core.archive import Archive
from leadscrew.core.program import EVERYTHING, Program, Region
from leadscrew.core.proposal import Claim, Edge, Edit, Proposal
from leadscrew.core.task import SPLITS, Instance, Objective, Split
from leadscrew.core.trial import Outcome
from leadscrew.engine.bench import RunBench, Submissions
from leadscrew.engine.check import CheckSettings
from leadscrew.engine.commit import Committer
from leadscrew.engine.evaluate import EvaluationSettings, Evaluator
from leadscrew.engine.folders import read_folder
from leadscrew.engine.history import History
from leadscrew.engine.loop import Engine, LoopSettings
from leadscrew.engine.meter import Meter
from leadscrew.engine.restore import load_archive
from leadscrew.errors import ConfigError, DomainError, ProgramError, TamperedError
from leadscrew.operators.clean import Clean
from leadscrew.operators.deliverable import PENDING, find_candidate, read_deliverable
from leadscrew.operators.external import Submitted
from leadscrew.operators.found import Found
from leadscrew.plugins import load_proposer, operator_of
from leadscrew.policies.hygiene import DataNames
from leadscrew.ports import Domain, Event, Message, Method, Model, Observer, Proposer, Sandbox, SandboxReport, Store

if TYPE_CHECKING:
    from leadscrew.adapters.models.gateway import ModelGateway

MEASURED_COSTS = ("context_chars", "prompt_chars", "prompt_tokens", "reply_tokens", "model_calls")
"""What the gateway measures of a trial; a domain's own costs have other names."""


def cache_folder() -> Path:
    """Return the user's cache folder of leadscrew: the only place outside a run folder that is ever written."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leadscrew"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a domain's data before a run: size and digest per split. Test rows stay in the process that read them."""

    sizes: dict[Split, int]
    digests: dict[Split, str]
    scanned: int


def prepare(domain: Domain, mounted: Sequence[str]) -> Prepared:
    """Load every split in a process of its own, digest it, and search what boxes would mount for its texts.

    Raises `DomainError` if a split is empty, ids repeat, or a mounted file holds val or test texts.
    """
    receive, send = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_prepare_child, args=(domain, list(mounted), send))
    child.start()
    send.close()
    try:
        found = receive.recv()
    except EOFError:
        found = RuntimeError("the process that loads the domain's data died")
    child.join()
    if isinstance(found, BaseException):
        raise found
    assert isinstance(found, Prepared)
    return found


def _prepare_child(domain: Domain, mounted: list[str], send: Any) -> None:
    from leadscrew.adapters.sandboxes.scan import scan

    try:
        sizes: dict[Split, int] = {}
        ids: set[str] = set()
        for split in SPLITS:
            instances = domain.instances(split)
            sizes[split] = len(instances)
            fresh = {i.id for i in instances}
            if len(fresh) < len(instances) or fresh & ids:
                raise DomainError(f"the domain {domain.name!r} uses an instance id twice (in or before {split!r}).")
            ids |= fresh
        if not sizes["val"] or not sizes["test"]:
            raise DomainError(
                f"the domain {domain.name!r} has {sizes['val']} val and {sizes['test']} test instances; both are needed: "
                "val to choose by, test to believe the choice."
            )
        digests = {split: domain.split_digest(split) for split in SPLITS}
        probes = [text for split in SPLITS[1:] for text in domain.probes(split)]
        scan(probes, mounted, domain.masks())
        send.send(Prepared(sizes, digests, len(probes)))
    except DomainError as error:
        send.send(error)
    except Exception as error:
        send.send(DomainError(f"the domain {domain.name!r} failed to load: {type(error).__name__}: {error}"))


@dataclass(slots=True)
class Assembly:
    """A run put together: what the loop and finalize need."""

    config: Config
    domain: Domain
    method: Method
    store: SQLiteStore
    sandbox: Sandbox
    report: SandboxReport
    executor: LocalExecutor
    gateway: ModelGateway | None
    errands: ErrandRunner
    scorer: ProcessScorer
    committer: Committer
    evaluator: Evaluator
    meter: Meter
    workers: int
    observe: Observer

    def engine(self, seed: Program | None, proposer: Proposer | None = None) -> Engine:
        """Return the loop of this run. `seed` is the program to start from; None takes the domain's own."""
        config = self.config
        proposer = proposer or load_proposer(config)
        names = data_names(self.domain, self.evaluator.splits)
        history = History(self.store, self.domain, self.method.evidence, splits=self.evaluator.splits)
        region = Region(config.program.region.include, config.program.region.exclude)
        return Engine(
            method=self.method,
            domain=self.domain,
            proposers={
                operator_of(config): Clean(proposer, names),
                "found": Found(seed),
                "submitted": Clean(Submitted(), names),
            },
            evaluator=self.evaluator,
            executor=self.executor,
            store=self.store,
            committer=self.committer,
            meter=self.meter,
            seed=config.run.seed,
            settings=LoopSettings(
                plans_in_flight=config.run.plans_in_flight,
                order=config.run.order,
                approve=config.run.approve,
                infra_limit=config.evaluation.infra_limit,
            ),
            check=CheckSettings(),
            region=region if region != Region() else EVERYTHING,
            unseal=self.unseal,
            layout=lambda bench, folder: lay_out(history, bench, folder),
            errands=self.errands,
            fatal=lambda: self.gateway.fatal if self.gateway is not None else None,
            observe=self.observe,
        )

    def unseal(self, message: Message, bench: RunBench) -> Sequence[Proposal]:
        """Turn a submission or an approval into proposals; whatever is wrong with it is a failed proposal with a reason."""
        if message.kind == "approve":
            return [_approved(str(message.data.get("candidate", "")), bench)]
        folder = self.store.path / "inbox" / message.id
        if (folder / PENDING).exists():
            return read_deliverable(
                folder, archive=bench.archive, program=bench.program, entry=self.domain.interface.entry
            )
        return [_submitted(folder, message, bench)]

    async def close(self) -> None:
        """Kill boxes and the scorer, end the models; the store stays open."""
        await self.executor.close()
        await self.sandbox.close()
        if self.gateway is not None:
            await self.gateway.close()
        await self.scorer.close()


def _approved(candidate: str, bench: RunBench) -> Proposal:
    known = bench.archive[candidate] if candidate in bench.archive else None
    if known is None or known.status != "held":
        return Proposal(None, failure=f"{candidate!r} is no held candidate", outcome=Outcome.INVALID)
    edges = (*known.edges, Edge("triggered_by", candidate, {"approved": True}))
    return Proposal(bench.program(candidate), edges, known.claim, known.name)


def _submitted(folder: Path, message: Message, bench: RunBench) -> Proposal:
    """A folder without a deliverable's list is one whole program; its base is the named candidate, else the champion."""
    text = {key: str(message.data.get(key) or "") for key in ("name", "base", "hypothesis")}
    base = find_candidate(bench.archive, text["base"]) if text["base"] else None
    if base is None and bench.archive.champion is not None:
        base = bench.archive.champion.id
    edges = (Edge("base", base),) if base is not None else ()
    claim = Claim(text["hypothesis"])
    try:
        return Proposal(read_folder(folder), edges, claim, text["name"])
    except ProgramError as error:
        return Proposal(None, edges, claim, text["name"], failure=str(error), outcome=Outcome.INVALID)


def lay_out(history: History, bench: RunBench, folder: Path) -> None:
    """Write the history, the skill text and a prompt that carries paths only, for whoever works on a bench."""
    history.update(bench.archive)
    skill = Path(__file__).parent / "templates" / "harness" / "skill.md"
    (folder / "SKILL.md").write_text(skill.read_text("utf-8"), encoding="utf-8")
    prompt = {
        "plan": bench.number,
        "candidates_wanted": bench.plan.count,
        "skill": "SKILL.md",
        "history": os.path.relpath(history.folder, folder),
        "programs": "programs/",
        "deliver": PENDING,
        "entry": bench.domain.interface.entry,
        "operation": bench.domain.interface.operation,
        "notes": list(bench.notes),
    }
    (folder / "prompt.json").write_text(json.dumps(prompt, indent=2) + "\n", encoding="utf-8")


def hand_bench(store: Store, archive: Archive, domain: Domain, method: Method, folder: Path) -> None:
    """Lay out a bench outside the run's plans, for somebody who wants to try something by hand."""
    bench = RunBench(
        number=archive.plans_applied,
        plan=Edit("submitted"),
        archive=archive,
        domain=domain,
        evidence=method.evidence,
        notes=[str(data.get("text", "")) for _, _, data in store.events("note")],
        store=store,
        seed=0,
        submissions=Submissions(),
        unseal=lambda message, bench: (),
        layout=lambda bench, place: lay_out(History(store, domain, method.evidence), bench, place),
    )
    bench.folder(folder)


def assemble(
    config: Config,
    domain: Domain,
    method: Method,
    store: SQLiteStore,
    sandbox: Sandbox,
    report: SandboxReport,
    observers: Sequence[Observer],
    caps: roles.CapsInForce,
) -> Assembly:
    """Put a run together. The scorer is forked before anything else, while this process still has one thread."""
    observe = _all_of(observers)
    workers = config.run.workers or roles.workers(config)
    scorer = ProcessScorer(domain)
    place = store.path.resolve() / "tmp"
    place.mkdir(exist_ok=True)
    committer = Committer(store)
    seconds = max((float(data.get("seconds", 0)) for _, _, data in store.events("sitting")), default=0.0)
    meter = Meter(
        caps.run,
        before=store.spend(),
        seconds_before=seconds,
        calls_before=store.call_spend(),
        role_caps=caps.roles,
        final_caps=caps.final,
    )
    gateway = build_gateway(config, store, committer, meter, observe) if config.models else None
    if gateway is not None and roles.JUDGE in config.models:
        scorer.judges = Judges(gateway, roles.access(config, roles.JUDGE), place)
    executor = LocalExecutor(sandbox, workers=workers, root=place, gateway=gateway)
    splits: dict[Split, Sequence[Instance]] = {s: domain.instances(s) for s in ("train", "val")}
    errands = ErrandRunner(
        sandbox,
        place,
        history=History(store, domain, method.evidence, splits=splits),
        gateway=gateway,
        access={role: roles.access(config, role) for role in config.models},
        masks=domain.masks(),
        environment=domain.environment,
    )
    evaluator = Evaluator(
        domain=domain,
        splits=splits,
        executor=executor,
        scorer=scorer,
        store=store,
        committer=committer,
        seed=config.run.seed,
        settings=EvaluationSettings(
            ladder=tuple(config.evaluation.ladder),
            gate_margin=config.evaluation.gate_margin,
            repeats=config.evaluation.repeats,
            fresh=config.evaluation.fresh,
            train_log=config.evaluation.train_log,
        ),
        limits=domain.limits,
        runtime=f"{report.name}:python-{platform.python_version()}",
        models=roles.scoring_digest(config),
        access=roles.solver_access(config),
        observe=observe,
    )
    return Assembly(
        config=config,
        domain=domain,
        method=method,
        store=store,
        sandbox=sandbox,
        report=report,
        executor=executor,
        gateway=gateway,
        errands=errands,
        scorer=scorer,
        committer=committer,
        evaluator=evaluator,
        meter=meter,
        workers=workers,
        observe=observe,
    )


def build_gateway(
    config: Config,
    store: SQLiteStore,
    committer: Committer,
    meter: Meter,
    observe: Observer,
) -> ModelGateway:
    """Return the gateway of a run: its roles, the keys from the environment, and the accounts that pay."""
    from leadscrew.adapters.models.gateway import ModelGateway
    from leadscrew.adapters.models.metering import RoleModel
    from leadscrew.adapters.models.providers import find
    from leadscrew.adapters.models.redact import Redactor
    from leadscrew.adapters.models.replay import Replay
    from leadscrew.adapters.models.upstream import Upstream

    pinned = roles.pins(config)
    found: dict[str, RoleModel] = {}
    secrets: dict[str, str] = {}
    shared: dict[str, Any] = {}
    for role, section in config.models.items():
        if roles.in_process(section.model):
            # Two roles on one local model share it: it is loaded once.
            backend = shared.get(section.model) or _own_model(section.model)
            shared[section.model] = backend
        else:
            backend, _ = find(section.model, roles.providers(config))
            if backend.key_env and os.environ.get(backend.key_env):
                secrets[backend.key_env] = os.environ[backend.key_env]
        timeout_s = section.timeout_s or (
            roles.LOCAL_TIMEOUT_S if section.model.startswith("local/") else roles.TIMEOUT_S
        )
        found[role] = RoleModel(
            pinned[role], backend, timeout_s, section.retries, section.cache, roles.price(config, role)
        )
    replay = None
    if config.run.replay:
        replay = Replay(SQLiteStore.open(Path(config.run.replay), readonly=True))
    return ModelGateway(
        roles=found,
        store=store,
        committer=committer,
        accounts=meter.calls,
        upstream=Upstream(),
        redact=Redactor(secrets),
        replay=replay,
        observe=observe,
    )


def _own_model(model: str) -> Model:
    provider, _, name = model.partition("/")
    if provider == "scripted":
        from leadscrew.adapters.models.scripted import load

        return load(name)
    from leadscrew.adapters.models.local import LocalModel

    return LocalModel(name, cache_folder())


def make_ready(config: Config, folder: Path, domain: Domain) -> tuple[Sandbox, SandboxReport]:
    """Try the sandbox while the domain's data are loaded: on a new machine both have something to build first."""
    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(domain.instances, "train")
        ready = start_sandbox(config, folder)
        loading.result()
    return ready


def start_sandbox(config: Config, folder: Path) -> tuple[Sandbox, SandboxReport]:
    """Choose and really try the sandbox; raises `SandboxUnavailable` with reason and remedy."""
    sandbox = choose(config.sandbox.name)
    return sandbox, sandbox.probe()


def prepared_event(prepared: Prepared, domain: Domain) -> dict[str, Any]:
    """Return what a run writes down of its data, scorer and objectives before it starts: readers rank by these."""
    objectives = [asdict(objective) for objective in domain.objectives]
    return {**asdict(prepared), "scorer": domain.scorer_digest(), "objectives": objectives}


def fit(config: Config, domain: Domain) -> Domain:
    """Give a domain the limits and the further objectives that a configuration asks for, and return it.

    Raises `ConfigError` for a cost that nothing measures and for baselines that ask a model where there is none, `DomainError`
    for a scorer whose judge is not configured.
    """
    domain.limits = config.limits_over(domain.limits)
    if getattr(domain, "solver", "") == "llm" and roles.SOLVER not in config.models:
        raise ConfigError(
            f"the domain {domain.name!r} has solver = 'llm': its first programs ask a model, but no model has the role solver. "
            'Write [models.solver] with model = "provider/name", or remove the option.',
            key="models.solver",
        )
    if domain.judged and roles.JUDGE not in config.models:
        raise DomainError(
            f"the scorer of {domain.name!r} asks the judge, but no model has that role. Write [models.judge] with "
            'model = "provider/name".'
        )
    known = {objective.name for objective in domain.objectives}
    for name in config.evaluation.costs:
        if name not in MEASURED_COSTS:
            raise ConfigError(
                f"evaluation.costs names {name!r}, which nothing measures. Write some of {', '.join(MEASURED_COSTS)}.",
                key="evaluation.costs",
                value=name,
            )
        if roles.SOLVER not in config.models:
            raise ConfigError(
                f"evaluation.costs names {name!r}, a measure of model calls, but no solver model is configured. "
                'Write [models.solver] with model = "provider/name".',
                key="evaluation.costs",
                value=name,
            )
        if name not in known:
            domain.objectives = (*domain.objectives, Objective(name, "min"))
    return domain


def check_same_data(store: SQLiteStore, prepared: Prepared, scorer: str) -> None:
    """Raise `TamperedError` if data or scorer are not those the run began with: its numbers would not be comparable."""
    for _, _, data in store.events("prepared"):
        for split, digest in data["digests"].items():
            if prepared.digests[split] != digest:
                raise TamperedError(
                    f"the {split!r} split is not the one this run began with (digest {prepared.digests[split][:12]}, then "
                    f"{digest[:12]}). Restore the data, or fork the run.",
                    record=f"split {split}",
                )
        if data["scorer"] != scorer:
            raise TamperedError(
                "the scorer is not the one this run began with, so old and new scores cannot be compared. "
                "Restore it, or fork the run.",
                record="scorer",
            )


def facts_of(assembly: Assembly, prepared: Prepared) -> dict[str, Any]:
    """Return what the certificate says of the run as it was set up."""
    report, config, domain = assembly.report, assembly.config, assembly.domain
    return {
        "sandbox": {
            "name": report.name,
            "version": report.version,
            "isolated": report.isolated,
            "limits": dict(report.limits),
            "warnings": list(report.warnings),
        },
        "limits": asdict(domain.limits),
        "method": assembly.method.name,
        "preset": config.run.preset,
        "proposer": config.proposer.name,
        "domain": domain.name,
        "provenance": asdict(domain.provenance),
        "seed": config.run.seed,
        "splits": {s: {"instances": prepared.sizes[s], "digest": prepared.digests[s]} for s in SPLITS},
        "scorer": domain.scorer_digest(),
        "workers": assembly.workers,
        "plans_in_flight": config.run.plans_in_flight,
        **({"models": roles.facts(config)} if config.models else {}),
    }


def _all_of(observers: Sequence[Observer]) -> Observer:
    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    return observe


def data_names(domain: Domain, splits: Mapping[Split, Sequence[Instance]]) -> DataNames:
    """Return the names of data that no program may know: those of the data sets, where they are named at all."""
    return DataNames({i.dataset for split in splits.values() for i in split} - {"main", domain.name})


def load_run(store: SQLiteStore, domain: Domain) -> Archive:
    """Return the archive of a stored run."""
    return load_archive(store, domain.objectives)


RunStore = SQLiteStore
"""The store of a run on this machine."""


def create_store(folder: Path, config: Config, method: Method) -> RunStore:
    """Begin the store of a run; raises `RefusedError` if there is one already."""
    return SQLiteStore.create(folder, config=to_dict(config), seed=config.run.seed, record_kinds=method.record_kinds)


def open_store(folder: Path, *, readonly: bool = True, method: Method | None = None) -> RunStore:
    """Open the store of a run, to read it beside its writer, or as its only writer if `readonly` is False."""
    return SQLiteStore.open(folder, readonly, record_kinds=method.record_kinds if method else None)


def post(folder: Path, kind: str, data: Mapping[str, Any], files: Program | None = None) -> str:
    """Leave a message in a run's inbox and return its id."""
    return inbox.post(folder, kind, data, files)
