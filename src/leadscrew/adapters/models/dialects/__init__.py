"""The two forms in which models are asked over HTTP: OpenAI chat completions and Anthropic messages. Pure code."""

from __future__ import annotations

from collections.abc import Mapping

from leadscrew.adapters.models.dialects import sse
from leadscrew.adapters.models.dialects.anthropic import ANTHROPIC
from leadscrew.adapters.models.dialects.form import BadRequest, Dialect, Gatherer
from leadscrew.adapters.models.dialects.openai import OPENAI
from leadscrew.adapters.models.dialects.translate import translate_reply, translate_request

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (OPENAI, ANTHROPIC)}
"""Both dialects by name."""

__all__ = [
    "ANTHROPIC",
    "DIALECTS",
    "OPENAI",
    "BadRequest",
    "Dialect",
    "Gatherer",
    "sse",
    "translate_reply",
    "translate_request",
]
