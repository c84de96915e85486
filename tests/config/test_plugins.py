"""Code that is named in a configuration: whatever is wrong with it is a configuration error that says what."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.errors import ConfigError


def test_a_name_and_a_path_lead_to_the_same_function() -> None:
    by_path = plugins.load("agentrl.advantages", "agentrl_trainers.algorithms.advantages.grpo:group_advantages")
    assert plugins.load("agentrl.advantages", "grpo") is by_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "no agentrl.advantages is called 'grop'; known: .*, grpo, "),
        ("json:nothing", r"agentrl.advantages 'json:nothing': there is no 'nothing' in it; it has \['dump',"),
        ("nothing_at_all:x", "cannot be imported: No module named 'nothing_at_all'; install its package, or name"),
        ("nothing.py:x", "there is no file .*nothing.py"),
        ("os:path", "agentrl.advantages 'os:path' is a module; name a class or a function"),
        (":x", "':x' is not of the form 'module:name'"),
        ("json:", "'json:' is not of the form 'module:name'"),
        ("a:b:c", "No module named 'a:b'"),
        (".relative:x", "importing .relative raised TypeError"),
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
    with pytest.raises(ConfigError, match=f"'a_broken_plugin:f': importing a_broken_plugin raised {message}"):
        plugins.load("agentrl.advantages", "a_broken_plugin:f")
