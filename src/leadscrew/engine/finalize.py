"""The end of a run: open the test split once, test what was fixed on val, and certify what was found.

The order matters and is recorded: the champion is fixed, the opening is written down and made durable, only then are test
instances loaded. A killed finalize goes on where it was; a closed run stays closed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from leadscrew.core.archive import Archive
from leadscrew.core.budget import Account, Spend
from leadscrew.core.canonical import digest_of
from leadscrew.core.proposal import Candidate
from leadscrew.core.task import SPLITS, Instance, Objective, Split
from leadscrew.core.trial import Evaluation, Outcome, Purpose, value_of
from leadscrew.engine.bench import derived_rng
from leadscrew.engine.commit import Committer
from leadscrew.engine.evaluate import Evaluator
from leadscrew.engine.ledger import Ledger
from leadscrew.engine.meter import FINAL_PLAN, Meter
from leadscrew.errors import RefusedError, SealedError
from leadscrew.policies.noise import noise_floor
from leadscrew.policies.stats import mean_interval, nested_interval, two_sided
from leadscrew.ports import Domain, Event, Method, Observer, Store

_T = TypeVar("_T")
ALPHA = 0.05
CERTIFICATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Finals:
    """What `finalize` needs to know about the run. `test_digest` names the sealed split; `facts` go into the certificate as
    they are (sandbox, limits, digests, seed, names); `recheck` instances per finalist are rerun in fresh boxes."""

    run_id: str
    seed: int
    now: str
    test_digest: str
    facts: Mapping[str, Any]
    recheck: int = 4


def opened(store: Store) -> bool:
    """Whether the test split of this run was opened."""
    return any(True for _ in store.events("opening"))


def closed(store: Store) -> bool:
    """Whether the run was finalized."""
    return any(True for _ in store.events("closed"))


def certificate_of(store: Store) -> dict[str, Any] | None:
    """Return the certificate that a run was closed with, or None for an open run."""
    for _, _, data in store.events("closed"):
        return {**data["content"], "chain_head": store.chain_head()}
    return None


def check_evolvable(store: Store) -> None:
    """Raise `SealedError` if the run may not go on searching."""
    if closed(store) or opened(store):
        raise SealedError(
            "the test split of this run was opened, so its search is over: anything found from here on would be chosen "
            "with the test in sight. Fork the run to search on; its certificate stays."
        )


async def finalize(
    finals: Finals,
    *,
    store: Store,
    archive: Archive,
    method: Method,
    domain: Domain,
    evaluator: Evaluator,
    committer: Committer,
    meter: Meter,
    ledger: Ledger,
    load_test: Callable[[], Awaitable[Sequence[Instance]]],
    observe: Observer = lambda event: None,
) -> dict[str, Any]:
    """Return the certificate. Raises `SealedError` if the run is closed, `RefusedError` if there is no champion,
    `BudgetReached` or `InfrastructureError` if testing is cut short (call again to go on)."""
    if closed(store):
        raise SealedError("this run is closed: its test split was opened and reported in certificate.json.")
    champion = archive.champion
    if champion is None:
        raise RefusedError("there is nothing to certify: no candidate of this run could be evaluated on val.")
    finalists = _finalists(archive, method, champion)
    if not opened(store):
        store.add_event(
            "opening",
            {"test": finals.test_digest, "champion": champion.id, "finalists": finalists, "when": finals.now},
        )
        await committer.durable()
    openings = ledger.record(finals.test_digest, finals.run_id, finals.now)
    evaluator.splits = {**evaluator.splits, "test": await load_test()}
    observe(Event("final", {"state": "testing", "finalists": finalists}))

    # Each program that is tested keeps a box; the caps bound the search, and what the opening costs is known beforehand.
    room = asyncio.Semaphore(evaluator.executor.workers + 1)

    async def tested(candidate: str) -> Evaluation:
        program = store.program(archive[candidate].program)
        async with room:
            found = await evaluator.evaluate(
                program, Account(), split="test", purpose=Purpose.FINAL, repeats=None, plan=FINAL_PLAN
            )
        observe(Event("final", {"state": "tested", "candidate": candidate, "value": found["test"].value}))
        return found["test"]

    results = dict(zip(finalists, await _in_order([tested(c) for c in finalists]), strict=True))
    observe(Event("final", {"state": "rechecking"}))
    recheck = await _recheck(finals.recheck, archive, finalists, store, evaluator, domain)
    datasets = {i.id: i.dataset for i in evaluator.splits["test"]}
    certificate = _certificate(finals, archive, method, domain, results, recheck, openings, store, meter, datasets)
    store.add_event("closed", {"certificate": digest_of(certificate), "content": certificate})
    await committer.durable()
    certificate["chain_head"] = store.chain_head()
    observe(Event("final", {"state": "closed", "certificate": certificate}))
    return certificate


def _finalists(archive: Archive, method: Method, champion: Candidate) -> list[str]:
    """Champion, what the method names, and every founding program that has a number: the baselines must be there."""
    founding = [c.id for c in _founding(archive) if c.status == "evaluated"]
    return list(dict.fromkeys([champion.id, *method.finalists(archive), *founding]))


def _founding(archive: Archive) -> list[Candidate]:
    found: list[Candidate] = []
    while f"0.{len(found)}" in archive:
        found.append(archive[f"0.{len(found)}"])
    return found


async def _in_order(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all; if one fails, let the others finish first, so that what they earned is stored."""
    done = await asyncio.gather(*work, return_exceptions=True)
    out: list[_T] = []
    for result in done:
        if isinstance(result, BaseException):
            raise result
        out.append(result)
    return out


