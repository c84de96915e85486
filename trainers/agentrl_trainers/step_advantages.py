"""From what is known of a step's trained tokens to the advantages that the updates use, once, in float64."""

from __future__ import annotations

import numpy as np
import torch

from agentrl_trainers.algorithms.advantages.gae import Vector, gae
from agentrl_trainers.algorithms.distillation import distillation
from agentrl_trainers.algorithms.kl.in_reward import from_here_on, penalties
from agentrl_trainers.algorithms.whiten import whiten
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.step_tokens import StepTokens


def step_advantages(tokens: StepTokens, config: TrainerConfig, kl_coefficient: float) -> dict[str, torch.Tensor]:
    """`[A]` float32 each, to replace those of `tokens.vectors`: "advantages", and "returns" with a critic.

    Reads "advantages", "rewards" and "behaviour", and of "values" (a critic's), "reference" and "teacher" those that
    are there. A critic's advantages replace the batch's. A divergence in the reward is taken from the rewards that a
    critic sees; without a critic, from the advantages. A teacher's opinion replaces all of it or comes on top.
    """
    known = {name: vector.numpy().astype(np.float64) for name, vector in tokens.vectors.items()}
    row_A = tokens.row_A().numpy()
    penalties_A = np.zeros(tokens.num_tokens)
    if config.kl.where == "reward" and "reference" in known:
        penalties_A = penalties(known["behaviour"], known["reference"], kl_coefficient)
    found: dict[str, Vector] = {}
    if "values" in known:
        estimate = gae(
            known["rewards"] - penalties_A, known["values"], row_A, gamma=config.critic.gamma, lam=config.critic.lam
        )
        found["returns"] = estimate.returns_A
        found["advantages"] = whiten(estimate.advantages_A) if config.critic.whiten else estimate.advantages_A
    else:
        found["advantages"] = known["advantages"] - from_here_on(penalties_A, row_A)
    if "teacher" in known:
        opinion_A = distillation(known["teacher"], known["behaviour"], config.teacher.coefficient)
        found["advantages"] = opinion_A + (0.0 if config.teacher.replace else found["advantages"])
    return {name: torch.from_numpy(vector).float() for name, vector in found.items()}
