"""REINFORCE++-baseline: less the group's mean, then whitened over all trained tokens of the step.

    A'_i = r_i - mean(r of the group)     A_i = (A'_i - mean) / std      mean and std over the step's trained tokens

Unlike GRPO's, its spread is that of the step, so no group is blown up for being nearly unanimous. Source: Hu et al.,
"REINFORCE++", arXiv:2501.03262 (the variant for several samples a prompt).
"""

from __future__ import annotations

from agentrl.train.advantage import CallAdvantages, step_estimator
from agentrl_trainers.algorithms.advantages.dr_grpo import centred_advantages
from agentrl_trainers.algorithms.advantages.whitening import Groups, whiten


@step_estimator()
def group_mean_batch_whitened(groups: Groups) -> list[list[CallAdvantages]]:
    """Advantages of every call of every attempt of a step; None where the reward is missing, which shifts nobody.

    A group without signal that is kept gets the same advantage throughout: less the tokens' mean, which need not be 0.
    """
    centred = []
    for group in groups:
        advantages_G = centred_advantages([attempt.reward for attempt in group])
        centred.append([one.of_all_calls(value) for one, value in zip(group, advantages_G, strict=True)])
    return whiten(centred, groups)
