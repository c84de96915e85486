"""The critic's module: where its numbers come from, and which directories it can begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_builders import mixed_batch, row, save_tiny_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from agentrl.errors import TrainerError
from agentrl_trainers.collate import collate
from agentrl_trainers.deepspeed.critic import values_of
from agentrl_trainers.value_model import load_value_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), tied=False)


def test_from_a_language_model_it_takes_the_body_and_begins_at_zero(model_dir: Path) -> None:
    critic = load_value_model(model_dir)
    language_model = AutoModelForCausalLM.from_pretrained(model_dir)
    body = dict(language_model.base_model.named_parameters())
    ours = dict(critic.lm.base_model.named_parameters())
    assert ours.keys() == body.keys()
    assert all(torch.equal(ours[name], body[name]) for name in body)
    assert values_of(critic, collate(mixed_batch().rows, packed=True)).eq(0.0).all()


@pytest.mark.parametrize("packed", [True, False])
def test_a_value_is_read_where_the_token_was_sampled_from(model_dir: Path, packed: bool) -> None:
    """Oracle: each row by itself, its hidden states times the head, at the position before every trained token."""
    critic = load_value_model(model_dir)
    torch.nn.init.normal_(critic.lm.score.weight, generator=torch.Generator().manual_seed(0))
    plain = AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager")
    expected = []
    for one in mixed_batch().rows:
        with torch.no_grad():
            hidden = plain.base_model(input_ids=torch.tensor([one.token_ids])).last_hidden_state[0]
        values = hidden @ critic.lm.score.weight[0]
        expected += [values[at - 1] for at, trained in enumerate(one.loss_mask) if trained]
    found = values_of(critic, collate(mixed_batch().rows, packed=packed))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_a_bfloat16_critic_has_float32_values(model_dir: Path) -> None:
    """Oracle: the head in float32 on the same bfloat16 states."""
    critic = load_value_model(model_dir, dtype="bfloat16")
    torch.nn.init.normal_(critic.lm.score.weight, generator=torch.Generator().manual_seed(0))
    one = row(9)
    with torch.no_grad():
        found = values_of(critic, collate([one], packed=False))
        hidden = critic.lm.base_model(input_ids=torch.tensor([one.token_ids]), use_cache=False).last_hidden_state[0]
    assert hidden.dtype == torch.bfloat16
    at = [position - 1 for position, trained in enumerate(one.loss_mask) if trained]
    expected = hidden[at].float() @ critic.lm.score.weight[0].float()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_reward_model_keeps_its_head(model_dir: Path, tmp_path: Path) -> None:
    reward_model = AutoModelForSequenceClassification.from_pretrained(model_dir, num_labels=1)
    torch.nn.init.constant_(reward_model.score.weight, 0.25)
    reward_model.save_pretrained(tmp_path)
    assert load_value_model(tmp_path).lm.score.weight.eq(0.25).all()


def test_no_token_still_has_a_gradient(model_dir: Path) -> None:
    """A filler of a rank that has nothing left takes part in the backward pass."""
    critic = load_value_model(model_dir)
    values_of(critic, collate([], packed=True)).sum().backward()
    assert critic.lm.score.weight.grad is not None


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"config\.json is not there"):
        load_value_model(tmp_path)
