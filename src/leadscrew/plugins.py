"""Names to things: domains, methods, proposers and sandboxes, built in or the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadscrew.config.checks import build_settings, nearest
from leadscrew.errors import ConfigError, DomainError
from leadscrew.ports import Domain, Method, Proposer

if TYPE_CHECKING:
    from leadscrew.config import Config

METHODS = {"harness": "leadscrew.methods.harness:Harness"}
PROPOSERS = {
    "coder": "leadscrew.operators.coder:CoderProposer",
    "command": "leadscrew.operators.command:CommandProposer",
    "genetic": "leadscrew.operators.genetic:GeneticProposer",
    "external": "leadscrew.operators.external:External",
    "scripted": "leadscrew.operators.scripted:Scripted",
}


def load_domain(config: Config) -> Domain:
    """Return the domain that `[domain]` names: a built-in one, or `file.py:ClassOrFactory`.

    Its options become keyword arguments; `seed` and `path` are handed over where the constructor takes them, and with a model
    for the role `solver` also `solver="llm"`, unless the options say otherwise. Raises
    `ConfigError` for an unknown name or option, `DomainError` for a domain that cannot be made.
    """
    from leadscrew.domains import BUILTIN

    section = config.domain
    maker = _find(section.name, BUILTIN, "domain.name", "a domain")
    arguments = _fitting(maker, dict(section.options), "domain.options")
    offered = {"seed": config.run.seed, "path": section.path, "solver": "llm" if "solver" in config.models else ""}
    taken = inspect.signature(maker).parameters
    arguments.update({k: v for k, v in offered.items() if k in taken and v != "" and k not in arguments})
    if "path" in taken and taken["path"].default is inspect.Parameter.empty and "path" not in arguments:
        raise ConfigError(
            f"domain.path is missing: the domain {section.name!r} reads its data from a folder.", key="domain.path"
        )
    _complete(maker, arguments, "domain.options")
    domain = maker(**arguments)
    if not isinstance(domain, Domain):
        raise DomainError(
            f"domain.name = {section.name!r} made a {type(domain).__name__}; write a subclass of leadscrew.Domain."
        )
    return domain


def load_method(config: Config) -> Method:
    """Return the method of `[run] method`, its settings from the preset and its own table; raises `ConfigError`."""
    target = METHODS.get(config.run.method)
    if target is None:
        raise _unknown("run.method", config.run.method, METHODS, "a method")
    module = importlib.import_module(target.partition(":")[0])
    maker = getattr(module, target.partition(":")[2])
    settings_class = getattr(module, maker.__name__ + "Settings")
    preset: Mapping[str, Any] = module.PRESETS.get(config.run.preset, {})
    settings = build_settings(settings_class, {**preset, **config.method_options}, config.run.method)
    method: Method = maker(settings, proposer=operator_of(config))
    return method


def operator_of(config: Config) -> str:
    """Return the name by which plans ask for the configured proposer: one of the user's own goes by its class or factory, so
    that no path of a machine is part of a run."""
    file, colon, attribute = config.proposer.name.rpartition(":")
    return attribute if colon and file.endswith(".py") else config.proposer.name


def load_proposer(config: Config) -> Proposer:
    """Return the proposer of `[proposer]`: a built-in one, or `file.py:ClassOrFactory`; raises `ConfigError`."""
    section = config.proposer
    maker = _find(section.name, PROPOSERS, "proposer.name", "a proposer")
    options = _fitting(maker, dict(section.options), "proposer.options")
    taken = inspect.signature(maker).parameters
    role = str(options.get("role", taken["role"].default if "role" in taken else ""))
    if getattr(maker, "needs_model", False) and role not in config.models:
        raise ConfigError(
            f"proposer.name = {section.name!r} asks a model of the role {role!r}, but there is none. "
            f'Write [models.{role}] with model = "provider/name".',
            key=f"models.{role}",
        )
    if "model" in taken and "model" not in options and role in config.models:
        options["model"] = config.models[role].model
    _complete(maker, options, "proposer.options")
    proposer: Proposer = maker(**options)
    return proposer


def _find(name: str, known: Mapping[str, str], key: str, what: str) -> Any:
    if name in known:
        module, _, attribute = known[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise _unknown(key, name, known, what)
    return _from_file(Path(file), attribute, key)


def _from_file(path: Path, attribute: str, key: str) -> Any:
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {str(path)!r}.", key=key, value=str(path))
    name = f"leadscrew_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DomainError(f"{path.name} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    found = getattr(module, attribute, None)
    if not callable(found):
        raise ConfigError(
            f"{key}: {path.name} has no class or function {attribute!r}."
            + nearest(attribute, [n for n in vars(module) if not n.startswith("_")]),
            key=key,
            value=attribute,
        )
    return found


def _fitting(maker: Any, options: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the options if the constructor takes all of them, else say which it does not."""
    parameters = inspect.signature(maker).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return options
    allowed = [name for name, p in parameters.items() if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    for key, value in options.items():
        if key not in allowed:
            near = nearest(key, allowed) or f" The options are {', '.join(allowed) or 'none'}."
            raise ConfigError(f"{prefix}.{key} = {value!r}: there is no such option.{near}", key=f"{prefix}.{key}")
    return options


def _complete(maker: Any, options: Mapping[str, Any], prefix: str) -> None:
    """Raise `ConfigError` for an option that must be given."""
    for name, parameter in inspect.signature(maker).parameters.items():
        variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if not variadic and parameter.default is inspect.Parameter.empty and name not in options:
            raise ConfigError(f"{prefix}.{name} is missing; it has no default.", key=f"{prefix}.{name}")


def _unknown(key: str, name: str, known: Mapping[str, str], what: str) -> ConfigError:
    hint = nearest(name, list(known))
    return ConfigError(
        f"{key} = {name!r} names {what} that is not known.{hint} Known are {', '.join(sorted(known))}; "
        "your own is written as 'file.py:Name'.",
        key=key,
        value=name,
    )
