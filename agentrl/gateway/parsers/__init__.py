"""Sampled text → deltas, one file per family of models."""

from __future__ import annotations

from agentrl.errors import ConfigError
from agentrl.gateway.parsers import deepseek, glm, gpt_oss, hermes, llama3, mistral, plain, qwen3_coder
from agentrl.gateway.parsers.base import Family

_MODULES = (gpt_oss, deepseek, mistral, qwen3_coder, glm, hermes, llama3, plain)

FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
"""In the order in which a template is asked: what is spelt in fewer families' templates comes first, `plain` last."""


def family_for(template: str) -> Family:
    """The family whose tool calls this chat template writes."""
    return next(family for family in FAMILIES.values() if family.recognises(template))


def chosen_family(name: str) -> Family | None:
    """The family of a configured name; None for "auto". Raises ConfigError for an unknown one."""
    if name != "auto" and name not in FAMILIES:
        raise ConfigError(f"gateway.parser {name!r} is unknown; choose auto or one of: {', '.join(FAMILIES)}")
    return FAMILIES.get(name)
