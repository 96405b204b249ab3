"""A question to a candidate: its code runs in a box, its reply is checked against a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leadscrew.core.canonical import json_fault
from leadscrew.core.program import Program
from leadscrew.core.proposal import Ask
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError
from leadscrew.ports import BoxTrial, Domain, Executor, Job


async def ask(plan: Ask, program: Program, executor: Executor, domain: Domain) -> tuple[Mapping[str, Any] | None, str]:
    """Return the reply and an empty note, or None and why there is no usable reply.

    The entry file offers `solve(question)`. Raises `InfrastructureError` if the box fails.
    """
    job = Job(
        program=program,
        interface=replace(domain.interface, operation="solve", entry=plan.entry, command=()),
        limits=domain.limits,
        trials=(BoxTrial("ask", dict(plan.question)),),
        environment=domain.environment,
        masks=tuple(domain.masks()),
        purpose="ask",
    )
    replies = [reply async for reply in executor.run(job)]
    reply = replies[0]
    if reply.outcome is Outcome.INFRA:
        raise InfrastructureError(f"the question to {plan.candidate} could not be asked: {reply.message}")
    if reply.outcome is not Outcome.OK:
        return None, f"{reply.outcome}: {reply.message}"
    fault = json_fault(reply.answer.value) or _schema_fault(reply.answer.value, plan.schema)
    if fault is not None:
        return None, f"the reply does not fit the schema: {fault}"
    return reply.answer.value, ""


def _schema_fault(value: Any, schema: Mapping[str, Any]) -> str | None:
    import fastjsonschema

    try:
        fastjsonschema.validate(dict(schema), value)
    except fastjsonschema.JsonSchemaValueException as error:
        return str(error.message)
    return None
