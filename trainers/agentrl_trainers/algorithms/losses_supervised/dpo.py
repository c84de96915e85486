"""Direct preference optimisation: a policy trained as the reward model that it is secretly.

    reward(y) = beta * (log policy(y | x) - log reference(y | x))
    loss_p    = -log sigmoid(reward(chosen) - reward(rejected))

With label smoothing e, a pair is taken to be the wrong way round with that probability:

    loss_p    = -(1 - e) log sigmoid(margin) - e log sigmoid(-margin)

Sources: Rafailov et al., "Direct Preference Optimization", arXiv:2305.18290, equation 7; smoothing ("conservative
DPO"): Mitchell, "A note on DPO with noisy preferences", 2023, equation 3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid


class DpoLoss(NamedTuple):
    loss_P: torch.Tensor  # with gradient
    chosen_rewards_P: torch.Tensor  # without
    rejected_rewards_P: torch.Tensor  # without


def dpo(
    chosen_P: torch.Tensor,
    rejected_P: torch.Tensor,
    *,
    reference_chosen_P: torch.Tensor,
    reference_rejected_P: torch.Tensor,
    beta: float,
    label_smoothing: float = 0.0,
) -> DpoLoss:
    """Of P pairs, P may be 0. Arguments are the logprobs `[P]` of whole answers: sums over their tokens, in nats."""
    chosen_rewards_P = beta * (chosen_P - reference_chosen_P)
    rejected_rewards_P = beta * (rejected_P - reference_rejected_P)
    margin_P = chosen_rewards_P - rejected_rewards_P
    loss_P = -(1.0 - label_smoothing) * logsigmoid(margin_P) - label_smoothing * logsigmoid(-margin_P)
    return DpoLoss(loss_P, chosen_rewards_P.detach(), rejected_rewards_P.detach())
