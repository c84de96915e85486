"""Models whose chat template spells no tool calls that we know: reasoning is parsed, everything else is content."""

from __future__ import annotations

from agentrl.gateway.parsers.base import Family, Tools
from agentrl.gateway.parsers.script import Script
from agentrl.gateway.refusal import invalid
from agentrl.types import Constraint


def forced(tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
    raise invalid(
        "tool_choice",
        f"tool_choice forces one of {len(tools)} tools, but the chat template of this model spells tool calls in no "
        'form that the gateway knows; use tool_choice "auto" or "none", or another model',
    )


FAMILY = Family("plain", Script, forced, "", lambda template: True)
