"""The judge asks a run's own gateway: sessions of mode `eval`, sealed, and nothing of them for the trainer."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_builders import END, MemorySink, Served, always, ids, serving

from agentrl.messages import assistant, user
from agentrl.reward.protocol import Item
from agentrl.reward.service import GATEWAY_KEY, GATEWAY_URL
from agentrl_rewards.judge import model as judge_model
from agentrl_rewards.judge.service import Judge


def judge_of(served: Served, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """As a run starts it: what it needs is in its environment."""
    monkeypatch.setenv(GATEWAY_URL, served.server.url)
    monkeypatch.setenv(GATEWAY_KEY, served.server.admin_key)
    return Judge(structured=False, max_tokens=64)


def item() -> Item:
    talk: list[dict[str, Any]] = [user("What is 6*7?"), assistant("42")]
    return Item(id="a", text="42", messages=talk)


async def test_each_question_is_a_sealed_session_that_is_not_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = MemorySink()
    async with serving(always([*ids('{"score": 7}'), END]), sink=sink) as served:
        judge = judge_of(served, monkeypatch)
        (score,) = await judge.score([item()])
        await judge.close()
        assert score.reward == 0.7
        (trajectory,) = sink.saved.values()
        assert (trajectory.mode, trajectory.metadata["purpose"]) == ("eval", "judge")
        assert (trajectory.stop_reason, len(trajectory.calls), trajectory.reward) == ("done", 1, None)


async def test_a_verdict_that_is_none_leaves_the_reward_missing_and_the_session_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = MemorySink()
    async with serving(always([*ids("well"), END]), sink=sink) as served:
        judge = judge_of(served, monkeypatch)
        (score,) = await judge.score([item()])
        await judge.close()
        assert (score.reward, "no JSON object" in str(score.error)) == (None, True)
        assert len(sink.saved) == 1


async def test_a_session_that_cannot_be_finished_costs_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_model, "backoff", lambda state: 0.0)
    async with serving(always([*ids('{"score": 7}'), END])) as served:
        judge = judge_of(served, monkeypatch)
        post = judge_model.GatewayModel._post

        async def no_finishing(self: judge_model.GatewayModel, url: str, body: Any, key: str | None) -> Any:
            return await post(self, url.replace("/finish", "/nowhere"), body, key)

        monkeypatch.setattr(judge_model.GatewayModel, "_post", no_finishing)
        (score,) = await judge.score([item()])
        await judge.close()
    assert score.reward == 0.7
