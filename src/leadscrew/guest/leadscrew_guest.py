"""What a program may import inside a box: `log` for its model calls, `llm` to make one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_sink: Callable[[dict[str, Any]], None] | None = None


def log(prompt: object = None, response: object = None, **more: object) -> None:
    """Put one model call (or anything worth reading later) into the trace of the trial.

    Long texts are cut to the domain's output limit; values that JSON cannot hold are stored as their `repr`.
    """
    call: dict[str, Any] = dict(more)
    if prompt is not None:
        call["prompt"] = prompt
    if response is not None:
        call["response"] = response
    if _sink is not None:
        _sink(call)


def llm(prompt: str) -> str:
    """Ask the model of this run. Raises `RuntimeError` where the run gives programs no model."""
    raise RuntimeError(
        "this program asks a model, but the run gives programs none: there is no gateway socket in this box. "
        "Solve the task without llm(), or configure a model for the role 'task'."
    )
