"""The trainer's side of vLLM's GPU transfers, as far as it goes without a GPU: the transfers themselves are not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trainer_builders import save_tiny_model
from trainer_ranks import SPLIT_EVERYTHING, meet, run_ranks

from agentrl.errors import TrainerError
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.rank import TrainerRank

pytestmark = pytest.mark.ranks


def source_of_a_rank(rank: int, world_size: int, ports: Any, model_dir: Path) -> dict[str, Any]:
    """What vLLM's own check of a source says of ours, with an adapter merged at ZeRO 3; and a sender without a GPU."""
    import torch
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

    from agentrl_trainers.deepspeed.direct import ZeroSource

    values = {"zero_stage": 3, "ranks": world_size, "lora": {"rank": 2, "publish": "merged"}, **SPLIT_EVERYTHING}
    trainer = TrainerRank(rank, world_size, "127.0.0.1", 0, str(model_dir), TrainerConfig.model_validate(values), 3)
    trainer.setup(meet(trainer, rank, world_size, ports))
    source = ZeroSource(trainer._weights, torch.device("cpu"))
    found: dict[str, Any] = {}
    for changed_only in (False, True):
        source.changed_only = changed_only
        pairs = NCCLTrainerWeightTransferEngine._checked_iter(source, source.metadata())
        found["changed" if changed_only else "all"] = {name: tuple(tensor.shape) for name, tensor in pairs}
    try:
        trainer.connect_engines("nccl", ["http://127.0.0.1:9"])
    except TrainerError as error:
        found["error"] = str(error)
    trainer.shutdown()
    return found


def test_vllms_engines_find_every_rank_a_source_whose_two_channels_agree(tmp_path: Path) -> None:
    found = run_ranks(source_of_a_rank, 2, save_tiny_model(tmp_path))
    for one in found:
        assert one["all"]["model.embed_tokens.weight"] == (40, 32)
        assert one["changed"].keys() == {name for name in one["all"] if ".mlp." in name or ".self_attn." in name}
        assert one["error"].startswith(
            'engine.weight_transfer = "nccl" goes from GPU to GPU, and the trainer is on cpu'
        )
