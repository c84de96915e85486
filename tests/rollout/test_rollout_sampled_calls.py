"""From the tokens of a tool call to the tool: through engine, gateway and environment, run once or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from gateway_builders import END, MemorySink, ids, letters, says, serving

import agentrl
from agentrl.engine.scripted import Reply
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import RolloutWorker
from agentrl.train.overlong import overlong_reason
from agentrl.types import Episode, Task, Trajectory

NOW = '<tool_call>{"name":"now","arguments":{}}</tool_call>'


class Clock(agentrl.ToolEnv):
    """Its tool takes no arguments."""

    asked: ClassVar[list[str]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return [agentrl.user("What time is it?")], {}

    @agentrl.tool
    def now(self) -> str:
        """The time."""
        Clock.asked.append("now")
        return "noon"

    def score(self, message: agentrl.Message) -> float:
        return float(message.get("content") == "noon")


async def played(*turns: Sequence[int] | Reply, **config: Any) -> tuple[Episode, Trajectory]:
    """An episode against a gateway whose engine samples these turns."""
    Clock.asked.clear()
    sink = MemorySink()
    async with serving(says(*turns), sink=sink) as served:
        worker = RolloutWorker(RolloutConfig(**config), served.server.url, served.server.admin_key)
        (episode,) = await worker.run_episodes([Task(id="t", env_id=f"{__name__}:Clock")], mode="train")
        await worker.close()
    return episode, sink.get(episode.session_id)


async def test_a_tool_without_arguments_runs_once() -> None:
    """Case 37."""
    episode, trajectory = await played([*ids(NOW), END], [*letters("noon"), END])
    assert (Clock.asked, episode.reward, episode.turns) == (["now"], 1.0, 2)
    [call] = trajectory.calls[0].message["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.parametrize("cut", [len(ids(NOW)) - 1, len(ids(NOW)) // 2], ids=["before its end mark", "in the middle"])
async def test_a_call_that_is_cut_off_runs_no_tool_and_the_episode_counts_as_cut(cut: int) -> None:
    """Case 40."""
    episode, trajectory = await played([*ids(NOW), END], max_tokens=cut)
    assert (Clock.asked, episode.reward, episode.turns) == ([], 0.0, 1)
    assert (trajectory.calls[0].token_ids, trajectory.calls[0].finish_reason) == (ids(NOW)[:cut], "length")
    assert overlong_reason(trajectory) == "overlong_length"
