"""The APIs that agents speak to the gateway, one file each."""

from __future__ import annotations

from typing import Any

from agentrl.gateway.dialects.base import Dialect
from agentrl.gateway.dialects.chat import CHAT
from agentrl.gateway.dialects.completions import COMPLETIONS
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.dialects.generate import GENERATE
from agentrl.gateway.dialects.messages import MESSAGES
from agentrl.gateway.dialects.responses import RESPONSES
from agentrl.gateway.refusal import Refusal

ALL: tuple[Dialect[Any], ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE)


def error_of(path: str, refusal: Refusal) -> bytes:
    """A refusal in the words of the dialect that lives at a path; elsewhere in OpenAI's."""
    found = next((dialect for dialect in ALL if dialect.path in path), None)
    return openai_error(refusal) if found is None else found.error(refusal)
