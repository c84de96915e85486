"""OpenAI's Responses API (`POST /v1/responses`).

`responses_request` decodes, `responses_items` reads input items, `responses_output` builds the Response object and
`responses_stream` its events.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentrl.gateway.deltas import Answer
from agentrl.gateway.dialects.base import Dialect, Responding
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.dialects.responses_items import RESPONSE_PREFIX
from agentrl.gateway.dialects.responses_output import finished_response, renamed
from agentrl.gateway.dialects.responses_request import Asked, ResponsesRequest, decode
from agentrl.gateway.dialects.responses_stream import ResponsesStream
from agentrl.gateway.refusal import Refusal


def encode(answers: Sequence[Answer], asked: Asked, responding: Responding) -> bytes:
    return msgspec.json.encode(finished_response(answers[0], asked, responding))


def error(refusal: Refusal) -> bytes:
    return openai_error(renamed(refusal))


RESPONSES: Dialect[Asked] = Dialect(
    name="responses",
    path="/v1/responses",
    call_prefix=RESPONSE_PREFIX,
    decode=decode,
    encode=encode,
    stream=ResponsesStream,
    error=error,
    request_type=ResponsesRequest,
)
