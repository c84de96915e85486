"""Adapters on real DeepSpeed over gloo, against a plain peft script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from adapter_ranks import FEW_LAYOUTS, LORA, adapters, noise
from safetensors.torch import load, load_file
from trainer_builders import mixed_batch, plain_logprobs, plain_loss, plain_updates, relative_error
from trainer_ranks import STAGES, run_ranks
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.ranks, pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*")]

ADAPTER_ELEMENTS = 2 * 3 * ((32 + 32) + 2 * (32 + 16) + (32 + 32) + 2 * (32 + 48) + (48 + 32))
"""Of two layers at rank 3, (in + out) of query, key and value, output, gate and up, down: 32 wide, 2 KV heads of 8."""


@pytest.fixture(scope="module")
def ran(model_dir: Path, out: dict[int, Path]) -> dict[int, list[dict[str, Any]]]:
    """World size -> what `adapters` returned on each rank."""
    return {ranks: run_ranks(adapters, ranks, model_dir, out[ranks]) for ranks in (1, 2)}


def plain(model_dir: Path) -> peft.PeftModel:
    """peft as its documentation has it, with the adapter that the ranks begin with."""
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    config = peft.LoraConfig(r=3, lora_alpha=6.0, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    for name, parameter in adapter_of(model).items():
        parameter.data.copy_(noise(name, parameter.shape))
    return model


def adapter_of(model: peft.PeftModel) -> dict[str, torch.nn.Parameter]:
    return {
        name.replace(".default.", "."): parameter for name, parameter in model.named_parameters() if "lora_" in name
    }


def assert_close(ours: dict[str, np.ndarray], expected: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == expected.keys()
    errors = {name: relative_error(ours[name], tensor) for name, tensor in expected.items()}
    assert errors == {name: pytest.approx(0.0, abs=1e-5) for name in errors}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", FEW_LAYOUTS)
@pytest.mark.parametrize("stage", STAGES)
def test_the_gradient_is_that_of_a_plain_peft_script(
    ran: Any, model_dir: Path, stage: int, layout: str, ranks: int
) -> None:
    model = plain(model_dir)
    plain_loss(model, mixed_batch()).backward()
    assert_close(
        ran[ranks][0]["gradients"][stage, layout],
        {name: parameter.grad for name, parameter in adapter_of(model).items()},
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_three_updates_equal_a_plain_peft_loop(ran: Any, model_dir: Path, stage: int, ranks: int) -> None:
    """AdamW (0.9, 0.95) at 1/3, 2/3, 3/3 of 1e-2, norm clipped to 1, decay 0.1: all of an adapter is matrices."""
    model = plain(model_dir)
    optimizer = torch.optim.AdamW(adapter_of(model).values(), betas=(0.9, 0.95), weight_decay=0.1)
    plain_updates(model, optimizer)
    expected = {name: parameter.detach() for name, parameter in adapter_of(model).items()}
    assert_close(ran[ranks][0]["adamw"][stage]["adapter"], expected)


@pytest.mark.parametrize("stage", STAGES)
def test_only_the_adapter_has_optimizer_states(ran: Any, stage: int) -> None:
    assert ran[1][0]["adamw"][stage]["optimizer elements"] == ADAPTER_ELEMENTS
    split = sum(found["adamw"][stage]["optimizer elements"] for found in ran[2])
    assert split == pytest.approx(ADAPTER_ELEMENTS * (1 if stage else 2), abs=64)  # ZeRO pads its shares


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_frozen_is_sent_once(ran: Any, model_dir: Path, ranks: int) -> None:
    first, second = ran[ranks][0]["life"]["published"]
    loaded = load_file(model_dir / "model.safetensors")
    names = [{name for group in version for name in group.names} for version in (first, second)]
    assert names[0] == loaded.keys()
    assert names[1] == {name for name in loaded if ".self_attn." in name or ".mlp." in name}
    assert set(second[0].kept) == names[0] - names[1]
    assert [set(group.kept) for group in [*first, *second[1:]]] == [set()] * (len(first) + len(second) - 1)
    assert {group.source for group in first} == {group.source for group in second}


@pytest.mark.parametrize("ranks", [1, 2])
def test_engines_are_sent_the_merged_weights_which_are_the_export(ran: Any, out: dict[int, Path], ranks: int) -> None:
    exported = load_file(out[ranks] / "export" / "model.safetensors")
    sent = {
        name: tensor
        for group in ran[ranks][0]["life"]["published"][1]
        for name, tensor in load_file(group.path).items()
    }
    assert all(torch.equal(sent[name], exported[name]) for name in sent)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_group_as_bytes_is_the_group_as_a_file(ran: Any, ranks: int) -> None:
    file, (group, data) = ran[ranks][0]["life"]["published"][1][0], ran[ranks][0]["life"]["packed"]
    described = ("path", "names", "kept", "version", "index", "count", "num_bytes", "source", "kind")
    assert [getattr(group, name) for name in described] == [getattr(file, name) for name in described]
    in_file, in_bytes = load_file(file.path), load(data.tobytes())
    assert in_file.keys() == in_bytes.keys()
    assert all(torch.equal(in_file[name], in_bytes[name]) for name in in_file)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_export_is_a_model_and_an_adapter_with_the_trainers_logprobs(
    ran: Any, out: dict[int, Path], model_dir: Path, ranks: int
) -> None:
    export = out[ranks] / "export"
    merged = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with_adapter = peft.PeftModel.from_pretrained(base, str(export / "adapter"))
    assert with_adapter.peft_config["default"].r == LORA["rank"]
    for one, ours in zip(mixed_batch().rows, ran[ranks][0]["life"]["logprobs"], strict=True):
        with torch.no_grad():
            for model in (merged, with_adapter):
                torch.testing.assert_close(torch.tensor(ours), plain_logprobs(model, one), rtol=1e-5, atol=1e-5)
