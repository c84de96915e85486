"""Environments that come with agentrl. Importing this package registers them with gymnasium."""

from __future__ import annotations

import gymnasium

_ENTRY_POINTS = {
    "agentrl/Calculator-v0": "agentrl_envs.calculator.env:Calculator",
    "agentrl/MathWord-v0": "agentrl_envs.math_word.env:MathWord",
    "agentrl/PythonCode-v0": "agentrl_envs.python_code.env:PythonCode",
    "agentrl/Shell-v0": "agentrl_envs.shell.env:Shell",
    "agentrl/Sql-v0": "agentrl_envs.sql.env:Sql",
    "agentrl/ToolShop-v0": "agentrl_envs.tool_shop.env:ToolShop",
    "agentrl/WordGame-v0": "agentrl_envs.word_game.env:WordGame",
}


def register() -> None:
    """Registers every environment once. Entry point of group `gymnasium.envs`."""
    for env_id, entry_point in _ENTRY_POINTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=entry_point)


register()
