"""An evaluation: what is played, what is kept, and how a stopped one goes on."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from openai_endpoint import OpenAIEndpoint, serving
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import ConfigError, RewardError, RunError
from agentrl.evaluate.config import EvaluationRunConfig
from agentrl.evaluate.files import EvaluationDirectory, missing_samples
from agentrl.evaluate.records import EpisodeResult
from agentrl.evaluate.runner import MAX_POLICY_ERRORS, EvaluationRunner
from agentrl.messages import Message
from agentrl.store.sql import SqlStore
from agentrl.types import Episode, Group, Mode, StopReason, Task
from agentrl_envs.calculator.reference import reference

CALCULATOR = "agentrl/Calculator-v0"


def config(**changes: object) -> EvaluationRunConfig:
    given = {"environment": {"id": CALCULATOR}, "checkpoint": "agentrl:tiny", **changes}
    return EvaluationRunConfig.model_validate(given)


def result(task_id: str, sample: int, reward: float | None = 1.0) -> EpisodeResult:
    stop = StopReason.DONE if reward is not None else StopReason.ENV_ERROR
    return EpisodeResult(task_id=task_id, sample=sample, session_id="s", reward=reward, stop_reason=stop, turns=1)


class Rollouts:
    """Every episode ends as told; counts the groups that run at once."""

    def __init__(self, stop_reason: StopReason = StopReason.DONE) -> None:
        self.stop_reason = stop_reason
        self.running = 0
        self.most = 0

    async def run_group(
        self, group_id: str, task: Task, *, size: int | None = None, version: int, mode: Mode = "train"
    ) -> Group:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        reward = 1.0 if self.stop_reason.by_policy else None
        episode = Episode(session_id="s", task=task, stop_reason=self.stop_reason, reward=reward, error="why")
        return Group(group_id=group_id, task=task, episodes=[episode] * (size or 1))


def left(count: int, samples: int = 1) -> list[tuple[Task, list[int]]]:
    return [(Task(id=f"t{index}"), list(range(samples))) for index in range(count)]


async def test_every_missing_sample_is_played_and_kept_once_within_the_concurrency() -> None:
    kept: list[EpisodeResult] = []
    heard: list[EpisodeResult] = []
    rollouts = Rollouts()
    await EvaluationRunner(rollouts, concurrency=3, keep=kept.extend, ended=heard.extend).run(left(10, 2))
    assert sorted((one.task_id, one.sample) for one in kept) == sorted(
        (f"t{task}", sample) for task in range(10) for sample in range(2)
    )
    assert kept == heard
    assert rollouts.most == 3


async def test_a_policy_server_that_is_down_stops_the_evaluation_and_says_why() -> None:
    kept: list[EpisodeResult] = []
    runner = EvaluationRunner(
        Rollouts(StopReason.POLICY_ERROR), concurrency=2, keep=kept.extend, ended=lambda results: None
    )
    with pytest.raises(RunError, match=f"{MAX_POLICY_ERRORS} episodes in a row failed for the policy's server.*: why"):
        await runner.run(left(100))
    assert len(kept) < 100


async def test_failing_environments_do_not_stop_an_evaluation() -> None:
    kept: list[EpisodeResult] = []
    runner = EvaluationRunner(
        Rollouts(StopReason.ENV_ERROR), concurrency=2, keep=kept.extend, ended=lambda results: None
    )
    await runner.run(left(100))
    assert len(kept) == 100


def test_what_is_missing_is_what_no_line_has() -> None:
    tasks = [Task(id="a"), Task(id="b"), Task(id="c")]
    done = [result("a", 0), result("a", 1), result("b", 1)]
    assert missing_samples(tasks, 2, done) == [(tasks[1], [0]), (tasks[2], [0, 1])]


def test_samples_that_are_scored_against_each_other_are_played_together_again() -> None:
    tasks = [Task(id="a"), Task(id="b")]
    done = [result("a", 0), result("a", 1), result("b", 1)]
    assert missing_samples(tasks, 2, done, together=True) == [(tasks[1], [0, 1])]


def test_episodes_are_read_back_without_those_that_are_to_be_played_again(tmp_path: Path) -> None:
    directory = EvaluationDirectory(tmp_path / "e")
    assert directory.open(config(), overwrite=False) == []
    directory.append([result("a", 0), result("b", 0, None)])
    assert directory.open(config(), overwrite=False) == [result("a", 0)]


def test_a_line_that_a_kill_cut_off_costs_its_episode_only(tmp_path: Path) -> None:
    directory = EvaluationDirectory(tmp_path / "e")
    directory.open(config(), overwrite=False)
    directory.append([result("a", 0), result("b", 0)])
    whole = directory.episodes.read_bytes()
    directory.episodes.write_bytes(whole[:-10])
    assert directory.read() == [result("a", 0)]
    directory.append([result("b", 0), result("c", 0)])
    assert directory.read() == [result("a", 0), result("b", 0), result("c", 0)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"rollout": {"max_turns": 3}}, "rollout.max_turns was 16, is 3"),
        ({"checkpoint": "other"}, "checkpoint was agentrl:tiny, is other"),
    ],
)
def test_another_evaluation_is_not_mixed_with_the_one_that_is_there(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    directory = EvaluationDirectory(tmp_path)
    directory.open(config(), overwrite=False)
    directory.append([result("a", 0)])
    with pytest.raises(ConfigError, match=said):
        directory.open(config(**changes), overwrite=False)
    assert directory.open(config(**changes), overwrite=True) == []


def test_an_evaluation_that_never_had_an_episode_may_become_another(tmp_path: Path) -> None:
    directory = EvaluationDirectory(tmp_path)
    directory.open(config(checkpoint=None, endpoint={"url": "http://tpyo/v1", "model": "m"}), overwrite=False)
    assert directory.open(config(), overwrite=False) == []


@pytest.mark.parametrize("changes", [{"tasks": 500}, {"samples": 4}, {"rollout": {"concurrency": 2}}])
def test_more_of_the_same_adds_to_what_is_there(tmp_path: Path, changes: dict[str, object]) -> None:
    directory = EvaluationDirectory(tmp_path)
    directory.open(config(), overwrite=False)
    directory.append([result("a", 0)])
    assert directory.open(config(**changes), overwrite=False) == [result("a", 0)]


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and holds no evaluation"):
        EvaluationDirectory(tmp_path).open(config(), overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["metrics.jsonl", "model.safetensors"])
def test_a_training_run_or_a_checkpoint_is_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text("weeks of work")
    with pytest.raises(ConfigError, match=f"holds no evaluation .*{name} is not of one"):
        EvaluationDirectory(tmp_path).open(config(), overwrite=True)
    assert (tmp_path / name).read_text() == "weeks of work"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"checkpoint": None}, "no policy is named; give a checkpoint"),
        ({"endpoint": {"url": "http://h/v1", "model": "m"}}, "leave out the checkpoint .*, or the URL 'http://h/v1'"),
    ],
)
def test_exactly_one_policy_is_evaluated(policy: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config(**policy)


@pytest.fixture
def endpoint() -> Iterator[OpenAIEndpoint]:
    """On an event loop of its own, for commands that run one themselves. Solves every other problem."""
    asked: dict[str, bool] = {}

    def policy(messages: list[Message]) -> Message | str:
        if not messages[0].text.startswith("What is"):
            return "Hello"
        good = asked.setdefault(messages[0].text, len(asked) % 2 == 0)
        return reference(messages) if good else "0"

    served = OpenAIEndpoint(policy)
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(served):
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(30)
    yield served
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)


def evaluated(endpoint: OpenAIEndpoint, out: Path, *arguments: str) -> tuple[int, str]:
    command = ["eval", CALCULATOR, "--url", endpoint.url, "--model", "m", "--out", str(out), *arguments]
    ran = CliRunner().invoke(app, command)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, ran.output


def test_the_command_prints_the_figures_and_keeps_everything(endpoint: OpenAIEndpoint, tmp_path: Path) -> None:
    code, said = evaluated(endpoint, tmp_path, "--tasks", "8", "--samples", "2", "--rows", "3", "--concurrency", "1")
    assert code == 0
    assert "success 0.500" in said
    assert "8 tasks, 16 episodes" in said
    assert "pass@1 0.500" in said
    assert "tasks, the 3 lowest of 8" in said
    store = SqlStore.at(tmp_path / "trajectories.db", create=False)
    assert store.count(mode="eval") == 16
    store.close()
    summary = msgspec.json.decode((tmp_path / "summary.json").read_bytes())
    assert (summary["success"]["mean"], summary["pass_at"]) == (0.5, {"1": 0.5, "2": 0.5})


def test_the_command_goes_on_where_it_was(endpoint: OpenAIEndpoint, tmp_path: Path) -> None:
    evaluated(endpoint, tmp_path, "--tasks", "4")
    asked = len(endpoint.bodies)
    code, said = evaluated(endpoint, tmp_path, "--tasks", "4")
    assert (code, len(endpoint.bodies)) == (0, asked)
    _, said = evaluated(endpoint, tmp_path, "--tasks", "6")
    assert "going on: 4 episodes are in" in said
    assert "6 tasks, 6 episodes" in said


RANKED = """
import agentrl
class Ranked(agentrl.Env):
    def reset(self, *, seed=None, options=None):
        return [agentrl.user("What is it?")], {}
    def step(self, action):
        return [], 0.0, True, False, {}
    @classmethod
    def tasks(cls, split, seed):
        yield from (agentrl.Task(id=id) for id in IDS)
    @classmethod
    def score_group(cls, episodes):
        return [float(len(episodes))] * len(episodes)
