"""Environments that people already have, as agentrl environments: one adapter a file (docs/adapters.md).

Name one as `agentrl.env.adapters:ReasoningGym` in a run file, with its options. Nothing of another package is imported
before an adapter is made.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "GymText": "gym_text",
    "MCP": "mcp",
    "OpenEnv": "openenv",
    "ReasoningGym": "reasoning_gym",
    "SkyRL": "skyrl",
    "TRL": "trl",
    "TextArena": "textarena",
    "Verifiers": "verifiers",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
