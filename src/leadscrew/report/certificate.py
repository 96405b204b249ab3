"""The certificate as text that a person can read, and believe or doubt for stated reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leadscrew.core.canonical import digest_of
from leadscrew.errors import TamperedError
from leadscrew.ports import Store


def certificate_text(certificate: Mapping[str, Any]) -> str:
    """Return the readable form of `certificate.json`; nothing is in it that the JSON does not say.

    Keys that the JSON leaves out are left out here too.
    """
    test, champion = certificate["test"], certificate["champion"]
    objective = certificate.get("objective", {})
    lines = [
        "CERTIFICATE",
        "",
        f"{str(certificate['verdict'])[:1].upper()}{str(certificate['verdict'])[1:]}.",
        "",
    ]
    percent = f"{100 * test.get('interval_level', 0.95):.0f} % interval"
    fields: list[tuple[str, str]] = [
        ("improved", "yes" if certificate["improved"] else "no"),
        (
            "champion",
            f"{champion['id']} {champion.get('name', '')}".strip() + f", fixed on val at {_n(champion['val'])}",
        ),
        ("its claim", str(champion.get("hypothesis", ""))),
        ("objective", _objective(objective)),
        ("test: champion", f"{_n(test['best'])}{_spread(test.get('best_interval'))}"),
        ("test: best baseline", f"{_n(test['baseline'])}, {test.get('baseline_name') or test.get('baseline_id', '')}"),
        ("test: no-model baseline", _no_model(test)),
        ("model calls", _model_calls(test)),
        ("test: difference", f"{_n(test['difference'], sign=True)}{_spread(test.get('interval'), percent)}"),
        ("p-value", f"{_p(test['p_value'])}, {test.get('p_test', 'paired')}, {test.get('instances', '?')} instances"),
        ("competed", _competed(certificate)),
        ("val seen by proposers", "yes, with answers" if certificate["val_visible"] else "no"),
        ("test split", f"opened {_times(certificate['openings'])}, digest {str(test.get('digest', ''))[:16]}"),
        ("recheck in fresh boxes", _recheck(certificate.get("recheck", {}))),
        ("noise of a repeated trial", _noise(certificate.get("noise"))),
        ("sandbox", _sandbox(certificate["sandbox"])),
        (
            "tamper-exposed",
            "yes: a scorer trusts numbers made beside candidate code" if certificate.get("tamper_exposed") else "",
        ),
        ("spent", _spend(certificate["spend"])),
        ("caps", _pairs(certificate.get("caps", {}))),
        ("chain head", str(certificate["chain_head"])),
    ]
    known = {
        "version",
        "improved",
        "verdict",
        "champion",
        "objective",
        "test",
        "val_visible",
        "candidates",
        "evaluated",
        "openings",
        "recheck",
        "noise",
        "spend",
        "caps",
        "tamper_exposed",
        "sandbox",
        "chain_head",
    }
    fields += [(key.replace("_", " "), _flat(value)) for key, value in certificate.items() if key not in known]
    lines += _columns(fields)
    rows = test.get("rows", ())
    if rows:
        lines += ["", "Everything that was tested:", "", *_table(rows)]
    return "\n".join(lines)


def _no_model(test: Mapping[str, Any]) -> str:
    if "no_model_baseline" not in test:
        return ""
    free = test["no_model_baseline"]
    if free is None:
        return "none: every founding program asks the model"
    return (
        f"{_n(free['value'])}, {free['name'] or free['id']}; the champion's difference to it is "
        f"{_n(free['difference'], sign=True)} (p {_p(free['p_value'])})"
    )


def _model_calls(test: Mapping[str, Any]) -> str:
    calls = test.get("model_calls_per_prediction")
    if calls is None:
        return ""
    return f"{calls:.3g} per prediction of the champion" + (": it never asks the model" if not calls else "")


def _columns(fields: Sequence[tuple[str, str]]) -> list[str]:
    shown = [(name, text) for name, text in fields if text]
    width = max(len(name) for name, _ in shown)
    out = []
    for name, text in shown:
        first, *rest = text.splitlines()
        out.append(f"{name:<{width}}  {first}")
        out += [f"{'':<{width}}  {line}" for line in rest]
    return out


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    calls = any("model_calls" in row.get("costs", {}) for row in rows)
    heads = ["", "val", "test", "interval", *(["calls"] if calls else []), "failures", ""]
    texts = [
        [
            str(row["id"]),
            _n(row.get("val")),
            _n(row.get("test")),
            _spread(row.get("interval"), "").strip(" ()"),
            *([f"{row.get('costs', {}).get('model_calls', 0.0):.3g}"] if calls else []),
            _pairs(row.get("failures", {})),
            f"{row.get('name', '')}{' (baseline)' if row.get('baseline') else ''}".strip(),
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [heads, *texts]) for i in range(len(heads))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in [heads, *texts]]


def _n(value: Any, *, sign: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.4f}" if sign else f"{value:.4f}"


def _p(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if value >= 0.0001 else f"{value:.1e}"


def _spread(bounds: Any, label: str = "95 % interval") -> str:
    if not bounds or any(b is None for b in bounds):
        return ""
    return f" ({label} {bounds[0]:.4f} to {bounds[1]:.4f})".replace("( ", "(")


def _objective(objective: Mapping[str, Any]) -> str:
    if not objective:
        return ""
    unit = f" in {objective['unit']}" if objective.get("unit") else ""
    better = "more" if objective.get("direction", "max") == "max" else "less"
    return (
        f"{objective.get('name', 'score')}{unit}, {better} is better, a failed trial counts as {objective.get('floor')}"
    )


def _competed(certificate: Mapping[str, Any]) -> str:
    text = f"{certificate['candidates']} candidates"
    if "evaluated" in certificate:
        text += f", {certificate['evaluated']} of them evaluated"
    return text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in all: the more often, the less its numbers can be believed"


def _noise(noise: Mapping[str, Any] | None) -> str:
    if noise is None:
        return ""
    return f"standard deviation {_n(noise['within_sd'])}, from {noise['degrees']} repeats"


def _recheck(recheck: Mapping[str, Any]) -> str:
    if not recheck:
        return ""
    if not recheck.get("checked"):
        return f"none ({recheck.get('why_none', '')})" if recheck.get("why_none") else "none"
    wrong = recheck.get("mismatches", ())
    return f"{recheck['checked']} answers, " + (f"{len(wrong)} came out differently" if wrong else "all the same")


def _sandbox(sandbox: Any) -> str:
    if not isinstance(sandbox, Mapping):
        return str(sandbox)
    text = f"{sandbox.get('name', '?')} {sandbox.get('version', '')}".strip()
    if not sandbox.get("isolated", True):
        text += ", NOT ISOLATED: programs ran with the rights of the engine"
    lines = [text, *(f"{key}: {value}" for key, value in sandbox.get("limits", {}).items())]
    return "\n".join([*lines, *(f"warning: {w}" for w in sandbox.get("warnings", ()))])


def _spend(spend: Mapping[str, Any]) -> str:
    parts = []
    for key, value in spend.items():
        if key == "micro_usd":
            if value is None:
                parts.append("money unknown")
            elif value:
                parts.append(f"{value / 1e6:.4f} USD")
        elif key in ("cpu_ms", "wall_ms"):
            parts.append(f"{value / 1000:.1f} s of {'processor' if key == 'cpu_ms' else 'wall'} time in boxes")
        elif value:
            parts.append(f"{value:g} {key.replace('_', ' ')}" if isinstance(value, (int, float)) else f"{value} {key}")
    return ", ".join(parts)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{value:g} {key}" if isinstance(value, (int, float)) else f"{key} {value}" for key, value in values.items()
    )


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_flat(item)}" for key, item in value.items() if item not in (None, "", {}, []))
    if isinstance(value, (list, tuple)):
        return ", ".join(_flat(item) for item in value)
    return "" if value is None else str(value)


def check_certificate(certificate: Mapping[str, Any], store: Store) -> None:
    """Raise `TamperedError` if `certificate` is not the one that the run closed with.

    The run recorded the digest of everything in it but the chain head, which is the link of that very record.
    """
    said = {key: value for key, value in certificate.items() if key != "chain_head"}
    closing = [str(data.get("certificate", "")) for _, _, data in store.events("closed")]
    if not closing:
        raise TamperedError("there is a certificate.json, but the run was never closed.", record="certificate.json")
    if digest_of(said) != closing[-1]:
        raise TamperedError("certificate.json is not what the run was closed with.", record="certificate.json")
    last = [kind for _, kind, _ in store.events()][-1]
    if last == "closed" and certificate.get("chain_head") != store.chain_head():
        raise TamperedError("certificate.json names another chain head than the run has.", record="certificate.json")
