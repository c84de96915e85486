"""Group advantages against numbers worked by hand. Case numbers are those of the list of reported faults."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import TrainerError
from agentrl.types import Episode, Group, StopReason, Task
from agentrl_trainers.algorithms.advantages.grpo import group_advantages

rewards_and_gaps = st.lists(st.none() | st.floats(-100, 100), max_size=12)


class TestGroupAdvantages:
    def test_a_missing_reward_stays_missing_and_shifts_nobody(self) -> None:
        """Case 18: mean 1/3, sample std 0.57735."""
        advantages = group_advantages([1.0, None, 0.0, 0.0])
        assert advantages[1] is None
        assert [advantages[0], *advantages[2:]] == pytest.approx([1.1547, -0.5774, -0.5774], abs=5e-5)

    @pytest.mark.parametrize(
        ("rewards", "expected"),
        [([], []), ([0.7], [0.0]), ([None, 0.7, None], [None, 0.0, None]), ([None, None], [None, None])],
    )
    def test_a_group_of_one_or_none_has_no_baseline(self, rewards: list[float | None], expected: list[object]) -> None:
        """Case 18."""
        assert group_advantages(rewards) == expected

    @pytest.mark.parametrize("reward", [0.1, 0.7, 1e6, -0.3, 0.0])
    def test_equal_rewards_give_exactly_zero(self, reward: float) -> None:
        """Case 27: the float32 std of eight 0.7 is 6e-8, so a test for 0 would divide by it."""
        assert group_advantages([reward] * 8) == [0.0] * 8
        assert group_advantages(torch.full((8,), reward).tolist()) == [0.0] * 8

    def test_rewards_that_differ_by_rounding_are_equal(self) -> None:
        """Case 27: 0.1 + 0.2 is 0.30000000000000004, and a float32 0.7 is off by 1e-8."""
        assert group_advantages([0.3, 0.1 + 0.2, torch.tensor(0.3).item()]) == [0.0] * 3

    def test_one_odd_reward_keeps_the_whole_group(self) -> None:
        """Case 27: [0, 0.95 x 7] has mean 0.83125 and sample std 0.335876."""
        expected = [-2.474874] + [0.353553] * 7
        assert group_advantages([0.0] + [0.95] * 7) == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("reward", [math.nan, math.inf])
    def test_a_reward_that_is_no_number_is_refused_by_index(self, reward: float) -> None:
        with pytest.raises(TrainerError, match="reward 2 of a group of 3"):
            group_advantages([1.0, None, reward])

    @given(rewards_and_gaps)
    def test_advantages_are_finite_centred_and_aligned(self, rewards: list[float | None]) -> None:
        advantages = group_advantages(rewards)
        assert [value is None for value in advantages] == [value is None for value in rewards]
        known = [value for value in advantages if value is not None]
        assert all(math.isfinite(value) for value in known)
        assert sum(known) == pytest.approx(0.0, abs=1e-6)

    def test_delivery_order_changes_no_episodes_advantage(self) -> None:
        """Case 21: groups A (1, 0, 0, 0) and B (1, 1, 1, 0), interleaved; std is 0.5 in both."""
        rewards = {f"A{i}": float(i == 0) for i in range(4)} | {f"B{i}": float(i != 3) for i in range(4)}
        for seed in range(5):
            ids = sorted(rewards)
            random.Random(seed).shuffle(ids)
            groups = {name: Group(group_id=name, task=Task(id=name, env_id="e", seed=0)) for name in "AB"}
            for key in ids:
                groups[key[0]].episodes.append(
                    Episode(session_id=key, task=groups[key[0]].task, stop_reason=StopReason.DONE, reward=rewards[key])
                )
            by_id = {
                episode.session_id: advantage
                for group in groups.values()
                for episode, advantage in zip(
                    group.episodes, group_advantages([episode.reward for episode in group.episodes]), strict=True
                )
            }
            assert by_id == pytest.approx(
                {"A0": 1.5, "A1": -0.5, "A2": -0.5, "A3": -0.5, "B0": 0.5, "B1": 0.5, "B2": 0.5, "B3": -1.5}
            )
