"""What the documentation says is so: links lead somewhere, commands parse, the README's environment runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.env import registry
from agentrl.errors import ConfigError

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")])
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_train_command_resolves(page: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    for line in re.findall(r"^(?:\.venv/bin/)?agentrl (train examples.*)$", page.read_text(), re.MULTILINE):
        result = CliRunner().invoke(app, [*shlex.split(line), "--dry-run"], catch_exceptions=False)
        assert result.exit_code == 0, f"{line}: {result.output}"


def commands(group: Any, *path: str) -> Iterator[list[str]]:
    """Every command that a person may type, hidden ones left out."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        elif not command.hidden:
            yield [*path, name]


@pytest.mark.parametrize("command", commands(typer.main.get_command(app)), ids=" ".join)
def test_every_command_has_a_help_text_with_an_example(command: list[str]):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example: agentrl" in result.output


def test_the_command_says_its_version():
    result = CliRunner().invoke(app, ["--version"])
    assert re.fullmatch(r"agentrl \d+\.\d+\.\d+\n", result.output)


def test_a_dry_run_finds_what_a_run_would_refuse(tmp_path: Path):
    (tmp_path / "run.toml").write_text('name = "x"\n[environment]\nid = "missing.py:Env"\n')
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml"), "--dry-run"])
    assert isinstance(result.exception, ConfigError)


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`?make ([a-z-]+)\b[`\s]", page.read_text())}
    assert {"demo", "test", "check", "setup"} <= named & targets
    assert {target for target in named if f"`make {target}" in "".join(page.read_text() for page in PAGES)} <= targets


def test_the_recorded_output_is_a_recording():
    """With the lines that a run prints, and no placeholder."""
    [recorded] = [block for block in README.split("```") if "held-out" in block]
    for line in ("vLLM engine(s) ready", "step  50/50", "moving average", "in 50 steps and", "│ identity", "clean"):
        assert line in recorded
    assert not re.search(r"\b(TODO|FIXME|XXX|[A-Z]+_OUTPUT)\b", README)


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in blocks(README, "bash")[0]


def test_the_readmes_environment_can_be_played_and_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    [environment] = blocks(README, "python")
    [run_file] = blocks(README, "toml")
    assert len(environment.strip().splitlines()) <= 21, "twenty lines and the file's name"
    Path("guess.py").write_text(environment)
    Path("guess.toml").write_text(run_file)
    result = CliRunner().invoke(app, ["train", "guess.toml", "--dry-run"], catch_exceptions=False)
    assert result.exit_code == 0, result.output

    def play(answer: str | None) -> float | None:
        env = registry.make("guess.py:Guess")
        env.reset(seed=3)
        call = {"id": "c", "type": "function", "function": {"name": "reveal", "arguments": "{}"}}
        observation, *_ = env.step({"role": "assistant", "content": None, "tool_calls": [call]})
        _, reward, terminated, _, _ = env.step(observation[0].text if answer is None else answer)
        assert terminated
        return reward

    assert (play(answer=None), play(answer="none")) == (1.0, 0.0)


def test_no_file_names_a_package_registry_or_a_path_of_one_machine():
    """Neither helps anybody else, and both break elsewhere."""
    hosts = "|".join(
        ["pypi" + r"\.org", "pythonhosted" + r"\.org", "download" + r"\.pytorch", "/wo" + "rk/main", "/tmp/" + "w/"]
    )
    tracked = [path for pattern in ("*.md", "*.py", "*.toml", "*.lock", "Makefile") for path in ROOT.rglob(pattern)]
    ours = [path for path in tracked if {".venv", ".peers", ".adapters", "runs"}.isdisjoint(path.parts)]
    assert [str(path) for path in ours if re.search(hosts, path.read_text(errors="replace"))] == []


def test_the_configuration_reference_says_what_the_models_say():
    """After changing a model, run tools/config_reference.py."""
    from config_reference import PAGE, page

    assert PAGE.read_text() == page()
