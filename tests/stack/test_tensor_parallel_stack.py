"""Two real ranks that share every matrix train as one rank does, and what they export and save is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_ranks import SPLIT_CASES, shared_by_four, split_matrices
from safetensors.torch import load_file
from trainer_builders import (
    VOCAB,
    mixed_batch,
    plain_adamw,
    plain_gradient,
    plain_logprobs,
    plain_updates,
    relative_error,
)
from trainer_ranks import run_ranks
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from agentrl.errors import TrainerError
from agentrl_trainers.deepspeed import tensor_parallel

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2: queries, keys and values have biases, and no norms follow them."""
    directory = tmp_path_factory.mktemp("biased")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def ran(model_dir: Path, biased: Path, out: Path) -> list[dict[str, Any]]:
    """What `split_matrices` returned on each rank."""
    return run_ranks(split_matrices, 2, model_dir, biased, out)


def errors(ours: dict[str, np.ndarray], expected: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative, by name; empty where all are below 1e-5."""
    assert ours.keys() == expected.keys()
    found = {name: relative_error(ours[name], value) for name, value in expected.items()}
    return {name: error for name, error in found.items() if not error < 1e-5}


@pytest.mark.parametrize("case", SPLIT_CASES, ids=str)
def test_sharing_matrices_does_not_change_the_gradient(ran: Any, model_dir: Path, case: tuple[int, str]) -> None:
    """Invariant 10, the norms inside attention included, which each rank applies to its own heads only."""
    assert errors(ran[0]["gradients"][case]["gradient"], plain_gradient(model_dir, mixed_batch())) == {}


def test_biases_of_split_matrices_are_split_with_them(ran: Any, biased: Path) -> None:
    assert errors(ran[0]["biased"]["gradient"], plain_gradient(biased, mixed_batch())) == {}


@pytest.mark.parametrize("case", SPLIT_CASES, ids=str)
def test_every_rank_has_the_logprobs_of_one_rank(ran: Any, model_dir: Path, case: tuple[int, str]) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = [plain_logprobs(model, one) for one in mixed_batch().rows]
    for found in ran:
        for ours, plain in zip(found["gradients"][case]["logprobs"], expected, strict=True):
            torch.testing.assert_close(torch.tensor(ours), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_three_clipped_updates_equal_a_plain_loop(ran: Any, model_dir: Path, stage: int) -> None:
    """The norm that clips counts every part once: AdamW (0.9, 0.95) at 1/3, 2/3, 3/3 of 1e-2, decay 0.1 on matrices."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    parameters = dict(model.named_parameters())
    plain_updates(model, plain_adamw(model))
    assert errors(ran[0]["adamw"][stage], {name: value.detach() for name, value in parameters.items()}) == {}


def test_a_step_is_counted_once(ran: Any) -> None:
    """2 tokens of loss 1 and 8 of loss 4 are 3.4, though two ranks pass them."""
    for found in ran:
        assert found["step"].loss == pytest.approx(3.4, rel=1e-5)
        assert found["step"].num_tokens == 10


def test_each_rank_holds_half_of_every_matrix(ran: Any) -> None:
    """Of 2 layers: q, k, v, o with 32 x 32 x 3 and three of 32 x 48; embeddings 40 x 32 and 5 + 4 norms stay whole."""
    matrices = 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 48)
    others = 40 * 32 + 2 * (2 * 32 + 2 * 8) + 32
    assert [found["held"] for found in ran] == [matrices // 2 + others] * 2


@pytest.mark.parametrize("stage", [0, 2])
def test_what_is_saved_goes_on_in_another_stage(ran: Any, out: Path, stage: int) -> None:
    """Weights, Adam's moments and the average: step 3 after loading is step 3 unbroken; exports are whole models."""
    for name, unbroken in ran[0]["saved"][1].items():
        np.testing.assert_allclose(ran[0]["saved"][stage][name], unbroken, rtol=1e-5, atol=1e-6)
    for part in (".", "average"):
        ours = load_file(out / f"export{stage}" / part / "model.safetensors")
        unbroken = load_file(out / "export1" / part / "model.safetensors")
        for name, value in unbroken.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
    exported = load_file(out / f"export{stage}" / "model.safetensors")
    assert exported["model.layers.0.self_attn.k_proj.weight"].shape == (16, 32)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tensor_parallel", "sequence_parallel"])
def test_four_ranks_share_rows_and_each_pair_the_rest(model_dir: Path, way: str) -> None:
    found = run_ranks(shared_by_four, 4, model_dir, {"ranks": 4, way: 2})
    for stage in (0, 2):
        assert errors(found[0][stage]["gradient"], plain_gradient(model_dir, mixed_batch())) == {}


def test_heads_that_ranks_cannot_share_evenly_are_refused() -> None:
    config = Qwen2Config(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48)
    with pytest.raises(TrainerError, match="tensor_parallel = 4 does not divide the model's 2 heads of keys"):
        tensor_parallel.check(config, 4)


def test_a_model_whose_matrices_have_other_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepspeed.utils.groups.get_tensor_model_parallel_group", lambda: None)
    with pytest.raises(TrainerError, match="found 0 such matrices in 2 layers; use a Llama- or Qwen-type model"):
        tensor_parallel.complete(torch.nn.Sequential(torch.nn.Linear(2, 2)), 2)
