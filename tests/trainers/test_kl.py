"""Divergence estimators and the entropy bonus: signs, values and gradients, by hand and against whole distributions."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from agentrl_trainers.algorithms.kl.estimators import ESTIMATORS
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.logprobs import chunked_logprobs, token_logprobs
from agentrl_trainers.settings.objective import KlConfig

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "value", "gradient"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5))],
)
def test_value_and_gradient_of_one_token(name: str, value: float, gradient: float) -> None:
    """Case 25: logprob -1.0 under the policy, -1.5 under the reference: 0.5, 0.125, 0.1065; 0.5 and 0.3935."""
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    found = ESTIMATORS[name](logprobs, torch.tensor([-1.5], dtype=torch.float64))
    found.sum().backward()
    assert found.tolist() == pytest.approx([value])
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([gradient])


@pytest.mark.parametrize("name", ["k2", "k3"])
@pytest.mark.parametrize("policy", [-0.5, -2.5])
def test_descending_pulls_towards_the_reference_from_either_side(name: str, policy: float) -> None:
    """Case 25: the reference's logprob is -1.5."""
    logprobs = torch.tensor([policy], dtype=torch.float64, requires_grad=True)
    ESTIMATORS[name](logprobs, torch.tensor([-1.5], dtype=torch.float64)).sum().backward()
    assert logprobs.grad is not None
    assert math.copysign(1.0, logprobs.grad.item()) == math.copysign(1.0, policy + 1.5)


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_equal_models_neither_diverge_nor_pull(name: str) -> None:
    logprobs = torch.tensor([-1.5], dtype=torch.float64, requires_grad=True)
    found = ESTIMATORS[name](logprobs, torch.tensor([-1.5], dtype=torch.float64))
    found.sum().backward()
    assert logprobs.grad is not None
    assert (found.item(), logprobs.grad.item()) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_is_unbiased_over_the_policys_own_samples(name: str) -> None:
    """KL(policy || reference) = 0.5 log 2.5 + 0.2 log 0.4 = 0.27489."""
    estimates = ESTIMATORS[name](POLICY.log(), REFERENCE.log())
    assert float((POLICY * estimates).sum()) == pytest.approx(0.274887, abs=1e-6)


def test_k2s_gradient_on_policy_is_that_of_the_divergence() -> None:
    """Over the policy's own samples, as a loss; k1's is 0 there, and k3's that of the reverse divergence."""
    logits = POLICY.log().clone().requires_grad_()

    def expected_gradient(of: torch.Tensor) -> torch.Tensor:
        [gradient] = torch.autograd.grad(of, logits)
        return gradient

    def sampled_gradient(name: str) -> torch.Tensor:
        logprobs = logits.log_softmax(-1)
        return expected_gradient((POLICY * ESTIMATORS[name](logprobs, REFERENCE.log())).sum())

    logprobs = logits.log_softmax(-1)
    forward = expected_gradient((logprobs.exp() * (logprobs - REFERENCE.log())).sum())
    reverse = expected_gradient((REFERENCE * (REFERENCE.log() - logits.log_softmax(-1))).sum())
    torch.testing.assert_close(sampled_gradient("k2"), forward)
    torch.testing.assert_close(sampled_gradient("k1"), torch.zeros_like(forward))
    torch.testing.assert_close(sampled_gradient("k3"), reverse)


def test_k1_in_the_loss_is_refused() -> None:
    """Case 25: its gradient ignores the reference."""
    with pytest.raises(ValidationError, match="set estimator = 'k2' or 'k3', or where = 'reward'"):
        KlConfig(coefficient=0.1, estimator="k1")
    KlConfig(coefficient=0.1, estimator="k1", where="reward")


def test_only_a_log_ratio_goes_into_the_reward() -> None:
    with pytest.raises(ValidationError, match=r"takes kl.estimator = 'k1'"):
        TrainerConfig.model_validate({"kl": {"coefficient": 0.1, "where": "reward"}})


def test_the_entropys_gradient_is_that_of_the_whole_distribution() -> None:
    """d H / d logit_i = -p_i (log p_i + H): at p = (0.5, 0.3, 0.2) and H = 1.02965."""
    logits = POLICY.log().float().clone()[None].requires_grad_()
    _, entropy = token_logprobs(logits, torch.tensor([0]), torch.ones(1), entropy_gradient=True)
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(1.029653, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([-0.168253, 0.052296, 0.115957], abs=1e-6)


def test_the_entropys_gradient_does_not_depend_on_chunks() -> None:
    generator = torch.Generator().manual_seed(0)
    head, hidden = (torch.randn(7, 4, generator=generator) for _ in range(2))
    targets, temperature = torch.arange(7) % 3, torch.linspace(0.5, 1.5, 7)
    gradients = []
    for chunk in (7, 3, 1):
        leaf = hidden.clone().requires_grad_()
        _, entropy = chunked_logprobs(
            lambda part: part @ head.T, leaf, targets, temperature, chunk=chunk, entropy_gradient=True
        )
        entropy.sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    assert gradients[0].norm() > 0.1
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_without_a_bonus_the_entropy_costs_no_gradient() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    _, entropy = token_logprobs(logits, torch.tensor([0]), torch.ones(1))
    assert not entropy.requires_grad
