"""Each policy loss against numbers worked by hand: a ratio is set as a logprob, over an old logprob of 0.

Each case gives ratio, advantage, loss, d loss / d logprob, and whether the loss took something away.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from token_builders import sampled

from agentrl.plugins import load
from agentrl_trainers.algorithms.losses.cispo import cispo
from agentrl_trainers.algorithms.losses.decoupled_ppo import decoupled_ppo
from agentrl_trainers.algorithms.losses.dual_clip import dual_clip
from agentrl_trainers.algorithms.losses.gspo import gspo
from agentrl_trainers.algorithms.losses.ppo_clip import ppo_clip
from agentrl_trainers.algorithms.losses.reinforce import reinforce
from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss
from agentrl_trainers.settings.objective import BUILT_IN_LOSSES, LossConfig

BOUNDS = LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
Loss = Callable[[SampledTokens, LossConfig], TokenLoss]


def of(loss: Loss, tokens: SampledTokens) -> tuple[list[float], list[float], list[bool]]:
    """Losses, gradients of their sum, clipped."""
    found = loss(tokens, BOUNDS)
    found.loss_N.sum().backward()
    assert tokens.logprobs_N.grad is not None
    return found.loss_N.tolist(), tokens.logprobs_N.grad.tolist(), found.clipped_N.tolist()


Case = tuple[float, float, float, float, bool]
INSIDE: list[Case] = [(1.0, 2.0, -2.0, -2.0, False), (1.2, 2.0, -2.4, -2.4, False), (0.9, -2.0, 1.8, 1.8, False)]
PPO: list[Case] = [
    *INSIDE,
    (1.5, 2.0, -2.6, 0.0, True),  # 1.3 * 2
    (0.5, 2.0, -1.0, -1.0, False),  # pessimistic: a low ratio of a good token is not bounded
    (0.5, -2.0, 1.6, 0.0, True),  # 0.8 * 2
    (1.5, -2.0, 3.0, 3.0, False),  # pessimistic: a high ratio of a bad token is not bounded
]


@pytest.mark.parametrize(
    ("loss", "case"),
    [
        *((ppo_clip, case) for case in PPO),
        *((dual_clip, case) for case in PPO),
        (ppo_clip, (4.0, -2.0, 8.0, 8.0, False)),
        (dual_clip, (4.0, -2.0, 6.0, 0.0, True)),  # 3 * 2
        (dual_clip, (4.0, 2.0, -2.6, 0.0, True)),  # a good token has no third bound
        *((gspo, case) for case in PPO),  # of a row of one token the sequence's ratio is the token's
    ],
)
def test_a_clipped_surrogate(loss: Loss, case: Case) -> None:
    ratio, advantage, value, gradient, clipped = case
    losses, gradients, outside = of(loss, sampled([math.log(ratio)], advantages=[advantage]))
    assert (losses, gradients, outside) == (
        [pytest.approx(value, abs=1e-12)],
        [pytest.approx(gradient, abs=1e-12)],
        [clipped],
    )


@pytest.mark.parametrize(("ratio", "weight"), [(1.0, 1.0), (1.2, 1.2), (1.5, 1.3), (0.5, 0.8)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_clips_the_weight_and_keeps_every_tokens_gradient(ratio: float, weight: float, advantage: float) -> None:
    """Loss -w A log(p), gradient -w A."""
    losses, gradients, outside = of(cispo, sampled([math.log(ratio)], advantages=[advantage]))
    assert losses == pytest.approx([-weight * advantage * math.log(ratio)])
    assert gradients == pytest.approx([-weight * advantage])
    assert outside == [weight != ratio]


def test_cispo_without_a_lower_bound_is_that_of_its_authors() -> None:
    tokens = sampled([math.log(0.1)], advantages=[1.0])
    assert cispo(tokens, LossConfig(clip_low=1.0)).loss_N.tolist() == pytest.approx([-0.1 * math.log(0.1)])


def test_gspo_takes_one_ratio_for_a_row() -> None:
    """Row 0 has log ratios 0.3 and -0.1: exp(0.1) = 1.10517 at both tokens; row 1 has its own, 1.5, above 1.3."""
    tokens = sampled([0.3, -0.1, math.log(1.5)], advantages=[2.0, 2.0, 1.0], rows=[0, 0, 1])
    losses, gradients, outside = of(gspo, tokens)
    assert losses == pytest.approx([-2.2103418, -2.2103418, -1.3])
    assert gradients == pytest.approx([-2.2103418, -2.2103418, 0.0])
    assert outside == [False, False, True]


def test_gspos_gradient_is_that_of_the_sequences_own_surrogate() -> None:
    """Mean over the row of -min(s A, clip(s) A) with s = exp(mean of log ratios): d/dlogprob_t = -s A / 3."""
    logprobs = torch.tensor([0.3, -0.2, 0.05], dtype=torch.float64, requires_grad=True)
    (-torch.exp(logprobs.mean()) * 1.7).backward()
    tokens = sampled([0.3, -0.2, 0.05], advantages=[1.7] * 3)
    (gspo(tokens, BOUNDS).loss_N.sum() / 3).backward()
    torch.testing.assert_close(tokens.logprobs_N.grad, logprobs.grad)


def test_decoupled_ppo_clips_against_the_proximal_policy_and_weighs_by_the_behaviour() -> None:
    """proximal / behaviour is 2 at every token; now / proximal is 1.2 (inside), 1.5 (clipped to 1.3 where A > 0)."""
    behaviour, proximal = [math.log(0.1)] * 3, [math.log(0.2)] * 3
    logprobs = [math.log(0.24), math.log(0.3), math.log(0.3)]
    for old in ("behaviour", "proximal"):
        tokens = sampled(logprobs, advantages=[2.0, 2.0, -2.0], behaviour=behaviour, proximal=proximal, old=old)
        losses, gradients, outside = of(decoupled_ppo, tokens)
        assert losses == pytest.approx([-4.8, -5.2, 6.0])
        assert gradients == pytest.approx([-4.8, 0.0, 6.0])
        assert outside == [False, True, False]


def test_decoupled_ppo_is_ppo_where_the_behaviour_is_proximal() -> None:
    same = [-1.0, -2.0, -0.5]
    tokens = sampled([-0.8, -2.4, -0.4], advantages=[1.0, -1.0, 2.0], behaviour=same, proximal=same)
    assert decoupled_ppo(tokens, BOUNDS).loss_N.tolist() == ppo_clip(tokens, BOUNDS).loss_N.tolist()


def test_reinforce_is_the_score_function_whatever_the_ratio() -> None:
    losses, gradients, outside = of(reinforce, sampled([-2.0, -0.5], advantages=[3.0, -1.0], behaviour=[-9.0, -9.0]))
    assert (losses, gradients, outside) == ([6.0, -0.5], [-3.0, 1.0], [False, False])


@pytest.mark.parametrize("name", BUILT_IN_LOSSES)
class TestEveryLoss:
    def test_is_found_by_its_name(self, name: str) -> None:
        assert load("agentrl.policy_losses", name).__name__ == name

    def test_has_the_score_functions_gradient_on_policy(self, name: str) -> None:
        """Policy gradient theorem: at ratio 1 every loss's gradient is -A."""
        same = [-1.0, -2.0, -0.5]
        tokens = sampled(same, advantages=[1.0, -1.0, 2.0], behaviour=same, proximal=same)
        assert of(load("agentrl.policy_losses", name), tokens)[1] == pytest.approx([-1.0, 1.0, -2.0])

    def test_of_no_tokens_is_empty_and_keeps_a_gradient(self, name: str) -> None:
        tokens = sampled([], advantages=[])
        found = load("agentrl.policy_losses", name)(tokens, BOUNDS)
        assert (found.loss_N.shape, found.clipped_N.shape, found.clipped_N.dtype) == ((0,), (0,), torch.bool)
        assert found.loss_N.requires_grad

    @pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
    def test_stays_finite_however_far_the_ratio(self, name: str, advantage: float) -> None:
        """exp(100) is no float32, and infinity times a clipped gradient's 0 would be NaN."""
        far = {"behaviour": [-100.0, -0.01], "proximal": [-100.0, -0.01]}
        tokens = sampled([-0.01, -120.0], advantages=[advantage] * 2, rows=[0, 1], dtype=torch.float32, **far)
        load("agentrl.policy_losses", name)(tokens, BOUNDS).loss_N.sum().backward()
        assert tokens.logprobs_N.grad is not None
        assert torch.isfinite(tokens.logprobs_N.grad).all()
