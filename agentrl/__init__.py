"""Train language-model agents by reinforcement learning in ordinary Python environments.

Names load on first use (PEP 562): importing agentrl costs next to nothing and pulls in no machine-learning library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.env.base import Env, ResetResult, StepResult
    from agentrl.env.code_env import CodeEnv
    from agentrl.env.policy import Policy
    from agentrl.env.program import Program, program
    from agentrl.env.registry import make
    from agentrl.env.roles import Role
    from agentrl.env.simulator import Simulator
    from agentrl.env.space import as_action
    from agentrl.env.tool import tool
    from agentrl.env.tool_env import ToolEnv
    from agentrl.errors import AgentRLError, ConfigError, EnvironmentFault
    from agentrl.messages import Message, assistant, system, user
    from agentrl.messages import tool as tool_message
    from agentrl.types import Episode, Limits, Task

__version__ = "0.1.0"

_HOME = {
    "AgentRLError": ("agentrl.errors", "AgentRLError"),
    "CodeEnv": ("agentrl.env.code_env", "CodeEnv"),
    "ConfigError": ("agentrl.errors", "ConfigError"),
    "Env": ("agentrl.env.base", "Env"),
    "EnvironmentFault": ("agentrl.errors", "EnvironmentFault"),
    "Episode": ("agentrl.types", "Episode"),
    "Limits": ("agentrl.types", "Limits"),
    "Message": ("agentrl.messages", "Message"),
    "Policy": ("agentrl.env.policy", "Policy"),
    "Program": ("agentrl.env.program", "Program"),
    "ResetResult": ("agentrl.env.base", "ResetResult"),
    "Role": ("agentrl.env.roles", "Role"),
    "Simulator": ("agentrl.env.simulator", "Simulator"),
    "StepResult": ("agentrl.env.base", "StepResult"),
    "Task": ("agentrl.types", "Task"),
    "ToolEnv": ("agentrl.env.tool_env", "ToolEnv"),
    "as_action": ("agentrl.env.space", "as_action"),
    "assistant": ("agentrl.messages", "assistant"),
    "make": ("agentrl.env.registry", "make"),
    "program": ("agentrl.env.program", "program"),
    "system": ("agentrl.messages", "system"),
    "tool": ("agentrl.env.tool", "tool"),
    "tool_message": ("agentrl.messages", "tool"),
    "user": ("agentrl.messages", "user"),
}

__all__ = [
    "AgentRLError",
    "CodeEnv",
    "ConfigError",
    "Env",
    "EnvironmentFault",
    "Episode",
    "Limits",
    "Message",
    "Policy",
    "Program",
    "ResetResult",
    "Role",
    "Simulator",
    "StepResult",
    "Task",
    "ToolEnv",
    "as_action",
    "assistant",
    "make",
    "program",
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
