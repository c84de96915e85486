"""What the adapters' stack tests run on real trainer ranks."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
from trainer_builders import mixed_batch
from trainer_ranks import LAYOUTS, SPLIT_EVERYTHING, STAGES, meet

from agentrl.types import Batch
from agentrl_trainers.adapter import Adapter
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.rank import TrainerRank
from agentrl_trainers.deepspeed.trainer import DeepSpeedTrainer
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.model import PolicyModel, load_policy

LORA = {"rank": 3, "alpha": 6.0, "publish": "merged"}
FEW_LAYOUTS = ("two rows", "packed, logits in chunks")


def noise(name: str, shape: torch.Size) -> torch.Tensor:
    """Of a tensor by its peft name: an adapter whose both halves have a gradient."""
    return 0.2 * torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


class RevealTrained(torch.optim.Optimizer):
    """Leaves the gradient where the weights were."""

    def __init__(self, model: PolicyModel) -> None:
        super().__init__([p for p in model.parameters() if p.requires_grad], {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(parameter.grad)


def reveal_trained(model: PolicyModel, config: TrainerConfig) -> RevealTrained:
    return RevealTrained(model)


def adapters(rank: int, world_size: int, ports: Any, model_dir: Path, out_dir: Path) -> dict[str, Any]:
    """One life of a rank that trains adapters, and while its process group is there, every ZeRO stage."""
    values = {"zero_stage": 1 if world_size == 1 else 3, "ranks": world_size, "learning_rate": 1e-2, "lora": LORA}
    config = TrainerConfig.model_validate(values | SPLIT_EVERYTHING)
    trainer = TrainerRank(rank, world_size, "127.0.0.1", 0, str(model_dir), config, 3)
    trainer.setup(meet(trainer, rank, world_size, ports))
    found = {
        "life": _life(trainer, out_dir),
        "gradients": {(s, layout): _gradients(s, layout, model_dir) for s in STAGES for layout in FEW_LAYOUTS},
        "adamw": {stage: _adamw(stage, model_dir) for stage in STAGES},
    }
    trainer.shutdown()
    return found


def _life(trainer: TrainerRank, out_dir: Path) -> dict[str, Any]:
    """Two updates; the first version goes out whole, the second without what is frozen; then the export."""
    published = []
    for version, changed_only in ((1, False), (2, True)):
        trainer.step(Batch(version=version - 1, rows=mixed_batch().rows))
        groups = range(len(trainer.weight_plan(changed_only)))
        published.append(
            [trainer.write_weights(version, index, str(out_dir / "shm"), changed_only) for index in groups]
        )
    packed = trainer.pack_weights(2, 0, str(out_dir / "shm"), True)
    trainer.export(str(out_dir / "export"), 2)
    logprobs = trainer.logprobs(mixed_batch().rows)
    return {"published": published, "packed": packed, "logprobs": logprobs}


def _trainer(stage: int, layout: str, model_dir: Path, **kwargs: Any) -> tuple[DeepSpeedTrainer, WeightSource]:
    values = {"zero_stage": stage, "lora": LORA, **SPLIT_EVERYTHING, **LAYOUTS[layout], **kwargs.pop("config", {})}
    config = TrainerConfig.model_validate(values)
    model = load_policy(model_dir, logit_chunk=config.logit_chunk_tokens)
    adapter = Adapter(model.lm, config.lora, seed=0)
    for name, parameter in adapter.tensors.items():
        parameter.data.copy_(noise(name, parameter.shape))
    trainer = DeepSpeedTrainer(model, config, 3, model_path=model_dir, **kwargs)
    return trainer, WeightSource(trainer.policy.zero, model.lm, model_dir, min_bytes=1, adapter=adapter)


def _adapter(source: WeightSource) -> dict[str, Any]:
    with source.lent_adapter() as tensors:
        return {name: tensor.numpy().copy() for name, tensor in tensors.items()}


def _gradients(stage: int, layout: str, model_dir: Path) -> dict[str, Any]:
    trainer, source = _trainer(stage, layout, model_dir, config={"gradient_clip": "off"}, optimizer=reveal_trained)
    trainer.step(mixed_batch())
    return _adapter(source)


def _adamw(stage: int, model_dir: Path) -> dict[str, Any]:
    """Three updates as a run makes them, and the weights that are beneath."""
    trainer, source = _trainer(stage, "packed", model_dir, config={"learning_rate": 1e-2, "weight_decay": 0.1})
    for version in range(3):
        trainer.step(Batch(version=version, rows=mixed_batch().rows))
    return {"adapter": _adapter(source), "optimizer elements": _state_elements(trainer.policy.zero.engine.optimizer)}


def _state_elements(optimizer: Any) -> int:
    """Elements of AdamW's first moment on this rank; DeepSpeed holds the optimizer itself in its own."""
    inner = getattr(optimizer, "optimizer", optimizer)
    return sum(state["exp_avg"].numel() for state in inner.state.values())
