"""The configuration of a run: a TOML file in, frozen typed settings out, and one clear error for anything else.

Paths in a file are relative to the file's folder and become absolute here, so a `Config` means the same everywhere.
Every key is described in `docs/configuration.md`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leadscrew.config.checks import as_table, build_settings, nearest, unknown
from leadscrew.config.sections import (
    BudgetSection,
    Config,
    DomainSection,
    EvaluationSection,
    ModelSection,
    ProgramSection,
    ProposerSection,
    ProviderSection,
    RegionSection,
    RunSection,
    SandboxSection,
)
from leadscrew.config.toml import dump_toml, toml_value
from leadscrew.core.task import Limits
from leadscrew.errors import ConfigError

__all__ = [
    "BudgetSection",
    "Config",
    "DomainSection",
    "EvaluationSection",
    "ProgramSection",
    "ProposerSection",
    "RegionSection",
    "RunSection",
    "SandboxSection",
    "build_settings",
    "changed",
    "check_paths",
    "config_file",
    "config_from",
    "dump_toml",
    "load_config",
    "to_dict",
    "to_toml",
]

FILE_NAME = "leadscrew.toml"

_SECTIONS: dict[str, type[Any]] = {
    "run": RunSection,
    "domain": DomainSection,
    "program": ProgramSection,
    "proposer": ProposerSection,
    "evaluation": EvaluationSection,
    "budget": BudgetSection,
    "sandbox": SandboxSection,
}

# -- reading -------------------------------------------------------------------------------------


def config_file(path: str | Path) -> Path:
    """Return the TOML file meant by `path`: itself, or the `leadscrew.toml` or `config.toml` in that folder."""
    given = Path(path)
    if not given.is_dir():
        return given
    for name in (FILE_NAME, "config.toml"):
        if (given / name).is_file():
            return given / name
    raise ConfigError(
        f"the folder {str(given)!r} holds no {FILE_NAME}: nothing says what to run. "
        f"Name a TOML file, or let `leadscrew init {given.name or 'mytask'}` write one.",
        value=str(given),
    )


def load_config(path: str | Path) -> Config:
    """Read and check a TOML file, or the one in a folder. Raises `ConfigError` naming the first key that is wrong."""
    import tomllib

    file = config_file(path)
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        near = nearest(file.name, [p.name for p in file.parent.glob("*.toml")] if file.parent.is_dir() else [])
        raise ConfigError(f"there is no configuration {str(file)!r}.{near}", value=str(file)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {str(file)!r} cannot be read: {error}.", value=str(file)) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{str(file)!r} is no valid TOML: {error}.", value=str(file)) from None
    folder = file.resolve().parent
    return config_from(data, folder, name=folder.name if file.name == FILE_NAME else file.stem)


def config_from(data: Mapping[str, Any], base_folder: str | Path = ".", *, name: str = "") -> Config:
    """Check a table of settings; relative paths start at `base_folder`. Raises `ConfigError`.

    >>> config_from({"domain": {"name": "docstrings"}, "run": {"seed": 7}}).run.seed
    7
    >>> config_from({"domain": {"name": "docstrings"}, "run": {"sede": 7}})
    Traceback (most recent call last):
    leadscrew.errors.ConfigError: run.sede = 7: there is no such key. Did you mean run.seed?
    """
    base = Path(base_folder).resolve()
    name = name or base.name or "run"
    run = _section(data, "run")
    method = run.method
    known = (*_SECTIONS, "limits", "models", "providers", method)
    for key in data:
        if key not in known:
            raise unknown("", key, data[key], known)
    parts: dict[str, Any] = {key: _section(data, key) for key in _SECTIONS}
    options = as_table(data.get(method, {}), method)
    limits = _limits(as_table(data.get("limits", {}), "limits"))
    domain = parts["domain"]
    if not domain.name:
        raise ConfigError(
            "domain.name is missing: without a domain there is nothing to be good at. Write a built-in name such as "
            '"folder" or "docstrings", or "file.py:Class".',
            key="domain.name",
        )
    _check_ladder(parts["evaluation"].ladder)
    for role, _ in _named(data, "models"):
        _check_role_name(role)
    parts["models"] = {role: _model(table, f"models.{role}", base) for role, table in _named(data, "models")}
    parts["providers"] = {
        name: build_settings(ProviderSection, as_table(table, f"providers.{name}"), f"providers.{name}")
        for name, table in _named(data, "providers")
    }
    replay = _absolute(run.replay, base)
    parts["run"] = dataclasses.replace(run, out=_absolute(run.out or f"runs/{name}", base), replay=replay)
    parts["domain"] = dataclasses.replace(
        domain, name=_absolute_plugin(domain.name, base), path=_absolute(domain.path, base)
    )
    parts["proposer"] = dataclasses.replace(parts["proposer"], name=_absolute_plugin(parts["proposer"].name, base))
    parts["program"] = dataclasses.replace(parts["program"], path=_absolute(parts["program"].path, base))
    return Config(name, method_options=options, limits=limits, **parts)


def check_paths(config: Config) -> None:
    """Raise `ConfigError` if a path that a new run must read is not there. A resumed run does not need them."""
    wanted = {"program.path": config.program.path, "domain.path": config.domain.path}
    for key, section in (("domain.name", config.domain), ("proposer.name", config.proposer)):
        wanted[key] = section.name.rpartition(":")[0] if ".py:" in section.name else ""
    for key, path in wanted.items():
        if path and not Path(path).exists():
            near = nearest(Path(path).name, _names(Path(path).parent))
            raise ConfigError(
                f"{key} = {path!r}: there is no such file or folder.{near} "
                "Paths are relative to the configuration file.",
                key=key,
                value=path,
            )
    program = Path(config.program.path) if config.program.path else None
    if program is not None and program.is_dir() and not any(p.is_file() for p in program.rglob("*")):
        raise ConfigError(
            f"program.path = {str(program)!r}: the folder holds no file, so there is nothing to improve.",
            key="program.path",
            value=str(program),
        )


# -- changing and writing ------------------------------------------------------------------------


def changed(config: Config, overrides: Mapping[str, Any]) -> Config:
    """Return the configuration with dotted keys set anew. Text values are read as TOML where they are valid TOML.

    >>> changed(config_from({"domain": {"name": "docstrings"}}), {"run.seed": "9"}).run.seed
    9
    """
    data = to_dict(config)
    for key, value in overrides.items():
        parts = key.split(".")
        if not all(parts):
            raise ConfigError(f"{key!r} is no dotted key. Write for example run.seed=7.", key=key, value=value)
        table = data
        for part in parts[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{key!r}: {part!r} is a value and holds no further keys.", key=key, value=value)
        table[parts[-1]] = toml_value(value) if isinstance(value, str) else value
    return config_from(data, Path.cwd(), name=config.name)


def to_dict(config: Config) -> dict[str, Any]:
    """Return the whole configuration, defaults included, as the table that `config_from` reads back."""
    out: dict[str, Any] = {key: _plain(getattr(config, key)) for key in _SECTIONS}
    if config.method_options:
        out[config.run.method] = _plain(config.method_options)
    for key in ("limits", "models", "providers"):
        if getattr(config, key):
            out[key] = _plain(getattr(config, key))
    return out


def to_toml(config: Config) -> str:
    """Return the whole configuration as TOML with absolute paths: the copy that a run keeps."""
    return dump_toml(to_dict(config))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


# -- details -------------------------------------------------------------------------------------


def _section(data: Mapping[str, Any], key: str) -> Any:
    return build_settings(_SECTIONS[key], as_table(data.get(key, {}), key), key)


PINNED_APART: Mapping[str, str] = {
    "model": "Write it as the model of the role.",
    "temperature": "Write it as the temperature of the role.",
    "max_tokens": "Write it as max_tokens of the role.",
    "max_completion_tokens": "Write it as max_tokens of the role.",
    **dict.fromkeys(("messages", "system", "tools", "tool_choice", "labels"), "It is the caller's."),
    **dict.fromkeys(("stream", "stream_options", "n"), "The gateway decides it."),
}
"""Fields of a request that `extra` cannot hold, and what to do instead."""
ROLES = ("solver", "proposer", "judge", "meta")


def _check_role_name(role: str) -> None:
    """A method may ask roles of its own names; one that is nearly a known name is a slip."""
    near = nearest(role, ROLES)
    if role not in ROLES and near:
        raise ConfigError(f"[models.{role}]: nobody asks a role of this name.{near}", key=f"models.{role}")


def _named(data: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    return list(as_table(data.get(key, {}), key).items())


def _model(table: Any, key: str, base: Path) -> ModelSection:
    """One role's model. A plain text stands for a table with nothing but the model in it."""
    section: ModelSection = build_settings(ModelSection, {"model": table} if isinstance(table, str) else table, key)
    provider, slash, name = section.model.partition("/")
    if not provider or not slash or not name:
        raise ConfigError(
            f"{key}.model = {section.model!r}: a model is written as provider/name, "
            'for example "openai/gpt-5-mini" or "local/smollm2".',
            key=f"{key}.model",
            value=section.model,
        )
    for name in section.extra:
        if name in PINNED_APART:
            raise ConfigError(
                f"{key}.extra.{name}: this field is not free to be pinned here. {PINNED_APART[name]}",
                key=f"{key}.extra.{name}",
                value=section.extra[name],
            )
    if (section.input_price is None) != (section.output_price is None):
        raise ConfigError(
            f"{key} has one price of two: write both input_price and output_price, in US dollars per million tokens.",
            key=f"{key}.input_price",
        )
    if provider == "scripted":
        file, colon, attribute = name.rpartition(":")
        path = _absolute(file if colon else name, base)
        section = dataclasses.replace(section, model=f"scripted/{path}{colon}{attribute if colon else ''}")
    return section


def _limits(table: Mapping[str, Any]) -> dict[str, Any]:
    checked = build_settings(Limits, table, "limits")
    for key in table:
        if not getattr(checked, key) > 0:
            raise ConfigError(f"limits.{key} = {table[key]!r}: it must be more than 0.", key=f"limits.{key}")
    return {key: getattr(checked, key) for key in table}


def _check_ladder(ladder: tuple[int, ...]) -> None:
    if list(ladder) != sorted(set(ladder)):
        raise ConfigError(
            f"evaluation.ladder = {list(ladder)}: each rung must hold more instances than the one before. "
            "Write for example [20, 60].",
            key="evaluation.ladder",
            value=list(ladder),
        )


def _names(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir()] if folder.is_dir() else []


def _absolute(path: str, base: Path) -> str:
    return str((base / Path(path).expanduser()).resolve()) if path else ""


def _absolute_plugin(name: str, base: Path) -> str:
    file, colon, attribute = name.rpartition(":")
    return f"{_absolute(file, base)}:{attribute}" if colon and file.endswith(".py") else name
