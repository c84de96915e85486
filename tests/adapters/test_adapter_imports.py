"""Adapters cost nothing until one is made, and a package that is missing is named with its extra."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from adapter_episode import ADAPTERS

import agentrl
from agentrl.env import adapters, registry

PACKAGES = ("mcp", "reasoning_gym", "skyrl_gym", "textarena", "trl", "verifiers")
MADE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "MCP": ("mcp", "mcp", {"servers": {"command": ["true"]}}),
    "ReasoningGym": ("reasoning_gym", "reasoning-gym", {"dataset": "leg_counting"}),
    "SkyRL": ("skyrl_gym", "skyrl", {"environment": "gsm8k"}),
    "TextArena": ("textarena", "textarena", {"game": "TicTacToe-v0"}),
}


def test_the_list_of_adapters_and_every_adapter_import_none_of_their_packages() -> None:
    code = (
        "import sys; from agentrl.env import adapters; [getattr(adapters, name) for name in adapters.__all__];"
        f"print(sorted(set({PACKAGES}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_name_that_there_is_not_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match="it offers GymText, MCP, OpenEnv"):
        adapters.Gym  # noqa: B018
    with pytest.raises(agentrl.ConfigError, match="no 'Gym' in it"):
        registry.make(f"{ADAPTERS}:Gym")


@pytest.mark.parametrize("name", MADE)
def test_a_missing_package_is_told_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, extra, options = MADE[name]
    monkeypatch.setitem(sys.modules, module, None)  # importing it then fails, wherever it is installed
    with pytest.raises(agentrl.ConfigError, match=rf"{module} cannot be imported .*pip install 'agentrl\[{extra}\]'"):
        registry.make(f"{ADAPTERS}:{name}", **options)


def test_tasks_of_verifiers_without_it_are_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(agentrl.ConfigError, match=r"pip install 'agentrl\[verifiers\]'"):
        next(registry.tasks(f"{ADAPTERS}:Verifiers", split="train", seed=0, env_kwargs={"taskset": "x"}))
