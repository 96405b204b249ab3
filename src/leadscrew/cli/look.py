"""Commands that look at a run without touching it: status, show, tree, diff, trace, why, frontier."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from leadscrew.cli.output import money, number, print_diff, print_fields, print_json, print_table
from leadscrew.report import views


def status(args: argparse.Namespace) -> int:
    """How a run stands."""
    found = views.status(args.run)
    if args.json:
        print_json(found)
        return 0
    spend, caps = found["spend"], found["caps"]
    used = [f"{spend.get('trials', 0)}{_of(caps, 'trials')} trials", f"{found['seconds']:.0f}{_of(caps, 'seconds')} s"]
    asked = _models(found)
    print_fields(
        [
            ("run", found["folder"]),
            ("state", found["state"]),
            ("what", f"{found['method']} with {found['proposer']} on {found['domain']}, seed {found['seed']}"),
            ("plans", f"{found['plans']['judged']} judged of {found['plans']['decided']} decided"),
            ("candidates", f"{found['candidates']} ({_counts(found['kinds'])})"),
            ("champion", _headline(found["champion"])),
            ("best at the start", _headline(found["baseline"])),
            ("frontier", ", ".join(found["frontier"])),
            ("held", ", ".join(found["held"])),
            ("open benches", "\n".join(found["benches"])),
            ("spent", ", ".join(used)),
            *asked,
            ("notes", "\n".join(found["notes"])),
            ("last failure of ours", found["infra"]),
            ("certificate", found["certificate"]),
        ]
    )
    return 0


def show(args: argparse.Namespace) -> int:
    """One candidate, or one file of it."""
    if args.file:
        text = views.file(args.run, args.candidate, args.file)
        print_json({"file": args.file, "text": text}) if args.json else print(text, end="")
        return 0
    found = views.show(args.run, args.candidate)
    if args.json:
        print_json(found)
        return 0
    verdict = found["verdict"] or {}
    print_fields(
        [
            ("candidate", _name(found)),
            ("status", f"{found['status']} ({found['outcome']})"),
            ("reason", found["reason"]),
            *((split, _headline(e)) for split, e in found["evaluations"].items()),
            ("failures", _counts(found["evaluations"].get("val", {}).get("failures", {}))),
            ("mean costs on val", _costs(found["evaluations"].get("val", {}))),
            ("verdict", f"{verdict['klass']}: {verdict['reason']}" if verdict else ""),
            ("claim", _claim(found["claim"])),
            ("made from", "\n".join(f"{e['kind']} {e['source']}" for e in found["edges"])),
            ("children", found["children"]),
            ("files", "\n".join(f"{path} ({size} bytes)" for path, size in found["files"].items())),
            ("program", found["program"][:16]),
            ("log", found["log"]),
        ]
    )
    return 0


def tree(args: argparse.Namespace) -> int:
    """The lineage."""
    rows = views.tree(args.run)
    if args.json:
        print_json(rows)
        return 0
    for row in rows:
        mark = " *" if row["is_champion"] else ""
        note = row["class"] or row["status"]
        value = number(row["value"]) if row["value"] is not None else row["outcome"]
        print(f"{'  ' * row['depth']}{row['id']}  {value}  {note}{mark}  {row['name']}".rstrip())
    return 0


def diff(args: argparse.Namespace) -> int:
    """A unified diff of two candidates."""
    text = views.diff(args.run, args.old, args.new)
    print_json({"diff": text}) if args.json else print_diff(text)
    return 0


def trace(args: argparse.Namespace) -> int:
    """A candidate's trials, or what was kept of one."""
    if not args.instance:
        rows = views.trials(args.run, args.candidate)
        if args.json:
            print_json(rows)
        else:
            heads = ("split", "instance", "repeat", "purpose", "outcome", "score", "message")
            print_table(heads, [[row[head] for head in heads] for row in rows])
        return 0
    found = views.trace(args.run, args.candidate, args.instance)
    if args.json:
        print_json(found)
        return 0
    for trial in found["trials"]:
        kept = trial["trace"] or {}
        print_fields(
            [
                ("trial", f"{found['candidate']} on {trial['instance']} ({trial['split']}, {trial['purpose']})"),
                ("outcome", trial["outcome"]),
                ("score", number(trial["score"])),
                ("message", trial["message"]),
                *((key, _short(value)) for key, value in trial["detail"].items()),
                ("answer", _short(kept.get("answer")) if kept.get("answer") is not None else ""),
                ("output", kept.get("stdout", "")),
                ("errors", kept.get("stderr", "")),
                ("calls", "\n".join(_short(call) for call in kept.get("calls", ()))),
                ("model calls, whoever paid", _logical(trial["spend"])),
                ("files", "\n".join(kept.get("files", {}))),
                ("used", ", ".join(f"{k} {v}" for k, v in trial["spend"].items() if k not in _OF_MODELS)),
            ]
        )
    return 0


