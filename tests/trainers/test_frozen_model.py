"""A reference or a teacher is asked, never trained, and speaks the policy's vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_builders import VOCAB, save_tiny_model

from agentrl.errors import TrainerError
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.frozen import FrozenModel
from agentrl_trainers.deepspeed.layout import StepLayout


def test_another_vocabulary_is_refused_with_both_sizes(tmp_path: Path) -> None:
    """Token ids of one model mean something else to the other: its logprobs would be noise."""
    config = TrainerConfig()
    layout = StepLayout(config, 32, torch.device("cpu"))
    with pytest.raises(TrainerError, match=rf"has {VOCAB} token ids and the policy {VOCAB + 1}"):
        FrozenModel(save_tiny_model(tmp_path), config, layout, vocab_size=VOCAB + 1)
