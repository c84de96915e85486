"""A model that is asked and never trained: the reference of a divergence, the teacher of a distillation."""

from __future__ import annotations

from pathlib import Path

import torch

from agentrl.errors import TrainerError
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.layout import StepLayout
from agentrl_trainers.model import load_policy
from agentrl_trainers.policy_loss import forward
from agentrl_trainers.step_tokens import StepTokens


class FrozenModel:
    """A whole copy on every rank, without optimizer and without gradient."""

    def __init__(self, path: str | Path, config: TrainerConfig, layout: StepLayout, *, vocab_size: int) -> None:
        """Raises TrainerError when the model's vocabulary is another than the policy's."""
        self._layout = layout
        self._model = load_policy(
            path, dtype=config.dtype, attention=config.attention, logit_chunk=config.logit_chunk_tokens
        )
        found = int(self._model.lm.config.vocab_size)
        if found != vocab_size:
            raise TrainerError(
                f"the model at {path} has {found} token ids and the policy {vocab_size}; "
                "a reference or teacher needs the policy's own tokenizer"
            )
        self._model.token_share = layout.split.tokens
        self._model.eval().requires_grad_(False).to(layout.device)

    def logprobs(self, tokens: StepTokens) -> torch.Tensor:
        """`[A]` logprobs of the step's trained tokens. Collective."""
        return self._layout.of_all_tokens(tokens, lambda batch: forward(self._model, batch)[0])
