"""Optimizers by name: one update by hand, who gets weight decay, what Muon takes, and a state that goes on."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from trainer_builders import save_tiny_model

from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.model import PolicyModel, load_policy
from agentrl_trainers.optimizers import by_config


class Tiny(torch.nn.Module):
    """One matrix and one vector, all ones, both with the gradient 2."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
        self.frozen = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
        for parameter in (self.matrix, self.vector):
            parameter.grad = torch.full_like(parameter, 2.0)


def halved(model: torch.nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """An optimizer of the user's own."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=config.learning_rate / 2)


def stepped(**values: object) -> Tiny:
    model = Tiny()
    by_config(model, TrainerConfig.model_validate({"learning_rate": 0.1, **values})).step()
    return model


def test_sgd_moves_by_rate_times_gradient_and_decays_matrices_only() -> None:
    """1 - 0.1 * 2 = 0.8; with decay 0.5 the matrix's gradient is 2 + 0.5 * 1."""
    assert stepped(optimizer="sgd").matrix.flatten().tolist() == pytest.approx([0.8] * 4)
    decayed = stepped(optimizer="sgd", weight_decay=0.5)
    assert decayed.matrix.flatten().tolist() == pytest.approx([0.75] * 4)
    assert decayed.vector.tolist() == pytest.approx([0.8] * 2)


def test_adamw_moves_by_the_rate_and_decays_matrices_only() -> None:
    """Adam's first step is the sign of the gradient: 1 - 0.1; the matrix shrinks by 0.1 * 0.5 besides."""
    model = stepped(optimizer="adamw", weight_decay=0.5)
    assert model.matrix.flatten().tolist() == pytest.approx([0.85] * 4)
    assert model.vector.tolist() == pytest.approx([0.9] * 2)


def test_an_optimizer_of_ones_own_is_named_by_where_it_is() -> None:
    model = stepped(optimizer=f"{Path(__file__)}:halved")
    assert model.matrix.flatten().tolist() == pytest.approx([0.9] * 4)
    assert model.frozen.flatten().tolist() == [1.0] * 4


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), tied=False)


@pytest.fixture
def policy(model_dir: Path) -> PolicyModel:
    return load_policy(model_dir, logit_chunk=64)


def with_gradients(model: PolicyModel, seed: int) -> PolicyModel:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return model


MUON = TrainerConfig(learning_rate=0.01, optimizer="muon")


def test_muon_turns_a_layers_matrix_by_an_orthogonal_step(policy: PolicyModel) -> None:
    """All singular values of the step are about 0.2 sqrt(rows) times the rate; Adam's step has them of all sizes.

    Five Newton-Schulz iterations bring singular values between 0.7 and 1.2 (Jordan et al., 2024), in bfloat16.
    """
    before = copy.deepcopy(dict(policy.lm.named_parameters()))
    by_config(with_gradients(policy, 0), MUON).step()
    name = "model.layers.0.mlp.up_proj.weight"  # [48, 32]
    step = before[name] - dict(policy.lm.named_parameters())[name]
    sizes = torch.linalg.svdvals(step.detach()) / (0.01 * 0.2 * 48**0.5)
    assert 0.6 < sizes.min() <= sizes.max() < 1.3


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"])
def test_beside_muon_adamw_trains_embeddings_head_and_vectors(policy: PolicyModel, name: str) -> None:
    """Adam's first step is the rate in the direction of each element's gradient."""
    before = copy.deepcopy(dict(policy.lm.named_parameters()))
    by_config(with_gradients(policy, 0), MUON).step()
    parameter = dict(policy.lm.named_parameters())[name]
    torch.testing.assert_close(before[name] - parameter, 0.01 * parameter.grad.sign(), rtol=1e-4, atol=1e-6)


def test_a_muon_that_was_saved_goes_on_where_it_was(policy: PolicyModel, model_dir: Path) -> None:
    unbroken = by_config(with_gradients(policy, 0), MUON)
    unbroken.step()
    resumed_policy = load_policy(model_dir, logit_chunk=64)
    resumed_policy.load_state_dict(policy.state_dict())
    resumed = by_config(resumed_policy, MUON)
    resumed.load_state_dict(copy.deepcopy(unbroken.state_dict()))
    for model, optimizer in ((policy, unbroken), (resumed_policy, resumed)):
        with_gradients(model, 1)
        optimizer.step()
    for one, other in zip(policy.parameters(), resumed_policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    cold = load_policy(model_dir, logit_chunk=64)
    cold.load_state_dict(policy.state_dict())
    assert not by_config(cold, MUON).state


def test_the_rate_of_every_part_is_set_through_the_groups(policy: PolicyModel) -> None:
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    optimizer = by_config(with_gradients(policy, 0), MUON)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(before, policy.parameters(), strict=True))
