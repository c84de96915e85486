"""Train language-model agents by reinforcement learning in ordinary Python environments.

Names load on first use (PEP 562): importing agentrl costs next to nothing and pulls in no machine-learning library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.env.base import Env, StepResult
    from agentrl.env.registry import make
    from agentrl.env.tool import tool
    from agentrl.env.tool_env import ToolEnv
    from agentrl.errors import AgentRLError, ConfigError, EnvironmentFault
    from agentrl.messages import Message, assistant, system, user
    from agentrl.messages import tool as tool_message
    from agentrl.types import Task

__version__ = "0.1.0"

_HOME = {
    "AgentRLError": ("agentrl.errors", "AgentRLError"),
    "ConfigError": ("agentrl.errors", "ConfigError"),
    "Env": ("agentrl.env.base", "Env"),
    "EnvironmentFault": ("agentrl.errors", "EnvironmentFault"),
    "Message": ("agentrl.messages", "Message"),
    "StepResult": ("agentrl.env.base", "StepResult"),
    "Task": ("agentrl.types", "Task"),
    "ToolEnv": ("agentrl.env.tool_env", "ToolEnv"),
    "assistant": ("agentrl.messages", "assistant"),
    "make": ("agentrl.env.registry", "make"),
    "system": ("agentrl.messages", "system"),
    "tool": ("agentrl.env.tool", "tool"),
    "tool_message": ("agentrl.messages", "tool"),
    "user": ("agentrl.messages", "user"),
}

__all__ = [
    "AgentRLError",
    "ConfigError",
    "Env",
    "EnvironmentFault",
    "Message",
    "StepResult",
    "Task",
    "ToolEnv",
    "assistant",
    "make",
    "system",
    "tool",
    "tool_message",
    "user",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agentrl' has no attribute {name!r}; it offers {', '.join(__all__)}")
    module, attribute = _HOME[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
