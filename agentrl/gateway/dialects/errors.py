"""Refusals in each dialect's own error object."""

from __future__ import annotations

import orjson

from agentrl.gateway.refusal import Refusal

OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def openai_error(refusal: Refusal) -> bytes:
    if refusal.status >= 500:
        kind = "server_error"
    else:
        kind = OPENAI_TYPES.get(refusal.status, "invalid_request_error")
    return orjson.dumps(
        {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}}
    )


def retry_headers(refusal: Refusal) -> dict[str, str]:
    """The OpenAI and Anthropic SDKs retry 409 and 5xx unless they are told not to."""
    if refusal.retry_after is None:
        return {"x-should-retry": "false"}
    return {"retry-after": f"{max(1, round(refusal.retry_after))}"}
