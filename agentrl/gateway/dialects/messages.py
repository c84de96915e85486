"""Anthropic's Messages API (`POST /v1/messages`), its beta fields included; betas named in headers are ignored."""

from __future__ import annotations

from agentrl.gateway.dialects.base import Dialect
from agentrl.gateway.dialects.messages_conversation import conversation
from agentrl.gateway.dialects.messages_request import MessagesRequest, decoded_messages
from agentrl.gateway.dialects.messages_response import encode, error
from agentrl.gateway.dialects.messages_stream import MessagesStream
from agentrl.gateway.request import TurnRequest


def decode(body: bytes) -> tuple[TurnRequest, MessagesRequest]:
    """Raises Refusal (400) naming the field by its path."""
    request = decoded_messages(body)
    sampling = {
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "constraint": request.constraint,
    }
    turn = TurnRequest(
        prompts=[conversation(request)],
        stream=bool(request.stream),
        sampling=sampling,
        num_bytes=len(body),
    )
    return turn, request


MESSAGES: Dialect[MessagesRequest] = Dialect(
    name="messages",
    path="/v1/messages",
    call_prefix="msg_",
    decode=decode,
    encode=encode,
    stream=MessagesStream,
    error=error,
    request_type=MessagesRequest,
)
