"""What is never held: the logits of all tokens, and with recomputation the insides of all layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_builders import VOCAB, mixed_batch, save_tiny_model

from agentrl_trainers.algorithms.aggregation.denominators import denominators
from agentrl_trainers.collate import collate
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.model import load_policy, prepare
from agentrl_trainers.objective import Objective
from agentrl_trainers.policy_loss import policy_loss

CHUNK = 5


class Tallest(TorchDispatchMode):
    """The most rows of any tensor that an operation makes whose last dimension is the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1 and tensor.shape[-1] == VOCAB:
                self.rows = max(self.rows, tensor.numel() // VOCAB)
        return made


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def trained_tokens() -> int:
    return sum(sum(one.loss_mask) for one in mixed_batch().rows)


def rows_of_logits(model_dir: Path, chunk: int, **config: Any) -> int:
    """Of one forward and backward pass over the packed batch."""
    policy = load_policy(model_dir, logit_chunk=chunk)
    rows = mixed_batch().rows
    objective = Objective.of(TrainerConfig.model_validate(config))
    with Tallest() as seen:
        policy_loss(policy, collate(rows, packed=True), denominators(rows), objective).loss.backward()
    return seen.rows


@pytest.mark.parametrize("entropy_bonus", [0.0, 0.1])
def test_logits_of_more_than_one_chunk_never_exist(model_dir: Path, entropy_bonus: float) -> None:
    """Neither forwards nor backwards, the entropy's gradient included: the head's own gradient is [hidden, vocab]."""
    hidden = 32
    assert trained_tokens() > hidden  # so that a whole [T, vocab] would show
    assert rows_of_logits(model_dir, CHUNK, entropy_bonus=entropy_bonus) == hidden
    assert rows_of_logits(model_dir, 1000, entropy_bonus=entropy_bonus) == trained_tokens()


def held_by_graph(model_dir: Path, *, recompute: bool) -> int:
    """Bytes that the forward pass keeps for the backward pass, weights left out."""
    policy = load_policy(model_dir, logit_chunk=CHUNK)
    config = TrainerConfig.model_validate({"memory": {"activation_checkpointing": recompute}})
    prepare(policy.lm, config)
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}
    held: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = mixed_batch().rows
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        share = policy_loss(policy, collate(rows, packed=True), denominators(rows), Objective.of(config))
    assert share.loss.requires_grad
    return sum(held.values())


def test_with_recomputation_the_forward_pass_keeps_a_fraction(model_dir: Path) -> None:
    """Each of the two layers keeps its input [80, 32] instead of some twenty tensors of that size and more."""
    assert held_by_graph(model_dir, recompute=True) < 0.3 * held_by_graph(model_dir, recompute=False)
