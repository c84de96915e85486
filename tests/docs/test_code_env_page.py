"""The example of a `CodeEnv` on the environments' page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.env import registry
from agentrl.errors import SandboxUnavailable

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def test_the_pages_code_environment_scores_right_and_wrong_code(tmp_path: Path) -> None:
    source = re.search(r"### Code\n.*?```python\n(.*?)\n```\n\n`self", PAGE.read_text(), re.DOTALL)
    assert source is not None
    (tmp_path / "adder.py").write_text(source[1])
    try:
        env = registry.make(f"{tmp_path / 'adder.py'}:Adder")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    env.reset(seed=1)
    assert env.step("```python\ndef add(a, b):\n    return a + b\n```")[1] == 1.0
    env.reset(seed=1)
    assert env.step("```python\ndef add(a, b):\n    return a - b\n```")[1] == 0.0
    env.close()
