"""Which tensors a swap must bring (case 52): all of the checkpoint's, each once, in its shape and number format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from agentrl.engine.manifest import Manifest
from agentrl.errors import SwapError

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CHECKPOINT = {EMBED: np.zeros((8, 4), np.float32), "model.norm.weight": np.zeros(4, np.float32)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_file(CHECKPOINT, tmp_path / "model.safetensors")
    return tmp_path


def test_a_checkpoint_in_several_files_is_read_whole(tmp_path: Path) -> None:
    for number, (name, tensor) in enumerate(CHECKPOINT.items()):
        save_file({name: tensor}, tmp_path / f"model-{number}.safetensors")
    assert Manifest.of_checkpoint(tmp_path, tied=False).tensors == {
        EMBED: ((8, 4), "F32"),
        "model.norm.weight": ((4,), "F32"),
    }


def test_a_model_without_safetensors_cannot_be_swapped(tmp_path: Path) -> None:
    with pytest.raises(SwapError, match=r"holds no \.safetensors"):
        Manifest.of_checkpoint(tmp_path, tied=False)


def test_the_alias_of_a_tied_head_may_come_or_not(checkpoint: Path) -> None:
    manifest = Manifest.of_checkpoint(checkpoint, tied=True)
    manifest.check_complete(set(CHECKPOINT))
    manifest.check_group({HEAD: ((8, 4), "F32")}, already=set(), engine_dtype="torch.float32")
    with pytest.raises(SwapError, match="shape"):
        manifest.check_group({HEAD: ((4, 8), "F32")}, already=set(), engine_dtype="torch.float32")


def test_a_head_of_its_own_must_come(checkpoint: Path) -> None:
    save_file({HEAD: np.zeros((8, 4), np.float32)}, checkpoint / "head.safetensors")
    with pytest.raises(SwapError, match=f"incomplete: no {HEAD}"):
        Manifest.of_checkpoint(checkpoint, tied=False).check_complete(set(CHECKPOINT))


@pytest.mark.parametrize(
    ("group", "already", "message"),
    [
        ({"model.extra": ((4,), "F32")}, set(), "no tensor 'model.extra'"),
        ({HEAD: ((8, 4), "F32")}, set(), "no tensor 'lm_head.weight'"),  # not tied
        ({EMBED: ((8, 4), "F32")}, {EMBED}, "came twice"),
        ({EMBED: ((8, 5), "F32")}, set(), r"shape \[8, 5\], the model's has \[8, 4\]"),
        ({EMBED: ((8, 4), "I64")}, set(), "is I64, the model's is F32"),
        ({EMBED: ((8, 4), "F16")}, set(), "is F16, the model's is F32"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(
    group: dict[str, tuple[tuple[int, ...], str]], already: set[str], message: str, checkpoint: Path
) -> None:
    manifest = Manifest.of_checkpoint(checkpoint, tied=False)
    with pytest.raises(SwapError, match=message):
        manifest.check_group(group, already=already, engine_dtype="torch.bfloat16")


def test_the_engines_own_number_format_is_right_too(checkpoint: Path) -> None:
    manifest = Manifest.of_checkpoint(checkpoint, tied=False)
    manifest.check_group({EMBED: ((8, 4), "BF16")}, already=set(), engine_dtype="torch.bfloat16")


def test_missing_tensors_are_named_up_to_three(checkpoint: Path) -> None:
    many = {f"layer.{number}": np.zeros(1, np.float32) for number in range(5)}
    save_file(many, checkpoint / "more.safetensors")
    manifest = Manifest.of_checkpoint(checkpoint, tied=False)
    with pytest.raises(SwapError, match=r"no layer\.0, layer\.1, layer\.2 and 2 more"):
        manifest.check_complete(set(CHECKPOINT))
