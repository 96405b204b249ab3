"""The check of method records against the schema that the method declares."""

from __future__ import annotations

from collections.abc import Mapping

from leadscrew.core.proposal import Record
from leadscrew.errors import UsageError

RecordKinds = Mapping[str, Mapping[str, str]]
"""Record kind -> field -> type name; a `?` behind the type allows null or a missing field."""

_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "list": (list, tuple),
    "dict": Mapping,
    "any": object,
}


def check_record(record: Record, kinds: RecordKinds) -> None:
    """Raise `UsageError` if the record's kind or one of its fields is not declared, missing or of another type.

    >>> check_record(Record("visit", "3.0", {"times": 2}), {"visit": {"times": "int", "note": "str?"}})
    """
    declared = kinds.get(record.kind)
    if declared is None:
        raise UsageError(
            f"the method wrote a record of kind {record.kind!r}, which it does not declare; it declares "
            f"{', '.join(kinds) or 'none'}. Add the kind and its fields to the method's `record_kinds`."
        )
    for name, kind in declared.items():
        value = record.data.get(name)
        if value is None and kind.endswith("?"):
            continue
        if not _fits(value, kind.rstrip("?")):
            raise UsageError(
                f"the field {name!r} of a {record.kind!r} record must be of type {kind}, got {value!r:.80}. "
                "Write the declared type, or change `record_kinds`."
            )
    for name in record.data:
        if name not in declared:
            raise UsageError(
                f"the field {name!r} of a {record.kind!r} record is not declared; declared are "
                f"{', '.join(declared) or 'none'}. Add it to the method's `record_kinds`."
            )


def _fits(value: object, kind: str) -> bool:
    if kind not in _TYPES:
        raise UsageError(f"{kind!r} is no type of a record field; write one of {', '.join(_TYPES)}.")
    if isinstance(value, bool) and kind in ("int", "float"):
        return False
    return isinstance(value, _TYPES[kind])
