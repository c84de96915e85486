"""The scorer: services and environment combine by weight, and what is missing stays missing."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from reward_server import answering, serving

from agentrl.errors import RewardError
from agentrl.reward import client
from agentrl.reward.config import GateConfig, RewardConfig, ServiceConfig
from agentrl.reward.scorer import FailureShare, Scorer
from agentrl.types import Episode, StopReason, Task

TASK = Task(id="t", env_id="e", seed=3, options={"level": 2})


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BACKOFF_S", 0.0)


def episode(session_id: str, text: str = "yes", reward: float | None = 0.0, stop: str = "done") -> Episode:
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
    return Episode(
        session_id=session_id, task=TASK, stop_reason=StopReason(stop), reward=reward, turns=1, messages=talk
    )


def config(url: str, **settings: Any) -> RewardConfig:
    service = ServiceConfig(name="judge", url=url, max_attempts=1, batch_wait_s=0.0, weight=settings.pop("weight", 1.0))
    return RewardConfig(services=(service,), **settings)


async def test_a_service_sees_the_whole_episode() -> None:
    async with serving(answering(lambda item: {"reward": 1.0})) as server:
        scorer = Scorer(config(server.url))
        await scorer.score([episode("s1", "yes", reward=0.5)])
        (item,) = server.bodies[0]["items"]
        assert item == {
            "id": "s1",
            "task": {"id": "t", "env_id": "e", "seed": 3, "options": {"level": 2}, "split": "train", "source": ""},
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}],
            "text": "yes",
            "reward_so_far": 0.5,
            "metadata": {"stop_reason": "done", "turns": 1},
        }
        await scorer.close()


async def test_episodes_are_scored_by_id_and_failed_ones_are_not_asked_for() -> None:
    async with serving(answering(lambda item: {"reward": 1.0 if item["text"] == "yes" else -1.0})) as server:
        scorer = Scorer(config(server.url, env_weight=0.0))
        rewards = await scorer.score(
            [
                episode("a", "yes"),
                episode("b", "no"),
                episode("c", "yes", stop="policy_error", reward=None),
                episode("d", "yes", stop="env_timeout", reward=None),
                episode("", "yes", stop="policy_error", reward=None),
            ]
        )
        assert {name: reward.value for name, reward in rewards.items()} == {"a": 1.0, "b": -1.0}
        assert [item["id"] for item in server.bodies[0]["items"]] == ["a", "b"]
        await scorer.close()


async def test_without_services_the_environments_reward_is_the_reward() -> None:
    scorer = Scorer(RewardConfig())
    rewards = await scorer.score([episode("a", reward=0.25), episode("b", reward=None)])
    assert [rewards[name].value for name in "ab"] == [0.25, None]
    await scorer.close()


def failing_for(*ids: str) -> Any:
    return answering(lambda item: {"reward": None, "error": "down"} if item["id"] in ids else {"reward": 1.0})


async def test_a_failed_score_is_missing_and_counted_and_its_neighbours_count() -> None:
    """Case 29."""
    async with serving(failing_for("b")) as server:
        scorer = Scorer(config(server.url, env_weight=0.0))
        rewards = await scorer.score([episode(name) for name in "abcd"])
        assert [rewards[name].value for name in "abcd"] == [1.0, None, 1.0, 1.0]
        assert scorer.failures == {"judge": 1}
        await scorer.close()


async def test_on_error_fail_ends_the_run_with_the_first_failure() -> None:
    async with serving(failing_for("b")) as server:
        scorer = Scorer(config(server.url, on_error="fail"))
        with pytest.raises(RewardError, match="judge: down; the run ends because"):
            await scorer.score([episode("a"), episode("b")])
        await scorer.close()


async def test_too_large_a_share_of_failures_ends_the_run() -> None:
    """Case 29: 20 of 32 are more than half."""
    async with serving(failing_for(*(f"e{i}" for i in range(20)))) as server:
        scorer = Scorer(config(server.url))
        await scorer.score([episode(f"e{i}") for i in range(31)])
        with pytest.raises(RewardError, match="judge failed for 62% of its last scores"):
            await scorer.score([episode("e31")])
        await scorer.close()


async def test_a_service_without_weight_may_fail() -> None:
    async with serving(failing_for(*(f"e{i}" for i in range(40)))) as server:
        scorer = Scorer(config(server.url, weight=0.0, on_error="fail"))
        rewards = await scorer.score([episode(f"e{i}", reward=1.0) for i in range(40)])
        assert {reward.value for reward in rewards.values()} == {1.0}
        await scorer.close()


@pytest.mark.parametrize("gate", ["judge", "judge.safe"])
async def test_a_service_without_weight_at_which_a_gate_looks_may_not(gate: str) -> None:
    """Without it no reward can be had: its failures would leave every episode without one, unnoticed."""
    async with serving(failing_for(*(f"e{i}" for i in range(40)))) as server:
        gates = (GateConfig(part=gate, at_least=1.0),)
        scorer = Scorer(config(server.url, weight=0.0, gates=gates))
        with pytest.raises(RewardError, match="judge failed for 100% of its last scores"):
            await scorer.score([episode(f"e{i}", reward=1.0) for i in range(40)])
        await scorer.close()


async def test_a_service_that_compares_is_given_the_ended_episodes_of_a_group_in_one_request() -> None:
    """Case 28 for groups: the longest answer wins, whatever the batch size is."""

    async def ranked(body: dict[str, Any]) -> web.Response:
        best = max(body["items"], key=lambda item: len(item["text"]))["id"]
        results = [{"id": item["id"], "reward": float(item["id"] == best)} for item in body["items"]]
        return web.json_response({"results": results})

    async with serving(ranked) as server:
        service = ServiceConfig(name="rank", url=server.url, scope="group", batch_size=2)
        scorer = Scorer(RewardConfig(services=(service,), env_weight=0.0))
        group = [episode("a", "long"), episode("b", "longest"), episode("c", "far too long", stop="policy_error")]
        found = await scorer.score([*group, episode("d", "")], group_id="000007-t")
        assert {name: reward.value for name, reward in found.items()} == {"a": 0.0, "b": 1.0, "d": 0.0}
        (body,) = server.bodies
        assert [item["id"] for item in body["items"]] == ["a", "b", "d"]
        assert {item["metadata"]["group_id"] for item in body["items"]} == {"000007-t"}
        await scorer.close()


@given(st.lists(st.booleans()), st.floats(0, 1))
def test_the_failure_share_is_that_of_the_last_256(failed: list[bool], limit: float) -> None:
    share = FailureShare(limit)
    for one in failed:
        share.add(one)
    recent = failed[-256:]
    assert share.share == (sum(recent) / len(recent) if recent else 0.0)
    assert share.too_high == (len(recent) >= 32 and share.share > limit)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"env_weight": 0.0}, "nothing can be learned"),
        ({"services": [{"name": "env", "url": "http://h"}]}, "called 'env'"),
        ({"services": [{"name": "a", "url": "h"}]}, "looks like http://127.0.0.1:9000"),
        ({"services": [{"name": "a"}]}, "give its url, or the urls"),
        ({"services": [{"name": "a", "url": "http://h", "urls": ["http://i"]}]}, "give its url, or the urls"),
        ({"services": [{"name": "a", "url": "http://user:pw@h"}]}, "without a user or password"),
        ({"services": [{"name": "a", "url": "http://h", "bounds": [1, 0]}]}, "give the least first"),
        ({"functions": [{"name": "env", "function": "m:f"}]}, "called 'env'"),
        ({"gates": [{"part": "style", "at_least": 1}]}, "a gate needs 'style', and the parts are env"),
        ({"clip": [1.0, 1.0]}, "clip is"),
        ({"overlong": {"limit": 10, "buffer": 20}}, "overlong.buffer = 20 is more than"),
        ({"services": [{"name": "a", "url": "http://h", "wieght": 1}]}, "wieght"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RewardConfig.model_validate(settings)
