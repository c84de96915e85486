"""Several speakers in one environment: a session, a conversation, tools and a reward for each of them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import agentrl
from agentrl.errors import GatewayError
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.episode import run_episode
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.memory import MemoryStore
from agentrl.train.batch import ScoredGroup
from agentrl.types import Episode, Limits, Sampling, Task

TASK = Task(id="t", env_id="test/Debate", seed=1)
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


class Debate(agentrl.Env):
    """The writer answers, the critic judges the answer, the writer may answer again. What it does next is a script."""

    roles: ClassVar[Any] = {
        "writer": agentrl.Role(system="You write."),
        "critic": agentrl.Role(train=False, system="You judge."),
    }
    says_next: Any = "critic"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return [agentrl.user("Write a line.")], {}

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [TOOL] if getattr(self, "turn", 0) == 1 else []

    def step(self, action: agentrl.Message) -> Any:
        self.turn += 1
        if self.turn == 1:
            return [agentrl.user(f"Judge: {action.text}")], 0.0, False, False, {"role": self.says_next}
        if self.turn == 2:
            return [agentrl.user(f"They say: {action.text}")], 0.25, False, False, {"role": "writer"}
        return [], 1.0, True, False, {"role_rewards": {"critic": 0.5}}


def policy(messages: list[agentrl.Message]) -> str:
    return {"Write a line.": "roses", "Judge: roses": "too short", "They say: too short": "roses are red"}[
        messages[-1].text
    ]


async def play(env: agentrl.Env, gateway: ScriptedGateway, **limits: Any) -> Episode:
    return await run_episode(
        lambda: env, TASK, gateway, limits=Limits(**limits), sampling=Sampling(), metadata={"group_id": "g"},
        roles=env.roles,
    )  # fmt: skip


def said(messages: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


async def test_each_role_has_its_own_conversation_with_its_own_system_prompt() -> None:
    gateway = ScriptedGateway(policy)
    episode = await play(Debate(), gateway)
    (critic,) = episode.others
    assert said(episode.messages) == [
        ("system", "You write."), ("user", "Write a line."), ("assistant", "roses"),
        ("user", "They say: too short"), ("assistant", "roses are red"),
    ]  # fmt: skip
    assert said(critic.messages) == [("system", "You judge."), ("user", "Judge: roses"), ("assistant", "too short")]
    assert (episode.turns, critic.turns) == (2, 1)


async def test_each_role_has_its_own_session_and_the_reward_of_its_own_steps() -> None:
    """The writer's steps give 0 and 1, the critic's gives 0.25 and the end 0.5 on top."""
    gateway = ScriptedGateway(policy)
    episode = await play(Debate(), gateway)
    writer, critic = gateway.sessions
    assert (episode.reward, episode.others[0].reward) == (1.0, 0.75)
    assert (writer.final_reward, critic.final_reward) == (1.0, 0.75)
    assert (writer.request.metadata, critic.request.metadata) == (
        {"group_id": "g", "role": "writer"}, {"group_id": "g", "role": "critic"},
    )  # fmt: skip
    assert list(writer.call_rewards.values()) == [0.0, 1.0]
    assert list(critic.call_rewards.values()) == [0.25]
    assert (writer.stop_reason, critic.stop_reason) == ("done", "done")


async def test_a_role_that_is_only_sampled_has_a_session_of_evaluation_that_survives_new_weights() -> None:
    gateway = ScriptedGateway(policy)
    episode = await play(Debate(), gateway)
    assert [(s.request.mode, s.request.across_swaps) for s in gateway.sessions] == [("train", False), ("eval", True)]
    assert (episode.trained, episode.others[0].trained) == (True, False)


async def test_tools_are_read_when_a_role_first_speaks() -> None:
    gateway = ScriptedGateway(policy)
    await play(Debate(), gateway)
    writer, critic = gateway.sessions
    assert (writer.tools, critic.tools) == ([], [TOOL])


async def test_limits_are_those_of_the_whole_episode() -> None:
    gateway = ScriptedGateway(policy)
    episode = await play(Debate(), gateway, max_calls=2)
    assert (episode.stop_reason, episode.turns, episode.others[0].turns) == ("max_turns", 1, 1)
    assert (episode.reward, episode.others[0].reward) == (0.0, 0.25)


async def test_a_step_that_names_nobody_leaves_the_word_where_it_was() -> None:
    env = Debate()
    env.says_next = None
    gateway = ScriptedGateway(lambda messages: "x")
    await play(env, gateway)
    assert [len(session.prompts) for session in gateway.sessions] == [3, 0]


async def test_a_role_that_is_not_there_is_named() -> None:
    env = Debate()
    env.says_next = "judge"
    episode = await play(env, ScriptedGateway(policy))
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert episode.error == "test/Debate: info['role'] names 'judge'; its roles are writer, critic"


async def test_a_session_that_cannot_be_opened_leaves_none_open() -> None:
    class Full(ScriptedGateway):
        async def open_session(self, request: Any) -> Any:
            if self.sessions:
                raise GatewayError("no room")
            return await super().open_session(request)

    gateway = Full(policy)
    episode = await play(Debate(), gateway)
    assert (episode.stop_reason, episode.others) == ("policy_error", [])
    assert [session.stop_reason for session in gateway.sessions] == ["policy_error"]


async def test_one_role_whose_reward_cannot_be_posted_leaves_no_reward_and_no_session_open() -> None:
    class Forgetful(ScriptedGateway):
        async def open_session(self, request: Any) -> Any:
            session = await super().open_session(request)
            if request.metadata["role"] == "critic":

                async def reward(*args: Any) -> None:
                    raise GatewayError("no such session")

                session.reward = reward  # type: ignore[method-assign]
            return session

    gateway = Forgetful(policy)
    episode = await play(Debate(), gateway)
    assert (episode.stop_reason, episode.reward, episode.others[0].reward) == ("policy_error", None, None)
    assert [session.stop_reason for session in gateway.sessions] == ["policy_error", "policy_error"]


@pytest.mark.parametrize("rewards", [5, {"critic": "much"}, {"judge": 1.0}])
async def test_role_rewards_that_are_none_are_the_environments_fault(rewards: Any) -> None:
    class Wrong(Debate):
        def step(self, action: agentrl.Message) -> Any:
            return [], 1.0, True, False, {"role_rewards": rewards}

    episode = await play(Wrong(), ScriptedGateway(policy))
    assert (episode.stop_reason, episode.reward) == ("env_error", None)


async def test_without_roles_an_info_may_say_what_it_likes() -> None:
    class Alone(Debate):
        roles: ClassVar[Any] = {}

        def step(self, action: agentrl.Message) -> Any:
            return [], 1.0, True, False, {"role": "critic"}

    assert (await play(Alone(), ScriptedGateway(policy))).reward == 1.0


async def test_a_group_has_a_place_for_every_role_of_every_attempt() -> None:
    gateway = ScriptedGateway(policy)
    worker = RolloutWorker(RolloutConfig(), "unused", "unused", gateway=gateway)
    group = await worker.run_group("g", Task(id="t", env_id=f"{__name__}:Debate"), size=2, version=0)
    assert [(episode.role, episode.trained) for episode in group.episodes] == [("writer", True), ("critic", False)] * 2
    assert all(episode.others == [] for episode in group.episodes)
    assert len({episode.session_id for episode in group.episodes}) == 4
    assert [episode.role for episode in group.attempts] == ["writer", "writer"]
    assert ScoredGroup(group, []).size_of("writer") == 2
    assert ScoredGroup(group, []).size_of("critic") == 0
    assert MemoryStore().count() == 0
    await worker.close()


async def test_roles_are_the_same_where_the_environment_lives_in_a_process_of_its_own() -> None:
    gateway = ScriptedGateway(policy)
    config = RolloutConfig(isolation="process", episode_retries=0)
    worker = RolloutWorker(config, "unused", "unused", gateway=gateway)
    try:
        group = await worker.run_group("g", Task(id="t", env_id=f"{__file__}:Debate"), size=1, version=0)
    finally:
        await worker.close()
    assert [(episode.role, episode.reward) for episode in group.episodes] == [("writer", 1.0), ("critic", 0.75)]
