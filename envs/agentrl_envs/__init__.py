"""Environments that come with agentrl. Importing this package registers them with gymnasium."""

from __future__ import annotations

import gymnasium

_ENTRY_POINTS = {"agentrl/Calculator-v0": "agentrl_envs.calculator.env:Calculator"}


def register() -> None:
    """Registers every environment once. Entry point of group `gymnasium.envs`."""
    for env_id, entry_point in _ENTRY_POINTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=entry_point)


register()
