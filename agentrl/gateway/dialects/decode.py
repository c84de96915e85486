"""Strict JSON decoding of request bodies, with errors that name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from agentrl.gateway.refusal import Refusal, invalid

T = TypeVar("T")

UNKNOWN_FIELD = re.compile(r"unknown field `([^`]+)`")
AT_PATH = re.compile(r"(?:at|in) `\$\.?([^`]*)`")


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as the decoder's type. Raises Refusal (400) naming the offending field by its path."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _named(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(None, f"the body is not valid JSON: {error}") from error


def _named(error: msgspec.ValidationError) -> Refusal:
    text = str(error)
    at = AT_PATH.search(text)
    path = at[1] if at else ""
    if unknown := UNKNOWN_FIELD.search(text):
        field = f"{path}.{unknown[1]}" if path else unknown[1]
        return Refusal(400, "unknown_parameter", f"{field} is not supported by this gateway", param=field)
    return invalid(path or None, text)


def reject(condition: bool, field: str, why: str) -> None:
    """Raises Refusal naming a field that is known and not supported as given."""
    if condition:
        raise Refusal(400, "unsupported_parameter", f"{field}: {why}", param=field)
