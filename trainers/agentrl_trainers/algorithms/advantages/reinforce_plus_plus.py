"""REINFORCE++: the reward, whitened over all trained tokens of the step. Groups are not looked at.

    A_i = (r_i - mean) / std              mean and std over the step's trained tokens, each with its episode's reward

The baseline is that of the whole batch, so an episode of an easy task is above it however its siblings fared. Source:
Hu et al., "REINFORCE++", arXiv:2501.03262 (there the whitened reward has the divergence in it).
"""

from __future__ import annotations

from agentrl.train.advantage import CallAdvantages, step_estimator
from agentrl_trainers.algorithms.advantages.whitening import Groups, whiten


@step_estimator(zeros_are_flat=False)
def batch_whitened(groups: Groups) -> list[list[CallAdvantages]]:
    """Advantages of every call of every attempt of a step; None where the reward is missing, which shifts nobody."""
    return whiten([[attempt.of_all_calls(attempt.reward) for attempt in group] for group in groups], groups)
