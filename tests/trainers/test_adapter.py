"""Low-rank adapters without DeepSpeed: where they go, what is trained, and what merging a copy leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_builders import save_tiny_model
from transformers import AutoModelForCausalLM

from agentrl.errors import TrainerError
from agentrl_trainers.adapter import Adapter, quantization
from agentrl_trainers.checkpoint_tensors import CheckpointTensor, LowRank, checkpoint_tensors
from agentrl_trainers.settings.adapter import LoraConfig

LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def load(model_dir: Path, dtype: torch.dtype = torch.float32) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)


def adapted(model_dir: Path, dtype: torch.dtype = torch.float32, **config: object) -> tuple[object, Adapter]:
    lm = load(model_dir, dtype)
    return lm, Adapter(lm, LoraConfig.model_validate({"rank": 4, "alpha": 6.0, **config}), seed=1)


def trained(lm: torch.nn.Module) -> set[str]:
    return {name for name, parameter in lm.named_parameters() if parameter.requires_grad}


def test_every_linear_layer_but_the_head_gets_one_and_nothing_else_is_trained(model_dir: Path) -> None:
    lm, adapter = adapted(model_dir)
    assert trained(lm) == {name for name in dict(lm.named_parameters()) if "lora_" in name}
    assert len(trained(lm)) == 2 * len(LINEAR) * 2  # two matrices a layer, two layers
    assert {name.split(".")[-3] for name in adapter.tensors} == LINEAR


def test_targets_are_names_or_an_expression(model_dir: Path) -> None:
    _, by_name = adapted(model_dir, targets=["q_proj"])
    _, by_expression = adapted(model_dir, targets=r".*layers\.1\.mlp\.up_proj")
    assert len(by_name.tensors) == 4
    assert list(by_expression.tensors) == [
        f"base_model.model.model.layers.1.mlp.up_proj.lora_{half}.weight" for half in "AB"
    ]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["qq_proj"], r"targets = \['qq_proj'\] fits no layer of qwen3"),
        (["lm_head"], "names the output head lm_head, which takes no adapter"),
        (["embed_tokens"], "names model.embed_tokens, a Embedding"),
    ],
)
def test_targets_that_cannot_have_one_are_refused(model_dir: Path, targets: list[str], message: str) -> None:
    with pytest.raises(TrainerError, match=message):
        adapted(model_dir, targets=targets)


def test_ranks_begin_with_the_same_adapter_whatever_they_drew_before(model_dir: Path) -> None:
    torch.manual_seed(11)
    _, one = adapted(model_dir)
    torch.manual_seed(12)
    drawn = torch.randn(1)
    torch.manual_seed(12)
    _, other = adapted(model_dir)
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert torch.equal(torch.randn(1), drawn)


def test_it_begins_as_the_model_that_was_loaded(model_dir: Path) -> None:
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(adapted(model_dir)[0](ids).logits, load(model_dir)(ids).logits)


def test_a_merged_weight_is_the_weight_and_the_scaled_product() -> None:
    """W = [[1, 2], [3, 4]], B A = [[1], [3]] [[10, 20]] at scale 0.5; a layer held as [in, out] adds its transpose."""
    weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    down, up = torch.nn.Parameter(torch.tensor([[10.0, 20.0]])), torch.nn.Parameter(torch.tensor([[1.0], [3.0]]))
    merged = CheckpointTensor(weight, LowRank(down, up, 0.5, transposed=False)).value()
    assert merged.tolist() == [[6.0, 12.0], [18.0, 34.0]]
    across = CheckpointTensor(weight, LowRank(down, up, 0.5, transposed=True)).value()
    assert across.tolist() == [[6.0, 17.0], [13.0, 34.0]]


def test_two_hundred_merges_in_bf16_leave_the_weights_bit_for_bit(model_dir: Path) -> None:
    """Case 75: between them the adapter moves; a merge is of the weights as they were loaded, rounded once."""
    lm, adapter = adapted(model_dir, torch.bfloat16)
    tensors = checkpoint_tensors(lm, adapter.low_rank)
    before = dict(load(model_dir, torch.bfloat16).named_parameters())
    generator = torch.Generator().manual_seed(5)
    for _ in range(200):
        for parameter in adapter.tensors.values():
            parameter.data.add_(0.01 * torch.randn(parameter.shape, generator=generator, dtype=torch.float32))
        merged = {name: tensor.value() for name, tensor in tensors.items()}
    assert merged.keys() == before.keys()
    assert all(torch.equal(tensors[name].weight, before[name]) for name in before)
    name = "model.layers.1.mlp.down_proj.weight"
    up, down = (adapter.tensors[f"base_model.model.{name[:-7]}.lora_{half}.weight"].float() for half in "BA")
    expected = (before[name].float() + 1.5 * (up @ down)).bfloat16()
    assert torch.equal(merged[name], expected)
    assert not torch.equal(merged[name], before[name])


def test_a_tensor_without_an_adapter_is_not_trained_and_spelled_as_in_the_checkpoint(model_dir: Path) -> None:
    lm, adapter = adapted(model_dir, targets=["v_proj"])
    tensors = checkpoint_tensors(lm, adapter.low_rank)
    assert tensors.keys() == dict(load(model_dir).named_parameters()).keys()
    assert {name for name, tensor in tensors.items() if tensor.trained} == {
        f"model.layers.{layer}.self_attn.v_proj.weight" for layer in (0, 1)
    }


def test_four_bit_weights_without_a_gpu_are_refused() -> None:
    config = LoraConfig(rank=4, quantize="nf4", publish="merged")
    with pytest.raises(TrainerError, match="quantize = 'nf4' needs a CUDA GPU, and torch finds none"):
        quantization(config, torch.bfloat16)
    assert quantization(LoraConfig(rank=4), torch.bfloat16) is None
