"""The learning rate of each step: linear warm-up, then a decay over the rest of the run.

Its unit is the step, not the update: all updates of a step have the same rate.
"""

from __future__ import annotations

import math

from agentrl_trainers.config import TrainerConfig


def learning_rate(config: TrainerConfig, step: int, total_steps: int) -> float:
    """Rate that the updates of step `step` (from 0) of a run of `total_steps` are made with.

    Step `w` of `warmup_steps` W has `w/W` of the peak, counted from 1: the first one moves the weights, number W is
    at the peak. The last step of the run has `final_lr_fraction`, and so has any after it.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.decay == "constant":
        return config.learning_rate
    peak = max(0, config.warmup_steps - 1)
    done = min(1.0, (step - peak) / max(1, total_steps - 1 - peak))
    left = 1.0 - done if config.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate * (config.final_lr_fraction + (1.0 - config.final_lr_fraction) * left)
