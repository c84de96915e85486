"""Runs a function on real trainer ranks, each a process of its own, and what the trainer's stack tests run there."""

from __future__ import annotations

import multiprocessing
import queue
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from trainer_builders import mixed_batch, on_policy, row

from agentrl.types import Batch
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import process_group
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.deepspeed.rank import TrainerRank
from agentrl_trainers.deepspeed.trainer import DeepSpeedTrainer
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.model import PolicyModel, load_policy

STAGES = (0, 1, 2, 3)
LAYOUTS: dict[str, dict[str, Any]] = {
    "one row": {"packing": False, "micro_batch_rows": 1},
    "two rows": {"packing": False, "micro_batch_rows": 2},
    "four rows": {"packing": False, "micro_batch_rows": 4},
    "packed": {"packing": True, "micro_batch_tokens": 32},
    "packed, logits in chunks": {"packing": True, "micro_batch_tokens": 64, "logit_chunk_tokens": 5},
}
SPLIT_EVERYTHING = {"zero3_keep_below": 0, "weight_group_min_bytes": 1}


class Reveal(torch.optim.Optimizer):
    """Leaves the gradient where the weights were, so that it can be read in any ZeRO stage without rounding."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(parameter.grad)


def reveal(model: PolicyModel, config: TrainerConfig) -> Reveal:
    return Reveal(model.parameters())


def sgd(model: PolicyModel, config: TrainerConfig) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=config.learning_rate)


def run_ranks(
    scenario: Callable[..., Any], world_size: int, *args: object, timeout_s: float = 150, forked: bool = False
) -> list[Any]:
    """Results of `scenario(rank, port_queue, *args)` of each rank, in rank order. No process outlives the call.

    forked: from a server that has imported everything, which saves seconds a process where there are many.
    """
    context = forkserver() if forked else multiprocessing.get_context("spawn")
    ports, results = context.Queue(), context.Queue()
    processes = [
        context.Process(target=_child, args=(scenario, rank, world_size, ports, results, args), daemon=True)
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    try:
        while len(found) < world_size:
            rank, result, error = results.get(timeout=timeout_s)
            if error is not None:
                raise AssertionError(f"rank {rank} of {world_size} failed:\n{error}")
            found[rank] = result
    except queue.Empty:
        raise AssertionError(f"ranks {set(range(world_size)) - found.keys()} gave nothing in {timeout_s} s") from None
    finally:
        for process in processes:
            process.join(timeout=10 if len(found) == world_size else 0)
            process.kill()
            process.join()
    return [found[rank] for rank in range(world_size)]


def forkserver() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["deepspeed", "agentrl_trainers.deepspeed.rank", "transformers.models.qwen3"])
    return context


def _child(scenario: Any, rank: int, world_size: int, ports: Any, results: Any, args: tuple[object, ...]) -> None:
    try:
        results.put((rank, scenario(rank, world_size, ports, *args), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))


def everything(rank: int, world_size: int, ports: Any, model_dir: Path, out_dir: Path) -> dict[str, Any]:
    """One life of a trainer rank; while its process group is there, the layouts and the bare engine as well."""
    stage = 0 if world_size == 1 else 3
    config = TrainerConfig.model_validate(
        {"zero_stage": stage, "learning_rate": 0.5, "ranks": world_size, **SPLIT_EVERYTHING}
    )
    trainer = TrainerRank(rank, world_size, "127.0.0.1", 0, str(model_dir), config, 3, optimizer=sgd)
    trainer.setup(meet(trainer, rank, world_size, ports))
    found = {
        "life": _life(trainer, out_dir),
        "linear": {stage: _linear(stage, rank, world_size) for stage in STAGES},
        "gradients": {(s, layout): gradients(s, layout, model_dir) for s in STAGES for layout in LAYOUTS},
        "on policy": {(s, layout): one_step(s, layout, model_dir) for s in (0, 2, 3) for layout in LAYOUTS},
        "adamw": {stage: three_updates(stage, model_dir) for stage in STAGES},
    }
    trainer.shutdown()
    trainer.shutdown()
    return found


def join(rank: int, world_size: int, ports: Any) -> None:
    """Into the ranks' process group, for what needs no TrainerRank."""
    store = process_group.open_store(rank, world_size, "127.0.0.1", ports.get(timeout=60) if rank else 0, 60)
    if rank == 0:
        for _ in range(world_size - 1):
            ports.put(store.port)  # type: ignore[attr-defined]
    process_group.join(store, rank, world_size, "127.0.0.1", 60)


