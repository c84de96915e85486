"""Who scores a run's episodes is known before it starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agentrl.cluster.check import check
from agentrl.config import RunConfig
from agentrl.errors import ConfigError

ENVIRONMENTS = """
import agentrl

class Mute(agentrl.ToolEnv):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Hello")], {}

class Ranked(Mute):
    @classmethod
    def score_group(cls, episodes):
        return [0.0 for _ in episodes]

class Stepping(Mute):
    def step(self, action):
        return [], 1.0, True, False, {}

def polite(item):
    return 1.0
"""


def run_of(folder: Path, name: str, **reward: object) -> RunConfig:
    (folder / "mine.py").write_text(ENVIRONMENTS)
    environment = {"id": f"{folder}/mine.py:{name}"}
    return RunConfig.model_validate({"name": "x", "environment": environment, "reward": reward})


@pytest.mark.parametrize("name", ["Ranked", "Stepping"])
def test_rewards_of_a_group_or_of_steps_are_rewards(name: str, tmp_path: Path) -> None:
    check(run_of(tmp_path, name), services=False)


def test_a_reward_that_would_be_missing_in_every_episode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write `score`, or name a service or a function under \[reward\]"):
        check(run_of(tmp_path, "Mute"), services=False)
    functions = [{"name": "polite", "function": f"{tmp_path}/mine.py:polite"}]
    with pytest.raises(ConfigError, match=r"or set reward.env_weight = 0, as polite scores"):
        check(run_of(tmp_path, "Mute", functions=functions), services=False)
    check(run_of(tmp_path, "Mute", functions=functions, env_weight=0.0), services=False)


def test_a_group_of_one_has_nobody_to_be_compared_with(tmp_path: Path) -> None:
    """An estimator that compares siblings would find 0 for ever; one without that needs no siblings."""
    alone = run_of(tmp_path, "Stepping").model_dump(mode="json") | {"rollout": {"group_size": 1}}
    with pytest.raises(ConfigError, match=r"rollout.group_size = 1, and algorithm.advantage = 'grpo' compares"):
        check(RunConfig.model_validate(alone), services=False)
    check(RunConfig.model_validate(alone | {"algorithm": {"advantage": "reinforce_plus_plus"}}), services=False)


@pytest.mark.parametrize("zero_variance", ["drop", "refill"])
def test_groups_that_nobody_judges_cannot_be_left_out_for_want_of_signal(tmp_path: Path, zero_variance: str) -> None:
    """What is whitened over the whole step is never flat by itself, so the key would do nothing."""
    config = run_of(tmp_path, "Stepping").model_dump(mode="json")
    algorithm = {"advantage": "reinforce_plus_plus", "zero_variance": zero_variance}
    with pytest.raises(ConfigError, match=f"zero_variance = '{zero_variance}' would leave out nothing"):
        check(RunConfig.model_validate(config | {"algorithm": algorithm}), services=False)


@pytest.mark.parametrize("section", ["engine", "gateway"])
def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path, section: str) -> None:
    run = run_of(tmp_path, "Stepping")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        part = {"ports": [port]} if section == "engine" else {"port": port}
        with pytest.raises(ConfigError, match=f"port {port} .*in use"):
            check(RunConfig.model_validate(run.model_dump() | {section: part}))
    check(RunConfig.model_validate(run.model_dump() | {section: part}))
