"""What checkpoints are ranked by: means since the last one, a missing reward left out."""

from __future__ import annotations

import pytest

from agentrl.train.scores import RunningScores


def test_all_steps_since_the_last_take_count_by_trajectory():
    scores = RunningScores(success_reward=1.0)
    scores.add([1.0, 0.0, 0.5])
    scores.add([1.0])
    assert scores.take() == {"reward": pytest.approx(0.625), "success": 0.5}
    scores.add([0.0])
    assert scores.take() == {"reward": 0.0, "success": 0.0}


def test_a_missing_reward_is_left_out_and_nothing_gives_nothing():
    scores = RunningScores(success_reward=1.0)
    scores.add([None])
    assert scores.take() == {}
    scores.add([None, 1.0])
    assert scores.take() == {"reward": 1.0, "success": 1.0}
