"""What the tests of the engine under the trainer run on real ranks: small enough that every number is known by hand."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import torch
from trainer_builders import mixed_batch
from trainer_ranks import gradients, join, make_trainer, one_step, three_updates, whole_weights

from agentrl.types import Batch
from agentrl_trainers.deepspeed import checkpoint
from agentrl_trainers.deepspeed.engine import Update, ZeroEngine
from agentrl_trainers.ema import WeightAverage
from agentrl_trainers.settings.memory import MemoryConfig

NOTHING = MemoryConfig()
OPTIMIZER = MemoryConfig(offload_optimizer="cpu")
EVERYTHING = MemoryConfig(offload_optimizer="cpu", offload_weights="cpu")
PLACES = {"nothing": NOTHING, "optimizer": OPTIMIZER, "optimizer and weights": EVERYTHING}
CASES = [
    (stage, offloaded)
    for stage, offloaded in product((0, 1, 2, 3), PLACES)
    if offloaded == "nothing" or stage == 3 or (stage and offloaded == "optimizer")
]

FEWER = [(stage, "nothing") for stage in (0, 1, 2, 3)] + [(3, "optimizer and weights")]
IN_BFLOAT16 = [(2, "nothing"), (2, "optimizer"), (3, "nothing"), (3, "optimizer and weights")]

RECOMPUTED = {"memory": {"activation_checkpointing": True}}
SHARED = {"ranks": 2, "sequence_parallel": 2}
MODELS: dict[str, dict[str, Any]] = {
    "recomputed": RECOMPUTED,
    "offloaded": {"memory": {"offload_optimizer": "cpu"}},
    "tokens shared": SHARED,
    "tokens shared, recomputed": SHARED | RECOMPUTED,
}


def engines(rank: int, world_size: int, ports: Any, model_dir: Path, out_dir: Path) -> dict[str, Any]:
    """Every combination of stage and offload on a layer of a few weights, then ways to train the tiny model."""
    join(rank, world_size, ports)
    cases = model_cases(world_size)
    return {
        "gradients": {case: gradients(case[0], case[2], model_dir, **MODELS[case[1]]) for case in cases},
        "steps": {case: one_step(case[0], case[2], model_dir, **MODELS[case[1]]) for case in cases if case[0] == 0},
        "rates": {count: _rates(count, model_dir) for count in (1, 5)},
        "average of a model": _average_of_a_model(3 if world_size == 2 else 0, model_dir, out_dir),
        "skipped": {case: _skipped(*case, rank, world_size) for case in CASES},
        "averaged": {case: _averaged(*case, rank, world_size) for case in FEWER},
        "bfloat16": {case: _bfloat16(*case, rank, world_size) for case in IN_BFLOAT16},
        "bfloat16, summed": {case: _summed_in_float32(*case, rank, world_size) for case in IN_BFLOAT16},
    }


def model_cases(world_size: int) -> list[tuple[int, str, str]]:
    """Stage, way and layout; what needs two ranks, or a stage above 0, is left out where there is none."""
    layouts = ("packed", "packed, logits in chunks", "four rows")
    cases = [(stage, "recomputed", "packed") for stage in (0, 3)]
    cases += [(stage, "offloaded", "packed") for stage in (2, 3)]
    if world_size == 2:
        cases += [(stage, "tokens shared", "packed") for stage in (1, 2, 3)]
        cases += [(0, "tokens shared", layout) for layout in layouts]
        cases += [(3, "tokens shared, recomputed", "packed, logits in chunks")]
    return cases


class Line:
    """Linear(width -> 1) without bias, plain SGD, no clipping."""

    def __init__(self, stage: int, offloaded: str, *, width: int = 4, start: float = 0.0, **kwargs: Any) -> None:
        dtype = torch.bfloat16 if kwargs.get("dtype") == "bfloat16" else torch.float32
        self.model = torch.nn.Linear(width, 1, bias=False, dtype=dtype)
        torch.nn.init.constant_(self.model.weight, start)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        memory = PLACES[offloaded]
        self.zero = ZeroEngine(
            self.model, optimizer, stage=stage, gradient_clip=None, keep_below=0, memory=memory, **kwargs
        )

    def update(self, inputs: torch.Tensor, rank: int, world_size: int) -> Update:
        """One input `[width]` a micro-batch, spread over the ranks; the gradient is their sum."""
        inputs = inputs.to(self.model.weight.dtype)
        return self.zero.update([lambda module, x=x: module(x).sum() for x in inputs[rank::world_size]], 1.0)

    def weights(self) -> list[float]:
        with self.zero.gathered([self.model.weight]):
            return self.model.weight.detach().flatten().tolist()


def _skipped(stage: int, offloaded: str, rank: int, world_size: int) -> list[tuple[Update, list[float]]]:
    """Gradients of norm 2, then 1 twice, under a bound of 1.5."""
    line = Line(stage, offloaded, skip_above=1.5)
    found = []
    for scale in (1.0, 0.5, 0.5):
        update = line.update(scale * torch.eye(4), rank, world_size)
        found.append((update, line.weights()))
    return found


def _averaged(stage: int, offloaded: str, rank: int, world_size: int) -> dict[str, Any]:
    """Decay 0.5 over two updates of -1 each, on 5 weights, which two ranks cannot halve; then another one put."""
    line = Line(stage, offloaded, width=5, ema=0.5, skip_above=10.0)
    for scale in (0.25, 25.0, 0.25):  # the second is skipped
        line.update(torch.full((4, 5), scale), rank, world_size)
    average, weight = line.zero.average, line.model.weight
    assert average is not None
    whole = average.whole(weight)
    again = WeightAverage([weight], 0.5)
    again.put(weight, torch.arange(5.0)[None])
    return {
        "whole": whole.tolist(),
        "put": again.whole(weight).tolist(),
        "held": average.held(weight).numel(),
        "weights": line.weights(),
    }


def _bfloat16(stage: int, offloaded: str, rank: int, world_size: int) -> list[float]:
    """Ten updates of 1/512 from 1: each is half of what bfloat16 can tell from 1."""
    line = Line(stage, offloaded, start=1.0, dtype="bfloat16")
    for _ in range(10):
        line.update(torch.eye(4) / 512, rank, world_size)
    return line.weights()


def _summed_in_float32(stage: int, offloaded: str, rank: int, world_size: int) -> tuple[Update, list[float]]:
    """One update of 512 micro-batches a rank, each with gradient 1."""
    line = Line(stage, offloaded, dtype="bfloat16")
    update = line.update(torch.ones(512 * world_size, 4), rank, world_size)
    return update, line.weights()


def _rates(mini_batches: int, model_dir: Path) -> list[Any]:
    """Metrics of a run of 4 steps with 2 warm-up steps."""
    config = {"learning_rate": 1e-3, "warmup_steps": 2, "mini_batches": mini_batches}
    trainer, _ = make_trainer(0, "packed", model_dir, config=config)
    trainer.total_steps = 4
    return [trainer.step(Batch(version=version, rows=mixed_batch().rows)) for version in range(4)]


def _average_of_a_model(stage: int, model_dir: Path, out_dir: Path) -> dict[str, Any]:
    """Two steps; the weights before and after each; exported, then saved and taken up in another ZeRO stage."""
    config = {"learning_rate": 0.5, "warmup_steps": 0, "ema": 0.5, "optimizer": "sgd"}
    trainer, source = make_trainer(stage, "packed", model_dir, config=config)
    weights = [whole_weights(source)]
    for version in range(2):
        trainer.step(Batch(version=version, rows=mixed_batch().rows))
        weights.append(whole_weights(source))
    source.export(out_dir / "export", 2)
    checkpoint.save(trainer, out_dir / "saved", 2)
    resumed, resumed_source = make_trainer(1, "packed", model_dir, config=config)
    checkpoint.load(resumed, out_dir / "saved")
    resumed_source.export(out_dir / "resumed", 2)
    without, _ = make_trainer(2, "packed", model_dir, config=config | {"ema": "off"})
    checkpoint.load(without, out_dir / "saved")
    return {"weights": weights, "step without": without.step(Batch(version=2, rows=mixed_batch().rows))}


SPLIT = {"ranks": 2, "tensor_parallel": 2}
SPLIT_CASES = [(stage, way) for stage in (0, 1, 2) for way in ("plain", "recomputed") if stage == 1 or way == "plain"]


def split_matrices(rank: int, world_size: int, ports: Any, model_dir: Path, biased: Path, out: Path) -> dict[str, Any]:
    """Two ranks that share every matrix. In processes of their own: DeepSpeed's groups stay for the process's life."""
    join(rank, world_size, ports)
    ways: dict[str, dict[str, Any]] = {"plain": SPLIT, "recomputed": SPLIT | RECOMPUTED}
    return {
        "gradients": {case: gradients(case[0], "packed", model_dir, **ways[case[1]]) for case in SPLIT_CASES},
        "biased": gradients(0, "packed", biased, **SPLIT),
        "step": one_step(0, "four rows", model_dir, **SPLIT),
        "adamw": {stage: three_updates(stage, model_dir, **SPLIT) for stage in (0, 1, 2)},
        "held": _held(model_dir),
        "saved": _saved_by_parts(model_dir, out),
    }


def _held(model_dir: Path) -> int:
    trainer, _ = make_trainer(0, "packed", model_dir, config=SPLIT)
    return sum(parameter.numel() for parameter in trainer.policy.zero.module.parameters())


def _saved_by_parts(model_dir: Path, out: Path) -> dict[str, Any]:
    """Saved at ZeRO 1 after two steps, a third made; the third made again by who loads it at ZeRO 0 and 2."""
    config = SPLIT | {"learning_rate": 1e-2, "ema": 0.5}
    trainer, source = make_trainer(1, "packed", model_dir, config=config)
    for version in range(2):
        trainer.step(Batch(version=version, rows=mixed_batch().rows))
    checkpoint.save(trainer, out / "saved", 2)
    found = {}
    for stage in (1, 0, 2):
        if stage != 1:
            trainer, source = make_trainer(stage, "packed", model_dir, config=config)
            checkpoint.load(trainer, out / "saved")
        trainer.step(Batch(version=2, rows=mixed_batch().rows))
        source.export(out / f"export{stage}", 3)
        found[stage] = whole_weights(source)
    return found


def shared_by_four(rank: int, world_size: int, ports: Any, model_dir: Path, way: dict[str, Any]) -> dict[int, Any]:
    """Rows on two pairs of ranks, each pair sharing matrices or tokens: gradients by ZeRO stage."""
    join(rank, world_size, ports)
    return {stage: gradients(stage, "packed", model_dir, **way) for stage in (0, 2)}
