"""The place of advantages that need a model's opinion: the trainer makes them, in the step, over the trained tokens.

`gae` wants a critic's values (`trainer.critic.enabled = true`, `algorithms/advantages/gae.py`), `distillation` a
teacher's logprobs (`trainer.teacher.model`, `algorithms/distillation.py`). What the driver sends along is 0.
"""

from __future__ import annotations

from agentrl.train.advantage import CallAdvantages, step_estimator
from agentrl_trainers.algorithms.advantages.whitening import Groups


@step_estimator(zeros_are_flat=False, by_trainer=True)
def left_to_the_trainer(groups: Groups) -> list[list[CallAdvantages]]:
    """0.0 for every call; None where the reward is missing."""
    return [[attempt.of_all_calls(None if attempt.reward is None else 0.0) for attempt in group] for group in groups]
