"""Code that is named in a configuration: whatever is wrong with it is a configuration error that says what."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.errors import ConfigError


def test_a_name_and_a_path_lead_to_the_same_function() -> None:
    by_path = plugins.load("agentrl.advantages", "agentrl_trainers.algorithms.grpo:group_advantages")
    assert plugins.load("agentrl.advantages", "grpo") is by_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "no agentrl.advantages is called 'grop'; known: grpo"),
        ("json:nothing", "'json:nothing' cannot be loaded .*no attribute 'nothing'"),
        ("nothing_at_all:x", "cannot be loaded for agentrl.advantages: ModuleNotFoundError"),
        ("os:path", "'os:path' of agentrl.advantages is a module; name a function or a class"),
        (":x", "':x' of agentrl.advantages is not of the form 'module:attribute'"),
        ("json:", "is not of the form 'module:attribute'"),
        ("a:b:c", "is not of the form 'module:attribute'"),
        (".relative:x", "cannot be loaded for agentrl.advantages: TypeError"),
    ],
)
def test_a_name_that_leads_nowhere_says_why(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plugins.load("agentrl.advantages", name)


@pytest.mark.parametrize(
    ("code", "message"),
    [("syntax error(", "SyntaxError"), ("import sys; sys.exit(3)", "SystemExit: 3"), ("1 / 0", "ZeroDivisionError")],
)
def test_a_module_that_fails_at_import_is_named_with_its_error(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_broken_plugin.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"'a_broken_plugin:f' cannot be loaded for agentrl.advantages: {message}"):
        plugins.load("agentrl.advantages", "a_broken_plugin:f")
