"""Sampled text → deltas, one file per family of models."""

from __future__ import annotations

from typing import Any

from agentrl.errors import ConfigError
from agentrl.gateway.deltas import message_of
from agentrl.gateway.parsers import deepseek, glm, gpt_oss, hermes, llama3, mistral, plain, qwen3_coder
from agentrl.gateway.parsers.base import Family, ParseOptions, Tools

_MODULES = (gpt_oss, deepseek, mistral, qwen3_coder, glm, hermes, llama3, plain)

FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
"""In the order in which a template is asked: what is spelt in fewer families' templates comes first, `plain` last."""


def family_for(template: str) -> Family:
    """The family whose tool calls this chat template writes."""
    return next(family for family in FAMILIES.values() if family.recognises(template))


def read(family: Family, text: str, tools: Tools, *, stopped: bool = True) -> dict[str, Any]:
    """The assistant message of a whole sampled text."""
    parser = family.parser(ParseOptions(tools=tools))
    return message_of([*parser.feed(text), *parser.finish(stopped=stopped)])


def chosen_family(name: str) -> Family | None:
    """The family of a configured name; None for "auto". Raises ConfigError for an unknown one."""
    if name != "auto" and name not in FAMILIES:
        raise ConfigError(f"gateway.parser {name!r} is unknown; choose auto or one of: {', '.join(FAMILIES)}")
    return FAMILIES.get(name)
