"""Commands that begin or continue a run: demo, init, run, resume, finalize, fork."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadscrew.cli.output import number, print_json
from leadscrew.errors import ConfigError, PausedError, ProgramError

if TYPE_CHECKING:
    from leadscrew.core.budget import Caps


def demo(args: argparse.Namespace) -> int:
    """Evolve the built-in example to a certificate."""
    from leadscrew import runs

    out = Path(args.out) if args.out else _free(Path("leadscrew-demo"))
    with _watch(args) as observer:
        result = runs.demo(out, args.seed, observers=(observer,))
    return _finish(result, args)


def init(args: argparse.Namespace) -> int:
    """Write a small task of one's own."""
    from leadscrew.config.scaffold import init as scaffold

    made = scaffold(args.folder, from_git=args.from_git)
    if args.json:
        print_json({"folder": str(made.folder), "files": list(made.files), "next": made.next})
    else:
        print(f"wrote {len(made.files)} files to {made.folder}")
        print(f"next: {made.next}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Run a configuration to the method's end or to a cap."""
    from leadscrew import runs
    from leadscrew.config import changed, check_paths, load_config
    from leadscrew.plugins import load_domain, load_method, load_proposer
    from leadscrew.report.estimate import estimate, estimate_text

    config = load_config(args.config)
    overrides = _overrides(args.settings)
    if args.seed is not None:
        overrides["run.seed"] = args.seed
    if args.out:
        overrides["run.out"] = str(Path(args.out).resolve())
    if overrides:
        config = changed(config, overrides)
    check_paths(config)
    domain, method = load_domain(config), load_method(config)
    load_proposer(config)
    expected = estimate(config, domain, method)
    if args.estimate:
        print_json(expected) if args.json else print(estimate_text(expected))
        return 0
    print(estimate_text(expected), file=sys.stderr)
    try:
        with _watch(args) as observer:
            result = runs.run(config, observers=(observer,), domain=domain)
    except ProgramError as error:
        raise ProgramError(f"{str(error).rstrip('.')}.{_first_failure(config.out)}", path=error.path) from error
    return _finish(result, args)


def resume(args: argparse.Namespace) -> int:
    """Go on with a run."""
    from leadscrew import runs
    from leadscrew.report.reading import run_folder

    folder = run_folder(args.run)
    caps = _caps(args, "trials", "seconds", "calls", "tokens", "usd")
    if args.role and (caps is None or caps.trials is not None or caps.seconds is not None):
        raise ConfigError(
            f"--role {args.role} goes with --calls, --tokens or --usd: trials and seconds are of the whole run.",
            key=f"models.{args.role}.budget",
        )
    with _watch(args) as observer:
        result = runs.resume(folder, caps=caps, role=args.role or "", observers=(observer,))
    return _finish(result, args)


def _caps(args: argparse.Namespace, *names: str) -> Caps | None:
    from leadscrew.core.budget import Caps

    given = {name: getattr(args, name) for name in names}
    for name, value in given.items():
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} {value}: a cap must be more than 0.", key=f"budget.{name}", value=value)
    return Caps(**given) if any(v is not None for v in given.values()) else None


def finalize(args: argparse.Namespace) -> int:
    """Open the test split and print the certificate."""
    from leadscrew import runs
    from leadscrew.report.reading import run_folder

    folder = run_folder(args.run)
    with _watch(args) as observer:
        certificate = runs.finalize(folder, caps=_caps(args, "calls", "tokens", "usd"), observers=(observer,))
    _print_certificate(certificate, args)
    return 0


def fork(args: argparse.Namespace) -> int:
    """Begin a new run folder with a changed configuration."""
    from leadscrew import runs
    from leadscrew.report.reading import run_folder

    made = runs.fork(run_folder(args.run), Path(args.out).resolve(), _overrides(args.settings))
    folder = Path(str(getattr(made, "folder", None) or made or args.out))
    if args.json:
        print_json({"folder": str(folder), "next": f"leadscrew resume {folder}"})
    else:
        print(f"forked to {folder}\nnext: leadscrew resume {folder}")
    return 0


def _first_failure(folder: Path) -> str:
    """What went wrong on the first example, where the programs to start from failed in their trials."""
    from leadscrew.report import views

    if not (folder / "run.db").is_file():
        return ""
    rows = [row for row in views.trials(folder, "seed") if row["message"]]
    if not rows:
        return " Mend it, then run again with another --out."
    lines = [line.strip() for line in str(rows[0]["message"]).splitlines() if line.strip(" ^~")]
    what = " ".join(lines)
    if len(what) > 500:
        # Of a traceback the end says what happened.
        what = f"{what[:150]} ... {what[-330:]}"
    return (
        f" The first of them: {rows[0]['outcome']}: {what}. More: leadscrew trace {folder} seed {rows[0]['instance']}"
    )


# -- shared --------------------------------------------------------------------------------------


def _overrides(settings: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for item in settings:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {item!r}: write KEY=VALUE, for example --set run.seed=3.", key=key, value=item)
        out[key.strip()] = value.strip()
    return out


def _free(folder: Path) -> Path:
    """The folder itself, or the first of folder-2, folder-3, ... that does not exist."""
    candidate, n = folder, 1
    while candidate.exists():
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return candidate


def _watch(args: argparse.Namespace) -> Any:
    from leadscrew.report.live import watch

    return watch()


def _finish(result: Any, args: argparse.Namespace) -> int:
    """Say how a run ended and what can be done next; finalize if asked to and the search is done."""
    from leadscrew import runs

    certificate = result.certificate
    if certificate is None and not result.stopped and getattr(args, "finalize", False):
        with _watch(args) as observer:
            certificate = runs.finalize(result.folder, observers=(observer,))
    if args.json:
        print_json(
            {
                "folder": str(result.folder),
                "champion": result.champion,
                "value": result.value,
                "candidates": result.candidates,
                "stopped": result.stopped,
                "certificate": certificate,
            }
        )
    else:
        _say(result, certificate, args)
    return PausedError.exit_code if result.stopped else 0


def _say(result: Any, certificate: Mapping[str, Any] | None, args: argparse.Namespace) -> None:
    if certificate is not None:
        _print_certificate(certificate, args)
    print(f"run        {result.folder}")
    if not result.champion:
        why = result.stopped or "no program could be evaluated"
        print(f"champion   none: {why}\nlook       leadscrew tree {result.folder}")
        if result.stopped:
            print(f"go on      leadscrew resume {result.folder}")
        return
    print(f"champion   {result.champion}, {number(result.value)} on val, of {result.candidates} candidates")
    if result.stopped:
        print(f"stopped    {result.stopped}")
        print(f"go on      leadscrew resume {result.folder}")
    elif certificate is None:
        print(f"next       leadscrew finalize {result.folder}    (opens the test split, once)")
    print(f"look       leadscrew why {result.folder}")
    print(f"take       leadscrew export {result.folder} best/")


def _print_certificate(certificate: Mapping[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        if args.command == "finalize":
            print_json(certificate)
        return
    from leadscrew.report.certificate import certificate_text

    print(certificate_text(certificate))