async def _recheck(
    count: int, archive: Archive, finalists: Sequence[str], store: Store, evaluator: Evaluator, domain: Domain
) -> dict[str, Any]:
    """Rerun some trials of the found finalists, each in a box of its own: a program that carries state from one instance
    to the next, or is not deterministic though its domain says so, gives itself away."""
    found = [c for c in finalists if archive[c].plan > 0]
    if not count or not domain.interface.deterministic or domain.interface.operation == "artifact":
        return {"checked": 0, "mismatches": [], "why_none": "not asked for, or the domain is not deterministic"}
    room = asyncio.Semaphore(evaluator.executor.workers)

    async def one(candidate: str, split: Split) -> tuple[int, list[dict[str, str]]]:
        async with room:
            done, wrong = await evaluator.recheck(store.program(archive[candidate].program), split, count)
        return done, [{"candidate": candidate, "split": split, "instance": i} for i in wrong]

    pairs: list[tuple[str, Split]] = [(c, s) for c in found for s in SPLITS[1:]]
    checks = await _in_order([one(c, s) for c, s in pairs])
    return {"checked": sum(n for n, _ in checks), "mismatches": [m for _, wrong in checks for m in wrong]}


def _certificate(
    finals: Finals,
    archive: Archive,
    method: Method,
    domain: Domain,
    results: Mapping[str, Evaluation],
    recheck: Mapping[str, Any],
    openings: int,
    store: Store,
    meter: Meter,
    datasets: Mapping[str, str],
) -> dict[str, Any]:
    champion = archive.champion
    assert champion is not None
    primary = domain.objectives[0]
    founding = [c for c in _founding(archive) if c.id in results and results[c.id].value is not None]
    baseline = founding[0]
    for other in founding[1:]:
        if primary.better(_value(results[other.id]), _value(results[baseline.id])):
            baseline = other
    best, held = results[champion.id], results[baseline.id]
    groups = _differences(best, held, primary, datasets)
    difference = primary.gain(_value(best), _value(held))
    test = two_sided([d for group in groups for d in group])
    low, high = nested_interval(groups, derived_rng(finals.seed, 0, "certificate"))
    # A domain's own aggregate may disagree with the paired mean about the sign; then there is no gain to believe.
    significant = difference > 0 and test.mean > 0 and test.p < ALPHA
    wrong = [m for m in recheck["mismatches"] if m["candidate"] == champion.id]
    improved = significant and champion.plan > 0 and not wrong
    spend = store.spend()
    return {
        "version": CERTIFICATE_VERSION,
        "improved": improved,
        "verdict": _words(champion, baseline, difference, test.p, len(wrong), significant),
        "champion": {
            "id": champion.id,
            "name": champion.name,
            "program": champion.program,
            "val": champion.value,
            "hypothesis": champion.claim.hypothesis,
        },
        "objective": asdict(primary),
        "test": {
            "best": _value(best),
            "best_interval": _finite(mean_interval(list(best.values))),
            "baseline": _value(held),
            "baseline_id": baseline.id,
            "baseline_name": baseline.name,
            "difference": difference,
            "interval": _finite((low, high)),
            "interval_level": 0.95,
            "p_value": test.p,
            "p_test": f"two-sided {test.name}",
            "instances": len(best.instances),
            "digest": finals.test_digest,
            "rows": [_row(archive[c], found) for c, found in results.items()],
            **_beside_a_model(best, founding, results, domain, datasets),
        },
        "val_visible": method.evidence.val_traces,
        "candidates": len(archive),
        "evaluated": sum(c.status == "evaluated" for c in archive),
        "openings": openings,
        "recheck": dict(recheck),
        "noise": _noise(champion, store, domain),
        "spend": {
            **{name: amount for name, amount in asdict(spend).items()},
            "seconds": round(meter.seconds, 3),
        },
        "caps": {name: cap for name, cap in asdict(meter.run.caps).items() if cap is not None},
        "tamper_exposed": domain.tamper_exposed,
        "finalized": finals.now,
        **finals.facts,
        **_paid(store),
    }


