"""Any gymnasium environment is played in words: told, read, and forgiven a few replies that are no action."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from adapter_episode import ADAPTERS, play, said
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Text

import agentrl
from agentrl.env import registry
from agentrl.env.adapters.gym_text import parse_json, parse_named

GYM = f"{ADAPTERS}:GymText"
LAKE: dict[str, Any] = {
    "id": "FrozenLake-v1",
    "kwargs": {"is_slippery": False},
    "actions": ["left", "down", "right", "up"],
}
# S F F F      the only holes are at H: down, down, right, right, down, right leads from S to G.
# F H F H
# F F F H
# H F F G
TO_THE_GOAL = ["down", "down", "I go right.", "Right!", "not up but down", "2"]


class Echo(gymnasium.Env[str, str]):
    """Rewards the word that it says."""

    observation_space = Text(20)
    action_space = Text(8, charset="abcdefgh")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.word = "".join(self.np_random.choice(list("abcdefgh"), size=4))
        return self.word, {"options": options}

    def step(self, action: str) -> Any:
        return "", float(action == self.word), True, False, {"steps": np.int64(1)}


async def test_the_way_to_the_goal_is_worth_1() -> None:
    episode, _ = await play(GYM, list(TO_THE_GOAL), **LAKE)
    assert (episode.stop_reason, episode.reward, episode.turns) == ("done", 1.0, 6)


async def test_a_hole_is_worth_0() -> None:
    episode, _ = await play(GYM, ["right", "down"], **LAKE)
    assert (episode.stop_reason, episode.reward) == ("done", 0.0)


async def test_the_policy_reads_where_it_is_and_what_it_may_say() -> None:
    episode, _ = await play(GYM, ["right", "down"], instructions="Reach G.", **LAKE)
    assert [message["role"] for message in episode.messages[:2]] == ["system", "user"]
    assert said(episode, 0) == "Reach G."
    assert said(episode, 1) == "[S]FFF\nFHFH\nFFFH\nHFFG\nReply with one action: left, down, right, up."
    assert said(episode, 3) == "(Right)\nS[F]FF\nFHFH\nFFFH\nHFFG"


async def test_a_reply_that_is_no_action_is_told_so_and_costs_no_step() -> None:
    episode, _ = await play(GYM, ["hello", *TO_THE_GOAL], **LAKE)
    assert said(episode, 2) == "Error: there is no action in the reply; it is one of left, down, right, up"
    assert (episode.reward, episode.turns) == (1.0, 7)


async def test_too_many_replies_in_a_row_that_are_no_action_truncate_the_episode() -> None:
    episode, _ = await play(GYM, ["hm", "hm", "down", "hm", "hm", "hm"], max_invalid=2, **LAKE)
    assert (episode.stop_reason, episode.reward, episode.turns) == ("truncated", 0.0, 6)


async def test_the_time_limit_of_the_registration_truncates() -> None:
    episode, _ = await play(GYM, lambda messages: "left", max_calls=200, **LAKE)
    assert (episode.stop_reason, episode.turns) == ("truncated", 100)


async def test_a_slippery_lake_is_the_same_under_the_same_seed() -> None:
    first, second = [
        await play(GYM, lambda messages: "right", id="FrozenLake-v1", task=agentrl.Task(id="t", seed=2**40 + 3))
        for _ in range(2)
    ]
    assert first[0].messages == second[0].messages


async def test_numbers_are_observations_and_actions_where_nothing_is_rendered() -> None:
    episode, _ = await play(GYM, ["0"] * 20, id="CartPole-v1")
    opening = said(episode, 0)
    assert opening.startswith("[")
    assert opening.endswith("]\nReply with one action: 0, 1.")
    assert episode.stop_reason == "done"


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("agentrl-test/Echo-v0", entry_point=Echo)
    return "agentrl-test/Echo-v0"


async def test_text_spaces_are_read_and_said_as_they_are(echo: str) -> None:
    episode, _ = await play(GYM, lambda messages: f" {messages[-1].text}\n", id=echo)
    assert (len(said(episode, 0)), episode.reward) == (4, 1.0)


async def test_a_reply_outside_the_text_space_is_told_so(echo: str) -> None:
    episode, _ = await play(GYM, ["xyz!", "aaaa"], id=echo)
    assert said(episode, 2).startswith("Error: the reply is no action of Text(")


def shout(observation: Any, env: Any) -> str:
    return f"{observation}!"


def unshout(text: str, env: Any) -> str:
    return text.rstrip("!")


async def test_describe_and_parse_are_named_in_the_options(echo: str) -> None:
    named = {"describe": f"{__name__}:shout", "parse": f"{__name__}:unshout"}
    episode, _ = await play(GYM, lambda messages: messages[-1].text, id=echo, **named)
    assert (said(episode, 0)[-1], episode.reward) == ("!", 1.0)


def test_the_last_action_that_is_named_is_taken() -> None:
    actions = {"0": 0, "1": 1, "up": 0, "up right": 1}
    assert parse_named("not up: UP RIGHT", actions) == 1
    assert parse_named("1, no, 0.", actions) == 0
    with pytest.raises(ValueError, match="one of up, up right"):
        parse_named("upward 10", actions)


def test_very_many_actions_are_told_by_the_first_and_the_last() -> None:
    with pytest.raises(ValueError, match="it is one of 0, 1, … 499"):
        parse_named("left", {str(action): action for action in range(500)})


def test_json_actions_are_of_their_space() -> None:
    assert parse_json("I think\n[1, 2]", MultiDiscrete([2, 3])).tolist() == [1, 2]
    assert parse_json("[0.5]", Box(0, 1, (1,))).dtype == np.float32
    with pytest.raises(ValueError, match=r"\[1, 5\] is no action of MultiDiscrete"):
        parse_json("[1, 5]", MultiDiscrete([2, 3]))
    with pytest.raises(ValueError, match="has to be JSON"):
        parse_json("left", MultiDiscrete([2, 3]))
    with pytest.raises(ValueError, match="has to be JSON"):
        parse_json("", Box(0, 1, (1,)))


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"id": "NoSuchGame-v0"}, "cannot make 'NoSuchGame-v0'"),
        ({**LAKE, "actions": ["left"]}, "1 names for 4 actions"),
        ({"id": "Pendulum-v1", "actions": ["left"]}, "name the actions of a Discrete space"),
        ({**LAKE, "parse": "unshout"}, "'unshout' is not of the form 'module:name'"),
    ],
)
def test_options_that_cannot_be_are_a_config_error(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(agentrl.ConfigError, match=said):
        registry.make(GYM, **kwargs)


def test_its_spaces_are_chat_messages_and_gymnasium_may_wrap_it() -> None:
    env = gymnasium.wrappers.TimeLimit(registry.make(GYM, **LAKE), 2)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    env.step("left")
    assert env.step("left")[3] is True
    assert isinstance(env.unwrapped.env.action_space, Discrete)
