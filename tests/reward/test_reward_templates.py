"""`examples/07_reward_services`: the services to start from keep the contract, and the run that uses one is as told."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from agentrl.messages import assistant, user
from agentrl.reward.config import RewardConfig
from agentrl.reward.scorer import Scorer
from agentrl.types import Episode, StopReason, Task

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "07_reward_services"
OF_THE_MACHINE = {"serial", "health-blocked"}
"""Findings about speed: on a machine that is busy with other things they say nothing about the service."""

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")
TEMPLATES = [pytest.param("python", id="python"), pytest.param("node", id="node", marks=needs_node)]


@contextmanager
def running(template: str) -> Iterator[str]:
    """The URL of a template that is up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    commands = {
        "python": [sys.executable, "-m", "uvicorn", "--app-dir", str(FOLDER), "service:app", "--port", port],
        "node": ["node", str(FOLDER / "service.mjs"), port],
    }
    process = subprocess.Popen(commands[template], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not _is_up(url):
            assert process.poll() is None, f"{template} ended with status {process.returncode}"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=10)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_check_finds_nothing_wrong_with_a_template(template: str) -> None:
    with running(template) as url:
        command = [sys.executable, "-m", "agentrl.cli.main", "reward", "check", url, "--min", "0", "--max", "1"]
        checked = subprocess.run([*command, "--load", "0.1", "--json"], capture_output=True, text=True, check=False)
    report = json.loads(checked.stdout)
    assert [found for found in report["findings"] if found["code"] not in OF_THE_MACHINE] == []
    assert (report["items"], report["unscored"]) == (16, 0)
    assert checked.returncode == 0


@pytest.mark.parametrize(("name", "most"), [("service.py", 30), ("service.mjs", 40)])
def test_a_template_is_short_and_needs_nothing_of_agentrl(name: str, most: int) -> None:
    source = (FOLDER / name).read_text()
    assert len(source.splitlines()) <= most
    assert "agentrl" not in source


@pytest.mark.parametrize("template", TEMPLATES)
async def test_the_examples_parts_make_the_reward_that_its_readme_tells(template: str) -> None:
    """Right and short: 1 + 0.1 · (1 - 3/100). Wrong: 0.1 · 0.97. More than a number: 0."""
    texts = {"right": ("391", 1.0), "wrong": ("392", 0.0), "wordy": ("It is 391.", 0.0)}
    with running(template) as url, pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        data = tomllib.loads((FOLDER / "run.toml").read_text())["reward"]
        data["services"][0]["url"] = url
        scorer = Scorer(RewardConfig.model_validate(data))
        await scorer.check()
        found = await scorer.score([episode(name, text, reward) for name, (text, reward) in texts.items()])
        await scorer.close()
    assert {name: reward.value for name, reward in found.items()} == {
        "right": pytest.approx(1.097),
        "wrong": pytest.approx(0.097),
        "wordy": 0.0,
    }
    assert found["right"].components == {"env": 1.0, "brief": 0.97, "brief.characters": 3.0, "number": 1.0}


def episode(name: str, text: str, reward: float) -> Episode:
    talk = [dict(user("What is 17*23?")), dict(assistant(text))]
    task = Task(id="t", env_id="e", seed=0)
    return Episode(session_id=name, task=task, stop_reason=StopReason.DONE, reward=reward, turns=1, messages=talk)