def _paid(store: Store) -> dict[str, Any]:
    """What model calls cost by role, those of the final test apart; nothing without any."""
    paid: dict[str, dict[str, Spend]] = {}
    for (role, plan), spend in store.call_spend().items():
        part = "final" if plan == FINAL_PLAN else "search"
        scopes = paid.setdefault(role, {"search": Spend(), "final": Spend()})
        scopes[part] = scopes[part] + spend
    shown = {role: {part: spend.to_json() for part, spend in scopes.items()} for role, scopes in paid.items()}
    return {"paid": shown} if shown else {}


def _beside_a_model(
    best: Evaluation,
    founding: Sequence[Candidate],
    results: Mapping[str, Evaluation],
    domain: Domain,
    datasets: Mapping[str, str],
) -> dict[str, Any]:
    """What must stand next to the result of a program that may ask a model: how often it did, and the best founding
    program that never did. Empty where programs have no model."""
    calls = best.aggregate.costs.get("model_calls")
    if calls is None:
        return {}
    primary, free = domain.objectives[0], None
    for other in founding:
        if results[other.id].aggregate.costs.get("model_calls", 0.0):
            continue
        if free is None or primary.better(_value(results[other.id]), _value(results[free.id])):
            free = other
    out: dict[str, Any] = {"model_calls_per_prediction": calls, "no_model_baseline": None}
    if free is not None:
        held = results[free.id]
        gains = [d for group in _differences(best, held, primary, datasets) for d in group]
        out["no_model_baseline"] = {
            "id": free.id,
            "name": free.name,
            "value": _value(held),
            "difference": primary.gain(_value(best), _value(held)),
            "p_value": two_sided(gains).p,
        }
    return out


def _differences(
    best: Evaluation, held: Evaluation, primary: Objective, datasets: Mapping[str, str]
) -> list[list[float]]:
    """Paired gains by data set, weighted so that their plain mean is the mean of the data sets' means, as scores are."""
    before = held.by_instance()
    groups: dict[str, list[float]] = {}
    for instance, value in best.by_instance().items():
        groups.setdefault(datasets.get(instance, "main"), []).append(primary.gain(value, before[instance]))
    total = sum(len(group) for group in groups.values())
    return [[d * total / (len(groups) * len(group)) for d in group] for group in groups.values()]


def _noise(champion: Candidate, store: Store, domain: Domain) -> dict[str, Any] | None:
    """The noise floor: how much the champion's score moves when it meets a val instance again. None without repeats."""
    exposed = store.program(champion.program).part(domain.interface.region).digest
    repeats: dict[str, list[float]] = {}
    for trial in store.trials(exposed, "val"):
        if trial.outcome is not Outcome.INFRA:
            repeats.setdefault(trial.instance, []).append(value_of(trial, domain.objectives[0]))
    floor = noise_floor(repeats)
    if not floor.degrees:
        return None
    error = floor.standard_error(floor.instances)
    return {"within_sd": floor.within_sd, "degrees": floor.degrees, "standard_error_of_val": error}


def _row(candidate: Candidate, found: Evaluation) -> dict[str, Any]:
    return {
        "id": candidate.id,
        "name": candidate.name,
        "baseline": candidate.plan == 0,
        "val": candidate.value,
        "test": found.value,
        "interval": _finite(mean_interval(list(found.values))),
        "costs": dict(found.aggregate.costs),
        "per_dataset": dict(found.aggregate.per_dataset),
        "failures": dict(found.failures),
    }


def _words(champion: Candidate, baseline: Candidate, gain: float, p: float, wrong: int, significant: bool) -> str:
    against = f"the best baseline on test, {baseline.name or baseline.id}"
    if champion.plan == 0:
        return f"nothing improved: the champion is still the founding program {champion.name or champion.id}"
    if significant and wrong:
        return (
            f"not improved: the gain over {against} cannot be believed, because {wrong} answers came out differently in "
            "fresh boxes"
        )
    if significant:
        return f"improved: {champion.id} beats {against} by {gain:.4g} (p = {p:.2g})"
    if gain > 0:
        return f"not improved: {champion.id} is ahead of {against} by {gain:.4g}, which chance explains (p = {p:.2g})"
    return f"not improved: {champion.id} is not ahead of {against} ({gain:+.4g})"


def _value(evaluation: Evaluation) -> float:
    assert evaluation.value is not None, "only complete evaluations are certified"
    return evaluation.value


def _finite(interval: tuple[float, float]) -> list[float | None]:
    return [bound if math.isfinite(bound) else None for bound in interval]
