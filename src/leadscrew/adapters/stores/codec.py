"""Nouns to plain values and back: JSON texts, digests, numbers, arrays. Nothing here touches a database."""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from leadscrew.core.program import EVERYTHING, Region
from leadscrew.core.proposal import Ask, Claim, Edge, Edit, Measure, Plan
from leadscrew.core.task import Aggregate
from leadscrew.core.trial import Evaluation, Purpose, Trace
from leadscrew.errors import TamperedError, UsageError

# ASCII output keeps lone surrogates (programs print anything) as escapes, so they come back exactly.
_to_json = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), check_circular=True).encode
_to_sorted_json = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode
_HEX = frozenset("0123456789abcdef")


def dumps(value: Any, *, sort: bool = False) -> str:
    """Return compact ASCII JSON; an empty mapping or list becomes the empty text. NaN and infinities are kept."""
    if value is None or value == {} or value == () or value == []:
        return "" if value is not None else "null"
    try:
        return (_to_sorted_json if sort else _to_json)(value if not isinstance(value, Mapping) else dict(value))
    except TypeError:
        try:
            return (_to_sorted_json if sort else _to_json)(_plain(value))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{value!r:.200} cannot be stored ({error}): only JSON values can. "
                "Write numbers, text, lists and mappings with text keys."
            ) from error


def loads(text: str, empty: Any) -> Any:
    """Read what `dumps` wrote; `empty` is what the empty text stands for."""
    return json.loads(text) if text else empty


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def digest_in(text: str) -> bytes | str:
    """Return 32 bytes for 64 hex digits, anything else as it is."""
    return bytes.fromhex(text) if len(text) == 64 and _HEX.issuperset(text) else text


def digest_out(stored: bytes | str) -> str:
    """Return what `digest_in` was given."""
    return stored if isinstance(stored, str) else stored.hex()


def number_in(value: float | None) -> float | str | None:
    """Return a real that SQLite gives back unchanged; NaN as text, since SQLite would make it NULL."""
    if value is None:
        return None
    value = float(value)
    return value + 0.0 if value == value else "nan"


def number_out(stored: float | str | None) -> float | None:
    """Return what `number_in` was given."""
    return float(stored) if isinstance(stored, str) else stored


def pack(data: bytes) -> bytes:
    """Compress where that saves something; the first byte says whether it did."""
    if len(data) > 96:
        small = zlib.compress(data, 6)
        if len(small) < len(data):
            return b"\1" + small
    return b"\0" + data


def unpack(packed: bytes) -> bytes:
    """Return what `pack` was given; raises `TamperedError` for anything that `pack` cannot have written."""
    if packed[:1] == b"\0":
        return packed[1:]
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(packed[1:])
    except zlib.error as error:
        raise TamperedError(f"compressed content cannot be read ({error})") from error
    if packed[:1] != b"\1" or not inflate.eof or inflate.unused_data:
        raise TamperedError("compressed content has a wrong first byte, is cut short, or has something behind its end")
    return data


def values_in(values: Sequence[float]) -> bytes:
    """Return per-instance values as packed little-endian doubles."""
    numbers = array("d", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return pack(numbers.tobytes())


def values_out(packed: bytes) -> array[float]:
    """Return what `values_in` was given, as an array of doubles."""
    numbers = array("d")
    numbers.frombytes(unpack(packed))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


# -- nouns ---------------------------------------------------------------------------------------


def _given(noun: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, so that rows stay small."""
    return {name: v for name, default in _FIELDS[type(noun)] if (v := getattr(noun, name)) != default}


_DEFAULTS: dict[type, Any] = {
    Edit: Edit(""),
    Measure: Measure((), Purpose.SEARCH),
    Ask: Ask("", {}, "", {}),
    Claim: Claim(),
    Trace: Trace(),
}
_FIELDS = {
    noun: tuple((f.name, getattr(default, f.name)) for f in fields(default)) for noun, default in _DEFAULTS.items()
}
_PLAN_KINDS: dict[str, type[Edit] | type[Measure] | type[Ask]] = {"edit": Edit, "measure": Measure, "ask": Ask}


def plan_kind(plan: Plan) -> str:
    """Return `edit`, `measure` or `ask`."""
    return type(plan).__name__.lower()


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan that differ from their defaults."""
    data = _given(plan)
    if "region" in data:
        data["region"] = [list(data["region"].include), list(data["region"].exclude)]
    return data


def plan_from_json(kind: str, data: Mapping[str, Any]) -> Plan:
    """Read what `plan_to_json` wrote."""
    given = dict(data)
    for name in ("parents", "candidates", "instances", "repeats"):
        if name in given:
            given[name] = tuple(given[name])
    if kind == "edit":
        region = given.pop("region", None)
        return Edit(
            given.pop("operator", ""),
            region=Region(tuple(region[0]), tuple(region[1])) if region else EVERYTHING,
            **given,
        )
    if kind == "measure":
        return Measure(given.pop("candidates", ()), Purpose(given.pop("purpose", "search")), **given)
    return Ask(given.get("candidate", ""), given.get("question", {}), given.get("entry", ""), given.get("schema", {}))


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """Return the fields of a claim that are set."""
    return _given(claim)


def claim_from_json(data: Mapping[str, Any]) -> Claim:
    """Read what `claim_to_json` wrote."""
    given = dict(data)
    return Claim(tags=tuple(given.pop("tags", ())), **given)


def edges_to_json(edges: Sequence[Edge]) -> list[Any]:
    """Return edges as `[kind, source]` or `[kind, source, detail]`."""
    return [[e.kind, e.source, dict(e.detail)] if e.detail else [e.kind, e.source] for e in edges]


def edges_from_json(data: Sequence[Any]) -> tuple[Edge, ...]:
    """Read what `edges_to_json` wrote."""
    return tuple(Edge(e[0], e[1], e[2] if len(e) > 2 else {}) for e in data)


def trace_to_bytes(trace: Trace) -> bytes:
    """Return the canonical bytes of a trace, empty for an empty one. Equal traces have equal bytes."""
    data = _given(trace)
    return dumps(data, sort=True).encode("ascii") if data else b""


def trace_from_bytes(data: bytes) -> Trace:
    """Read what `trace_to_bytes` wrote."""
    given = json.loads(data) if data else {}
    return Trace(calls=tuple(given.pop("calls", ())), **given)


def evaluation_to_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as a mapping, for events, messages and measured results."""
    aggregate = evaluation.aggregate
    return {
        "program": evaluation.program,
        "split": evaluation.split,
        "rung": evaluation.rung,
        "planned": evaluation.planned,
        "instances": list(evaluation.instances),
        "values": list(evaluation.values),
        "aggregate": [aggregate.value, dict(aggregate.costs), dict(aggregate.per_dataset)],
        "failures": dict(evaluation.failures),
        "passed": evaluation.passed,
    }


def evaluation_from_json(data: Mapping[str, Any]) -> Evaluation:
    """Read what `evaluation_to_json` wrote."""
    value, costs, per_dataset = data["aggregate"]
    return Evaluation(
        program=data["program"],
        split=data["split"],
        rung=data["rung"],
        planned=data["planned"],
        instances=tuple(data["instances"]),
        values=array("d", data["values"]),
        aggregate=Aggregate(value, costs, per_dataset),
        failures=data["failures"],
        passed=data["passed"],
    )
