"""Options that name files work from any working directory, as workers have their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from adapter_episode import ADAPTERS

from agentrl.env import registry


@pytest.mark.parametrize(
    ("name", "options", "key", "wanted"),
    [
        ("GymText", {"parse": "mine.py:read"}, "parse", "{here}/mine.py:read"),
        ("OpenEnv", {"describe": "sub/mine.py:tell"}, "describe", "{here}/sub/mine.py:tell"),
        ("TRL", {"rewards": ["mine.py:one", "pkg:two"]}, "rewards", ["{here}/mine.py:one", "pkg:two"]),
        ("SkyRL", {"environment": "gsm8k"}, "environment", "gsm8k"),
        ("TextArena", {"opponent": "mine.py:Play"}, "opponent", "{here}/mine.py:Play"),
        ("TextArena", {"opponent": ["[1]"]}, "opponent", ["[1]"]),
        ("MCP", {"servers": {"command": ["x"]}}, "servers", [{"command": ["x"], "cwd": "{here}"}]),
        ("MCP", {"servers": [{"url": "http://x"}]}, "servers", [{"url": "http://x"}]),
        ("MCP", {"servers": {"command": ["x"], "cwd": "sub"}}, "servers", [{"command": ["x"], "cwd": "{here}/sub"}]),
    ],
)
def test_names_of_files_become_absolute(
    name: str, options: dict[str, Any], key: str, wanted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert registry.placed(f"{ADAPTERS}:{name}", options)[key] == _filled(wanted, str(tmp_path))


def _filled(value: Any, here: str) -> Any:
    if isinstance(value, list):
        return [_filled(part, here) for part in value]
    if isinstance(value, dict):
        return {key: _filled(part, here) for key, part in value.items()}
    return value.replace("{here}", here)
