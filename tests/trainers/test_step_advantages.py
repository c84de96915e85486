"""From rewards, values, a reference and a teacher to the advantages of a step's trained tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from trainer_builders import row

from agentrl.errors import TrainerError
from agentrl.train.credit import Sample, place_rewards
from agentrl.types import Batch, TrainRow
from agentrl_trainers.collate import check_rewards
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.step_advantages import step_advantages
from agentrl_trainers.step_tokens import StepTokens, batch_tokens

CRITIC = {"enabled": True, "gamma": 0.9, "lam": 0.8, "whiten": False}
IN_REWARD = {"coefficient": 0.5, "where": "reward", "estimator": "k1"}


def tokens_of(rows: Sequence[TrainRow], **known: Sequence[float]) -> StepTokens:
    """What the rows say, and what models said of their trained tokens."""
    tokens = batch_tokens(rows)
    tokens.vectors |= {name: torch.tensor(values) for name, values in known.items()}
    return tokens


def found(tokens: StepTokens, **config: Any) -> dict[str, list[float]]:
    checked = TrainerConfig.model_validate(config)
    advantages = step_advantages(tokens, checked, checked.kl.coefficient)
    return {name: pytest.approx(vector.tolist(), abs=1e-6) for name, vector in advantages.items()}


def rewarded(mask: Sequence[int], rewards: Sequence[float], *, advantage: float = 2.0) -> TrainRow:
    one = row(len(mask) + 1, trained=[1 + at for at, on in enumerate(mask) if on], advantage=advantage)
    one.rewards = [0.0, *rewards]
    return one


def test_observations_between_two_turns_change_no_advantage() -> None:
    """Case 24: V = .1, .2, .3, .4, with and without two tokens of a tool in the middle."""
    values = [0.1, 0.2, 0.3, 0.4]
    expected = {
        "advantages": [0.3854528, 0.42424, 0.492, 0.6],
        "returns": [0.4854528, 0.62424, 0.792, 1.0],
    }
    without = rewarded([1, 1, 1, 1], [0, 0, 0, 1])
    between = rewarded([1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1])
    assert found(tokens_of([without], values=values), critic=CRITIC) == expected
    assert found(tokens_of([between], values=values), critic=CRITIC) == expected


@pytest.mark.parametrize("poison", [1e6, math.nan])
def test_what_stands_at_masked_slots_is_never_read(poison: float) -> None:
    """Case 9: rewards, logprobs and advantages of an observation."""
    clean = rewarded([1, 0, 1], [0, 0, 1])
    known = {"values": [0.1, 0.2], "reference": [-1.0, -2.0], "teacher": [-1.0, -1.5]}
    config = {
        "critic": CRITIC | {"whiten": True},
        "kl": IN_REWARD,
        "teacher": {"model": "a", "replace": False},
    }
    expected = step_advantages(tokens_of([clean], **known), TrainerConfig.model_validate(config), 0.5)
    for field in ("rewards", "logprobs", "advantages"):
        for at, on in enumerate(clean.loss_mask):
            if not on:
                getattr(clean, field)[at] = poison
    poisoned = step_advantages(tokens_of([clean], **known), TrainerConfig.model_validate(config), 0.5)
    assert {name: vector.tolist() for name, vector in poisoned.items()} == {
        name: vector.tolist() for name, vector in expected.items()
    }


def test_a_critics_advantages_are_whitened_over_all_rows() -> None:
    """A = 1 and 3 and, one token each, gamma and lambda beside the point: mean 2, deviations -1 and 1."""
    rows = [rewarded([1], [1.5]), rewarded([1], [4.0])]
    assert found(tokens_of(rows, values=[0.5, 1.0]), critic=CRITIC | {"whiten": True}) == {
        "advantages": [-1.0, 1.0],
        "returns": [1.5, 4.0],
    }


def test_without_any_model_the_batchs_advantages_stay() -> None:
    assert found(tokens_of([rewarded([1, 0, 1], [0, 0, 1])])) == {"advantages": [2.0, 2.0]}


def test_a_divergence_in_the_reward_lowers_what_a_critic_sees() -> None:
    """Penalties 0.5 (-1 + 1.5) and 0.5 (-2 + 1): rewards -0.25 and 1.5; deltas -0.17 and 1.3."""
    one = rewarded([1, 0, 1], [0, 0, 1])
    one.logprobs = [0.0, -1.0, 0.0, -2.0]
    tokens = tokens_of([one], values=[0.1, 0.2], reference=[-1.5, -1.0])
    assert found(tokens, critic=CRITIC, kl=IN_REWARD) == {
        "advantages": [-0.17 + 0.72 * 1.3, 1.3],
        "returns": [-0.17 + 0.72 * 1.3 + 0.1, 1.5],
    }


def test_without_a_critic_a_token_pays_for_itself_and_for_what_follows_in_its_row() -> None:
    """Penalties 0.25, -0.5 in the first row and 1.0 in the second; sums to the end -0.25, -0.5 and 1.0."""
    first, second = rewarded([1, 0, 1], [0, 0, 1]), rewarded([1], [0.0], advantage=-1.0)
    first.logprobs, second.logprobs = [0.0, -1.0, 0.0, -2.0], [0.0, -0.5]
    tokens = tokens_of([first, second], reference=[-1.5, -1.0, -2.5])
    assert found(tokens, kl=IN_REWARD) == {"advantages": [2.25, 2.5, -2.0]}


def test_a_divergence_in_the_loss_leaves_the_advantages_alone() -> None:
    one = rewarded([1, 0, 1], [0, 0, 1])
    assert found(tokens_of([one], reference=[-9.0, -9.0]), kl={"coefficient": 0.5}) == {"advantages": [2.0, 2.0]}


@pytest.mark.parametrize(("replace", "expected"), [(True, [-1.0, 2.0]), (False, [1.0, 4.0])])
def test_a_teachers_opinion_is_the_advantage_or_comes_on_top(replace: bool, expected: list[float]) -> None:
    """Twice teacher - policy, the first token sampled at -1 where the teacher says -1.5, the second at -2 and -1."""
    one = rewarded([1, 0, 1], [0, 0, 1])
    one.logprobs = [0.0, -1.0, 0.0, -2.0]
    tokens = tokens_of([one], teacher=[-1.5, -1.0])
    assert found(tokens, teacher={"model": "a", "coefficient": 2.0, "replace": replace}) == {"advantages": expected}


def test_a_step_along_the_teachers_advantage_lowers_the_divergence_from_it() -> None:
    """Over all tokens of a small vocabulary, the expected policy gradient is minus that of KL(policy || teacher)."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(-1)
    policy = logits.log_softmax(-1)
    (expected,) = torch.autograd.grad(-(policy.exp() * (policy - teacher)).sum(), logits, retain_graph=True)
    advantages = []
    for token in range(5):
        one = rewarded([1], [0.0])
        one.logprobs = [0.0, policy[token].item()]
        tokens = tokens_of([one], teacher=[teacher[token].item()])
        advantages.append(step_advantages(tokens, TrainerConfig.model_validate({"teacher": {"model": "a"}}), 0.0))
    weights = torch.cat([each["advantages"] for each in advantages]).double()
    (ours,) = torch.autograd.grad((policy.exp().detach() * weights * policy).sum(), logits)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_without_rewards_cannot_train_a_critic() -> None:
    one = rewarded([1], [0.0])
    one.rewards = []
    with pytest.raises(TrainerError, match=r"row 0 \(session s0\).*algorithm.advantage = \"gae\""):
        check_rewards(Batch(version=0, rows=[one]))


def test_a_reward_that_is_not_finite_is_named() -> None:
    with pytest.raises(TrainerError, match="reward nan at position 3"):
        check_rewards(Batch(version=0, rows=[rewarded([1, 0, 1], [0, math.inf, math.nan])]))


def test_an_episode_that_ends_in_an_observation_still_rewards_its_last_token() -> None:
    """Case 24: with gamma 0 nothing else would carry it; the driver places it at the last token that was sampled."""
    one = row(4, trained=[1])
    one.rewards = place_rewards(1.0, [0.0], [Sample(0, 1, 2, trained=True)], {0}, one.loss_mask)
    assert found(tokens_of([one], values=[0.25]), critic=CRITIC | {"gamma": 0.0}) == {
        "advantages": [0.75],
        "returns": [1.0],
    }
