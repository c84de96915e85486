"""Groups and the worker: whole, isolated, bounded, and probed before a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentrl
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.group import run_group
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker, probe
from agentrl.types import Episode, StopReason, Task


class Scores(agentrl.Env):
    """Ends at once; reward 1 for "right". The task's options say where it fails."""

    def __init__(self, bonus: float = 0.0) -> None:
        self.bonus = bonus

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.options = options or {}
        if self.options.get("fail") == "reset":
            raise RuntimeError("no such row")
        return [agentrl.user("?")], {}

    def step(self, action: Any) -> Any:
        if action.text == "crash":
            raise RuntimeError("bad step")
        return [], float(action.text == "right") + self.bonus, True, False, {}


ENV_ID = f"{__name__}:Scores"


def task(**options: Any) -> Task:
    return Task(id="t", env_id=ENV_ID, seed=0, options=options)


def worker(policy: Any, *, env_kwargs: dict[str, Any] | None = None, **settings: Any) -> RolloutWorker:
    return RolloutWorker(
        RolloutConfig(**settings), "unused", "unused", env_kwargs=env_kwargs, gateway=ScriptedGateway(policy)
    )


def in_turn(*replies: str) -> Any:
    left = iter(replies)
    return lambda messages: next(left)


async def test_a_group_is_whole_when_all_its_episodes_are_done() -> None:
    group = await worker(in_turn("right", "wrong", "right"), group_size=3).run_group("g7", task(), version=4)
    assert (group.group_id, group.admitted_at_version, group.task.id) == ("g7", 4, "t")
    assert sorted(episode.reward or 0 for episode in group.episodes) == [0, 1, 1]
    assert len({episode.session_id for episode in group.episodes}) == 3


async def test_a_failed_episode_keeps_its_place_and_its_siblings_their_results() -> None:
    """Case 35."""
    rollouts = worker(in_turn("right", "crash", "wrong", "right"), episode_retries=0)
    group = await rollouts.run_group("g", task(), size=4, version=0)
    assert sorted(episode.stop_reason for episode in group.episodes) == ["done", "done", "done", "env_error"]
    assert sorted((e.reward for e in group.episodes), key=repr) == [0.0, 1.0, 1.0, None]


async def test_episodes_say_in_their_metadata_which_of_the_group_they_are() -> None:
    gateway = ScriptedGateway(lambda messages: "right")
    rollouts = RolloutWorker(RolloutConfig(group_size=2), "unused", "unused", gateway=gateway)
    await rollouts.run_group("g", task(), version=0)
    metadata = [session.request.metadata for session in gateway.sessions]
    assert metadata == [{"group_id": "g", "index": 0}, {"group_id": "g", "index": 1}]


async def test_no_more_episodes_at_once_than_configured() -> None:
    at_once, most = 0, 0

    async def policy(messages: Any) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return "right"

    rollouts = worker(policy, concurrency=3)
    await asyncio.gather(*(rollouts.run_group(f"g{i}", task(), size=4, version=0) for i in range(4)))
    assert 1 <= most <= 3


async def test_evaluation_gives_one_episode_a_task_in_order_and_its_own_sampling() -> None:
    gateway = ScriptedGateway(lambda messages: "right")
    config = RolloutConfig(temperature=1.0, eval_temperature=0.0, max_tokens=7, max_turns=2)
    rollouts = RolloutWorker(config, "unused", "unused", gateway=gateway)
    tasks = [Task(id=f"t{i}", env_id=ENV_ID, seed=i, split="eval") for i in range(5)]
    episodes = await rollouts.run_episodes(tasks)
    assert [episode.task.id for episode in episodes] == ["t0", "t1", "t2", "t3", "t4"]
    request = gateway.sessions[0].request
    assert (request.mode, request.sampling.temperature, request.sampling.max_tokens) == ("eval", 0.0, 7)
    assert request.sampling.seed is None
    assert request.limits.max_calls == 2


async def test_environment_arguments_are_passed() -> None:
    group = await worker(in_turn("right"), env_kwargs={"bonus": 0.5}).run_group("g", task(), size=1, version=0)
    assert group.episodes[0].reward == 1.5


