"""Rewards that the episodes of a group get together."""

from __future__ import annotations

import asyncio
import math
from typing import Any, ClassVar

import pytest

import agentrl
from agentrl.errors import GatewayError
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker
from agentrl.types import Episode, Group, Task


class Says(agentrl.Env):
    """One message; worth 0.1 by itself."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return [agentrl.user("?")], {}

    def step(self, action: agentrl.Message) -> Any:
        if action.text == "crash":
            raise RuntimeError("bad step")
        return [], 0.1, True, False, {}


class Longest(Says):
    """The longest answer of a group wins."""

    asked: ClassVar[list[int]] = []

    @classmethod
    def score_group(cls, episodes: list[Episode]) -> list[float | None]:
        cls.asked.append(len(episodes))
        lengths = [len(episode.messages[-1]["content"]) for episode in episodes]
        return [float(length == max(lengths)) for length in lengths]


class LongestAsync(Says):
    @classmethod
    async def score_group(cls, episodes: list[Episode]) -> list[float | None]:
        await asyncio.sleep(0)
        return [None for _ in episodes]


class Failing(Says):
    outcome: ClassVar[Any] = None

    @classmethod
    def score_group(cls, episodes: list[Episode]) -> Any:
        if isinstance(cls.outcome, Exception):
            raise cls.outcome
        return cls.outcome


async def play(env: type, *answers: str, gateway: ScriptedGateway | None = None) -> tuple[Group, ScriptedGateway]:
    left = iter(answers)
    gateway = gateway or ScriptedGateway(lambda messages: next(left))
    config = RolloutConfig(episode_retries=0, env_timeout_s=5.0)
    worker = RolloutWorker(config, "unused", "unused", gateway=gateway)
    task = Task(id="t", env_id=f"{__name__}:{env.__name__}")
    group = await worker.run_group("g", task, size=len(answers), version=0)
    await worker.close()
    return group, gateway


async def test_a_group_is_scored_once_when_all_of_it_is_done() -> None:
    Longest.asked.clear()
    group, gateway = await play(Longest, "a", "three", "bb")
    rewards = {episode.messages[-1]["content"]: episode.reward for episode in group.episodes}
    assert rewards == {"a": 0.0, "three": 1.0, "bb": 0.0}
    assert Longest.asked == [3]
    assert group.scored_together
    by_id = {session.id: session for session in gateway.sessions}
    for episode in group.episodes:
        session = by_id[episode.session_id]
        assert (session.final_reward, session.components) == (episode.reward, {"env": 0.1, "group": episode.reward})


async def test_an_episode_that_a_failure_ended_keeps_its_missing_reward() -> None:
    """Invariant 6; and case 35: its siblings are scored all the same."""
    group, _ = await play(Longest, "crash", "three")
    assert sorted((episode.stop_reason.value, episode.reward) for episode in group.episodes) == [
        ("done", 1.0), ("env_error", None),
    ]  # fmt: skip


async def test_the_hook_may_be_async_and_say_that_rewards_are_missing() -> None:
    group, _ = await play(LongestAsync, "a", "b")
    assert [(episode.reward, episode.error) for episode in group.episodes] == [(None, None)] * 2


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (LookupError("no judge"), "score_group raised LookupError: no judge"),
        ([1.0], "gave 1 rewards for 2 episodes; give one each"),
        (5, "gave a int for 2 episodes"),
        ([1.0, math.nan], "gave the reward nan"),
        ([1.0, "x"], "gave a reward of type str"),
    ],
)
async def test_a_hook_that_fails_makes_every_reward_missing_and_is_named(
    outcome: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "outcome", outcome)
    group, gateway = await play(Failing, "a", "b")
    assert [episode.reward for episode in group.episodes] == [None, None]
    assert all(said in (episode.error or "") for episode in group.episodes)
    assert [session.final_reward for session in gateway.sessions] == [None, None]


async def test_a_hook_that_hangs_ends_in_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Says):
        @classmethod
        async def score_group(cls, episodes: Any) -> Any:
            await asyncio.Event().wait()

    monkeypatch.setitem(globals(), "Slow", Slow)
    gateway = ScriptedGateway(lambda messages: "x")
    config = RolloutConfig(env_timeout_s=0.2)
    worker = RolloutWorker(config, "unused", "unused", gateway=gateway)
    group = await worker.run_group("g", Task(id="t", env_id=f"{__name__}:Slow"), size=1, version=0)
    assert group.episodes[0].reward is None
    assert "took longer than 0.2 s" in (group.episodes[0].error or "")
    await worker.close()


async def test_a_reward_that_cannot_be_posted_is_missing() -> None:
    class Forgetful(ScriptedGateway):
        async def set_reward(self, session_id: str, reward: Any, components: Any) -> None:
            raise GatewayError("no such session")

    group, _ = await play(Longest, "a", "bb", gateway=Forgetful(lambda messages: "same"))
    assert [(episode.reward, episode.error) for episode in group.episodes] == [(None, "no such session")] * 2