"""


def test_a_group_that_goes_on_is_scored_as_a_whole(endpoint: OpenAIEndpoint, tmp_path: Path) -> None:
    (tmp_path / "ranked.py").write_text(f"IDS = ['a']{RANKED}")
    out = tmp_path / "e"
    command = ["eval", f"{tmp_path}/ranked.py:Ranked", "--url", endpoint.url, "--model", "m", "--out", str(out)]
    assert CliRunner().invoke(app, [*command, "--samples", "2"]).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--samples", "3"]).exit_code == 0
    assert [one.reward for one in EvaluationDirectory(out).read()] == [3.0, 3.0, 3.0]


REWARDED = """
[reward]
env_weight = 0.5
[[reward.functions]]
name = "short"
function = "short.py:short"
weight = 0.5
workers = 1
"""


def test_the_rewards_of_a_runs_file_are_added_and_kept_apart(
    endpoint: OpenAIEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint solves every other task and says "0" to the rest, of which a function thinks nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.toml").write_text(REWARDED)
    (tmp_path / "short.py").write_text("def short(item):\n    return None if item.text == '0' else 1.0\n")
    arguments = ("--tasks", "8", "--concurrency", "1", "--rewards", "rewards.toml")
    code, said = evaluated(endpoint, tmp_path / "e", *arguments)
    assert code == 1, "no reward is missing, not 0"
    assert "success 1.000" in said
    assert "4 tasks, 4 episodes" in said
    assert "without a reward and in no figure: no_reward: 4" in said
    store = SqlStore.at(tmp_path / "e/trajectories.db", create=False)
    found = [(one.reward, one.components) for one in store.iterate(mode="eval")]
    store.close()
    assert sorted(found, key=str) == sorted(
        [(1.0, {"env": 1.0, "short": 1.0})] * 4 + [(None, {"env": 0.0, "short": None})] * 4, key=str
    )


def test_a_service_that_is_not_there_is_told_before_the_first_episode(endpoint: OpenAIEndpoint, tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.toml"
    rewards.write_text('[reward]\n[[reward.services]]\nname = "judge"\nurl = "http://127.0.0.1:9"\n')
    command = ["eval", CALCULATOR, "--url", endpoint.url, "--model", "m", "--out", str(tmp_path / "e")]
    ran = CliRunner().invoke(app, [*command, "--rewards", str(rewards)])
    assert isinstance(ran.exception, RewardError)
    assert "judge does not answer at http://127.0.0.1:9/health" in str(ran.exception)
    assert endpoint.bodies == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[[reward.services]]\nname = "judge"\nstart = "judge"', "here start it yourself"),
        ("[reward]\ntoken_cost = 0.1", "count sampled tokens, which an endpoint does not tell"),
        ("[rewards]", "has no .reward. table"),
    ],
)
def test_rewards_that_cannot_be_had_are_refused(table: str, said: str, tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.toml"
    rewards.write_text(table)
    command = ["eval", CALCULATOR, "--url", "http://h/v1", "--model", "m", "--out", str(tmp_path / "e")]
    ran = CliRunner().invoke(app, [*command, "--rewards", str(rewards)])
    assert isinstance(ran.exception, ConfigError)
    assert re.search(said, str(ran.exception))


def test_tasks_of_one_id_are_refused(endpoint: OpenAIEndpoint, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(f"IDS = ['a', 'b', 'a']{RANKED}")
    command = ["eval", f"{tmp_path}/twice.py:Ranked", "--url", endpoint.url, "--model", "m", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, command)
    assert isinstance(ran.exception, ConfigError)
    assert "2 tasks of" in str(ran.exception)
    assert "have the id 'a'" in str(ran.exception)


def test_missing_episodes_are_told_and_the_exit_status_is_1(endpoint: OpenAIEndpoint, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import agentrl\n"
        "class Broken(agentrl.ToolEnv):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return [agentrl.user('Q')], {}\n"
        "    def score(self, message):\n"
        "        raise RuntimeError('no score')\n"
    )
    command = ["eval", f"{broken}:Broken", "--url", endpoint.url, "--model", "m", "--out", str(tmp_path / "e")]
    ran = CliRunner().invoke(app, [*command, "--tasks", "2"])
    assert ran.exit_code == 1
    assert "without a reward and in no figure: env_error: 2" in ran.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "m"], "--model and --api-key-env belong to an endpoint"),
        (["--url", "http://h/v1"], "--url needs --model"),
        (["--checkpoint", "agentrl:tiny", "--pass-at", "2"], "at most --samples, which is 1"),
        (["--checkpoint", "agentrl:tiny", "--pass-at", "x"], "give whole numbers"),
        (["--checkpoint", "agentrl:tinny"], "model 'agentrl:tinny' is not a directory"),
        (["--checkpoint", "agentrl:tiny", "--set", "loop.steps=1"], "only keys of rollout and engine"),
        (["--checkpoint", "agentrl:tiny", "--set", "rollout.nonsense=1"], "rollout.nonsense"),
        ([], "no policy is named; give a checkpoint"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    ran = CliRunner().invoke(app, ["eval", CALCULATOR, "--out", str(tmp_path / "e"), *arguments])
    assert isinstance(ran.exception, ConfigError)
    assert said in str(ran.exception)
    assert not (tmp_path / "e").exists()