async def test_a_source_of_a_mix_has_arguments_of_its_own() -> None:
    rollouts = RolloutWorker(
        RolloutConfig(), "unused", "unused", env_kwargs={"bonus": 0.5}, sources={"generous": {"bonus": 2.0}},
        gateway=ScriptedGateway(lambda messages: "right"),
    )  # fmt: skip
    of_source = msgspec.structs.replace(task(), source="generous")
    groups = [await rollouts.run_group("g", one, size=1, version=0) for one in (task(), of_source)]
    assert [group.episodes[0].reward for group in groups] == [1.5, 3.0]


async def test_attempts_that_are_there_are_not_played_again() -> None:
    there = Episode(session_id="old", task=task(), stop_reason=StopReason.DONE, reward=0.25)
    rollouts = worker(in_turn("right", "wrong"), group_size=3)
    group = await rollouts.run_group("g", task(), version=0, have={1: there})
    assert [episode.session_id == "old" for episode in group.episodes] == [False, True, False]
    assert group.episodes[1].reward == 0.25


async def test_a_fault_of_the_rollout_itself_ends_the_group_and_is_raised() -> None:
    started = asyncio.Event()
    cancelled = []

    async def play(index: int) -> Episode:
        if index == 1:
            await started.wait()
            raise ZeroDivisionError("a bug")
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(index)
            raise
        raise AssertionError("unreachable")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await run_group("g", task(), size=2, version=0, play=play)
    assert cancelled == [0]


async def test_the_order_of_episodes_is_by_index_not_by_end() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def play(index: int) -> Episode:
        if index < 2:
            await gates[index + 1].wait()
        gates[index].set()
        return Episode(session_id=str(index), task=task(), stop_reason=StopReason.DONE, reward=None)

    group = await run_group("g", task(), size=3, version=0, play=play)
    assert [episode.session_id for episode in group.episodes] == ["0", "1", "2"]


async def test_a_probe_finds_a_good_environment_good() -> None:
    await probe(task())


async def test_a_probe_says_in_one_sentence_what_fails() -> None:
    with pytest.raises(agentrl.EnvironmentFault, match=r"Scores\.reset raised RuntimeError: no such row"):
        await probe(task(fail="reset"))
    with pytest.raises(agentrl.EnvironmentFault, match=r"Scores\.__init__ raised TypeError: .*colour"):
        await probe(task(), {"colour": "red"})


async def test_a_probe_of_an_unknown_environment_is_a_config_error() -> None:
    with pytest.raises(agentrl.ConfigError, match="agentrl/Calculator-v0"):
        await probe(Task(id="t", env_id="agentrl/Nothing-v0", seed=0))


async def test_an_environment_from_a_file_runs(tmp_path: Path) -> None:
    """The twenty lines of the README."""
    (tmp_path / "guess.py").write_text(
        "import agentrl\n"
        "class Guess(agentrl.ToolEnv):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        self.number = int(self.np_random.integers(10))\n"
        "        return [agentrl.user('Guess a digit.')], {}\n"
        "    @agentrl.tool\n"
        "    def reveal(self) -> int:\n"
        '        """Show it."""\n'
        "        return self.number\n"
        "    def score(self, message):\n"
        "        return float(message.text == str(self.number))\n"
    )
    call = agentrl.assistant(
        None, tool_calls=[{"id": "c", "type": "function", "function": {"name": "reveal", "arguments": "{}"}}]
    )
    rollouts = worker(lambda messages: call if messages[-1].role == "user" else messages[-1].text)
    guess = Task(id="t", env_id=f"{tmp_path}/guess.py:Guess", seed=5)
    (episode,) = await rollouts.run_episodes([guess], mode="train")
    assert (episode.stop_reason, episode.reward, episode.turns) == ("done", 1.0, 2)


@pytest.mark.parametrize(
    "settings", [{"group_size": 0}, {"temperature": 0.0}, {"max_turns": -1}, {"env_timeout_s": 0}, {"wrokers": 2}]
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        RolloutConfig.model_validate(settings)
