"""Structured output as OpenAI's dialects ask for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrl.gateway.dialects.decode import reject
from agentrl.types import Constraint


def json_constraint(kind: str, schema: Mapping[str, Any] | None, *, field: str) -> Constraint | None:
    """For `text` (None), `json_object` and `json_schema`. Raises Refusal naming `field`."""
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint(kind="json_object", value=True)
    reject(schema is None, f"{field}.schema", "json_schema needs a schema")
    try:
        json.dumps(schema)
    except RecursionError:
        reject(True, f"{field}.schema", "it is nested too deep")
    return Constraint(kind="json", value=schema)