def why(args: argparse.Namespace) -> int:
    """How a candidate came about and why it was kept or not."""
    found = views.why(args.run, args.candidate)
    if args.json:
        print_json(found)
        return 0
    plan, change, verdict = found["plan"], found["change"], found["verdict"]
    standing = "champion now" if found["still_champion"] else "champion once" if found["champion"] else ""
    facts = verdict["facts"] if verdict else {}
    print_fields(
        [
            ("candidate", _name(found)),
            (
                "came about",
                f"plan {plan['number']}, {plan['operator']}, decided on {plan['decided_after']} judged plans",
            ),
            ("handed in", "by a person or another program" if plan["origin"] == "inbox" else ""),
            ("base", _row(found["base"])),
            ("other links", "\n".join(f"{e['kind']} {_row(e)}" for e in found["links"] if e["kind"] != "base")),
            ("claim", _claim(found["claim"])),
            (
                "change",
                f"+{change['added']} -{change['removed']} lines in {', '.join(change['files'])}" if change else "",
            ),
            ("val", _headline(found["evaluations"]["val"]) if "val" in found["evaluations"] else ""),
            ("mean costs on val", _costs(found["evaluations"].get("val", {}))),
            ("gain over base", f"{found['gain_over_base']:+.4f}" if found["gain_over_base"] is not None else ""),
            ("outcome", found["outcome"] if found["outcome"] != "ok" else ""),
            ("failure", found["failure"]),
            ("verdict", f"{verdict['class']}: {verdict['reason']}" if verdict else "not judged yet"),
            ("numbers", "\n".join(f"{key} {_short(value)}" for key, value in facts.items())),
            ("standing", ", ".join(s for s in (standing, "on the frontier" if found["on_frontier"] else "") if s)),
            ("ancestry", "\n".join(_row(row) for row in found["ancestry"])),
        ]
    )
    return 0


def frontier(args: argparse.Namespace) -> int:
    """The Pareto set."""
    found = views.frontier(args.run)
    if args.json:
        print_json(found)
        return 0
    others = [o["name"] for o in found["objectives"][1:]]
    heads = ["candidate", found["objectives"][0]["name"], *others, "class", "name"]
    rows = [
        [m["id"], m["value"], *(m["costs"].get(name) for name in others), m["class"], m["name"]]
        for m in found["members"]
    ]
    print_table(heads, rows)
    bests = found["dataset_bests"]
    if len(bests) > 1:
        print()
        print_table(["data set", "best", "value"], [[k, b["candidate"], b["value"]] for k, b in bests.items()])
    return 0


# -- words ---------------------------------------------------------------------------------------

_OF_MODELS = ("calls", "tokens_in", "tokens_out", "micro_usd")


def _models(found: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What the model calls of a run have cost: in sum against the caps, and by role."""
    models = found["models"]
    if not models["by_role"] and not models["final"]["calls"]:
        return []
    whole = _against(models["search"], found["caps"])
    last = _against(models["final"], models["caps_of_final"]) if models["final"]["calls"] else ""
    roles = []
    for role, used in models["by_role"].items():
        held = models["caps_by_role"].get(role, {})
        own = f" of ${held['usd']:g}" if "usd" in held else ""
        roles.append(
            f"{role}: {used['calls']}{_of(held, 'calls')} calls, {used['tokens_in'] + used['tokens_out']}"
            f"{_of(held, 'tokens')} tokens ({used['tokens_in']} in, {used['tokens_out']} out), "
            f"{money(used['micro_usd'])}{own}"
        )
    under_way = "under way" if found["state"] == "running" else "without a reply, counted at their bound"
    open_calls = [f"{models['unanswered']} {under_way}"] if models["unanswered"] else []
    if models["uncertain"]:
        open_calls.append(f"{models['uncertain']} attempts may be billed without an answer, counted at their bound")
    return [
        ("models", whole),
        ("by role", "\n".join(roles)),
        ("final test", last),
        ("open calls", "; ".join(open_calls)),
    ]


def _against(used: Mapping[str, Any], caps: Mapping[str, Any]) -> str:
    tokens = used["tokens_in"] + used["tokens_out"]
    paid = money(used["micro_usd"]).replace("unknown", "cost unknown (a model without a known price)")
    cap = f" of ${caps['usd']:g}" if "usd" in caps else ""
    return f"{used['calls']}{_of(caps, 'calls')} calls, {tokens}{_of(caps, 'tokens')} tokens, {paid}{cap}"


def _costs(evaluation: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in evaluation.get("costs", {}).items())


def _logical(spend: Mapping[str, Any]) -> str:
    if not spend.get("calls"):
        return ""
    text = f"{spend['calls']} calls, {spend.get('tokens_in', 0)} tokens in, {spend.get('tokens_out', 0)} out"
    return f"{text}, worth {money(spend.get('micro_usd', 0))}"


def _of(caps: Mapping[str, Any], name: str) -> str:
    return f" of {caps[name]:.10g}" if name in caps else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['id']} {row['name']}".strip()


def _row(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    value = number(row["value"]) if row["value"] is not None else row["outcome"]
    return f"{row['id']} ({value}) {row['name']}".strip()


def _headline(e: Mapping[str, Any] | None) -> str:
    if not e or e.get("value") is None:
        return "" if not e else f"{e.get('id', '')} incomplete".strip()
    text = f"{e['id']} {e['name']}: ".replace(" :", ":") if "id" in e else ""
    text += number(e["value"])
    if e.get("low") is not None:
        text += f" (95 % interval {e['low']:.4f} to {e['high']:.4f}, {e['instances']} instances)"
    if not e.get("full", True):
        text += f", rung {e['rung']} only"
    return text


def _claim(claim: Mapping[str, Any]) -> str:
    parts = [str(claim.get("hypothesis", "")), f"tags: {', '.join(claim['tags'])}" if claim.get("tags") else ""]
    parts += [f"expected: {claim['expected']}" if claim.get("expected") else ""]
    parts += [f"{key}: {_short(value)}" for key, value in claim.get("extra", {}).items()]
    return "\n".join(part for part in parts if part)


def _short(value: object, limit: int = 400) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[:limit] + f"... ({len(text)} characters)"
