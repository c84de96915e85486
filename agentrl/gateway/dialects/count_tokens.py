"""Anthropic's token counting (`POST /v1/messages/count_tokens`): how long the prompt of the same request would be.

Errors are those of `messages`. A conversation that ends with the assistant is counted too.
"""

from __future__ import annotations

import orjson

from agentrl.gateway.dialects.messages_conversation import conversation
from agentrl.gateway.dialects.messages_request import decoded_count
from agentrl.gateway.request import TurnRequest


def decode_count(body: bytes) -> TurnRequest:
    """One prompt, to be rendered and not sampled from. Raises Refusal (400) naming the field."""
    request = decoded_count(body)
    return TurnRequest(prompts=[conversation(request, answered=False)], num_bytes=len(body))


def encode_count(input_tokens: int) -> bytes:
    return orjson.dumps({"input_tokens": input_tokens})
