"""Jobs as JSON, for executors that run them elsewhere."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

from leadscrew.core.budget import Caps
from leadscrew.core.program import File, Program, Region
from leadscrew.core.task import Interface, Limits, ProgramEnvironment
from leadscrew.ports import Access, BoxTrial, Item, Job


def job_to_json(job: Job) -> dict[str, Any]:
    """Return a job as a JSON value; files as base64 text.

    >>> job = Job(Program.of({"main.py": "x = 1"}), Interface("solve"), Limits(), (BoxTrial("a", [1]),))
    >>> job_from_json(job_to_json(job)) == job
    True
    """
    return {
        "program": {
            path: {"data": base64.b64encode(file.data).decode("ascii"), "executable": file.executable}
            for path, file in job.program.items()
        },
        "interface": asdict(job.interface),
        "limits": asdict(job.limits),
        "trials": [asdict(t) for t in job.trials],
        "train": [asdict(i) for i in job.train],
        "environment": asdict(job.environment),
        "masks": list(job.masks),
        "purpose": job.purpose,
        "fresh": job.fresh,
        "access": asdict(job.access) if job.access is not None else None,
    }


def job_from_json(data: dict[str, Any]) -> Job:
    """Read what `job_to_json` wrote; raises `KeyError` or `TypeError` for anything else."""
    interface, environment = dict(data["interface"]), dict(data["environment"])
    region = interface.pop("region")
    interface["region"] = Region(tuple(region["include"]), tuple(region["exclude"]))
    interface["command"] = tuple(interface["command"])
    environment["packages"] = tuple(environment["packages"])
    return Job(
        program=Program(
            {p: File(base64.b64decode(f["data"], validate=True), f["executable"]) for p, f in data["program"].items()}
        ),
        interface=Interface(**interface),
        limits=Limits(**data["limits"]),
        trials=tuple(BoxTrial(**t) for t in data["trials"]),
        train=tuple(Item(**i) for i in data["train"]),
        environment=ProgramEnvironment(**environment),
        masks=tuple(data["masks"]),
        purpose=data["purpose"],
        fresh=data["fresh"],
        access=_access(data["access"]),
    )


def _access(data: dict[str, Any] | None) -> Access | None:
    return None if data is None else Access(**{**data, "allowance": Caps(**data["allowance"])})
