"""The Bradley-Terry loss of preferences: how surprising it is, by the scores, that the chosen answer was chosen.

    P(chosen over rejected) = sigmoid(score_chosen - score_rejected)
    loss_p                  = -log of it

Sources: Bradley and Terry, "Rank Analysis of Incomplete Block Designs", Biometrika 39, 1952; as the loss of a reward
model: Ouyang et al., InstructGPT, arXiv:2203.02155, equation 1 (with one pair a prompt).
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid


def bradley_terry(chosen_P: torch.Tensor, rejected_P: torch.Tensor) -> torch.Tensor:
    """Loss `[P]` of P pairs from their scores `[P]`; P may be 0. Only the difference of the two counts."""
    return -logsigmoid(chosen_P - rejected_P)