def meet(trainer: TrainerRank, rank: int, world_size: int, ports: Any) -> int:
    if rank:
        return ports.get(timeout=60)
    port = trainer.bind()
    for _ in range(world_size - 1):
        ports.put(port)
    return port


def _life(trainer: TrainerRank, out_dir: Path) -> dict[str, Any]:
    """Three updates, each published; the last exported."""
    published, metrics = [], []
    for version in (1, 2, 3):
        metrics.append(trainer.step(Batch(version=version - 1, rows=mixed_batch().rows)))
        groups = range(len(trainer.weight_plan()))
        published.append([trainer.write_weights(version, index, str(out_dir / "shm")) for index in groups])
    for _ in range(2):
        trainer.export(str(out_dir / "export"), 3)
    return {"metrics": metrics, "published": published, "logprobs": trainer.logprobs(mixed_batch().rows)}


def _linear(stage: int, rank: int, world_size: int) -> dict[str, Any]:
    """Linear(4 -> 1), SGD at rate 1, no clipping, inputs e1..e4 as micro-batches: first with one NaN, then without."""
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    zero = ZeroEngine(model, optimizer, stage=stage, gradient_clip=None, keep_below=0)
    losses = [lambda module, x=x: module(x).sum() for x in torch.eye(4)[rank::world_size]]
    bad = [*losses[:-1], lambda module: module(torch.full((4,), float("nan"))).sum()]
    weight = model.weight
    skipped = zero.update(bad if rank == world_size - 1 else losses, 1.0)
    with zero.gathered([weight]):
        kept = weight.detach().flatten().tolist()
    update = zero.update(losses, 1.0)
    with zero.gathered([weight]):
        moved = weight.detach().flatten().tolist()
    return {"skipped": skipped, "kept": kept, "update": update, "moved": moved}


def make_trainer(stage: int, layout: str, model_dir: Path, **kwargs: Any) -> tuple[DeepSpeedTrainer, WeightSource]:
    values = {"zero_stage": stage, **SPLIT_EVERYTHING, **LAYOUTS[layout], **kwargs.pop("config", {})}
    config = TrainerConfig.model_validate(values)
    model = load_policy(model_dir, logit_chunk=config.logit_chunk_tokens)
    trainer = DeepSpeedTrainer(model, config, 3, model_path=model_dir, **kwargs)
    return trainer, WeightSource(trainer.policy.zero, model.lm, model_dir, min_bytes=1)


def whole_weights(source: WeightSource) -> dict[str, Any]:
    gathered = source.gather([name for group in source.groups for name in group.names])
    return {name: tensor.numpy() for name, tensor in gathered.items()}


def gradients(stage: int, layout: str, model_dir: Path, **config: Any) -> dict[str, Any]:
    trainer, source = make_trainer(
        stage, layout, model_dir, config={"gradient_clip": "off", **config}, optimizer=reveal
    )
    logprobs = trainer.policy.logprobs(mixed_batch().rows)
    trainer.step(mixed_batch())
    return {"logprobs": logprobs, "gradient": whole_weights(source)}


def one_step(stage: int, layout: str, model_dir: Path, **config: Any) -> Any:
    """Two rows, 2 trained tokens of loss 1 and 8 of loss 4: on-policy the loss of a token is minus its advantage."""
    trainer, _ = make_trainer(stage, layout, model_dir, config={"learning_rate": 0.0, **config})
    rows = [
        row(5, seed=1, trained=[3, 4], advantage=-1.0),
        row(15, seed=2, trained=list(range(7, 15)), advantage=-4.0, temperature=0.5),
    ]
    return trainer.step(on_policy(model_dir, Batch(version=0, rows=rows)))


def three_updates(stage: int, model_dir: Path, **config: Any) -> dict[str, Any]:
    """Three updates as a run makes them: AdamW, warm-up, clipping, weight decay."""
    config = {"learning_rate": 1e-2, "weight_decay": 0.1, **config}
    trainer, source = make_trainer(stage, "packed", model_dir, config=config)
    for version in range(3):
        trainer.step(Batch(version=version, rows=mixed_batch().rows))
    return whole_weights(source)
