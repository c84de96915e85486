"""One step by our trainer and by the plain script, for every objective, ZeRO stage and number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from objective_cases import CASES, Case, batch_near
from plain_trainer import forward, plain_step
from trainer_ranks import join
from transformers import AutoModelForCausalLM

from agentrl.types import Batch
from agentrl_trainers.algorithms.mini_batches import mini_batches
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import process_group
from agentrl_trainers.deepspeed.trainer import DeepSpeedTrainer
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.model import load_policy

RATE, DECAY = 1e-3, 0.1
EPSILON = 1e-5  # AdamW's: with less, an element whose gradient is rounding alone moves by the sign of the rounding


RUNS = [(name, stage) for name, case in CASES.items() for stage in case.stages]
TOKENS_SHARED = [("gspo", 0), ("sequence weighted mask", 3), ("entropy bonus", 0), ("kl k3", 3)]
"""And with two ranks that share every row's tokens."""


def batch_of(model_dir: Path) -> Batch:
    model = plain_model(model_dir)
    with torch.no_grad():
        return batch_near(lambda one: forward(model, one)[0].tolist())


def plain_model(model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")


def by_plain_script(case: Case, model_dir: Path, reference_dir: Path, batch: Batch) -> dict[str, Any]:
    """The script's weights after its step, and the loss and gradient norm of each update."""
    model = plain_model(model_dir)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=EPSILON)
    count, epochs = case.updates.get("mini_batches", 1), case.updates.get("epochs", 1)
    parts = mini_batches(batch.rows, count=count, epochs=epochs, seed=0)
    done = plain_step(model, optimizer, batch.rows, parts, case.plain, plain_model(reference_dir))
    losses, norms = zip(*done, strict=True)
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    return {"weights": weights, "loss": sum(losses) / len(losses), "norm": max(norms)}


def by_trainer_ranks(
    rank: int, world_size: int, ports: Any, model_dir: Path, reference_dir: Path, batch: Batch
) -> dict[Any, dict[str, Any]]:
    """The same of our trainer, by case and ZeRO stage, and of two ranks that share tokens; weights on rank 0 alone.

    To be called by `run_ranks`.
    """
    torch.set_num_threads(1)
    join(rank, world_size, ports)
    dirs = (model_dir, reference_dir)
    found: dict[Any, Any] = {(name, stage): _step(CASES[name], stage, *dirs, batch) for name, stage in RUNS}
    if world_size == 2:
        shared = {"ranks": 2, "sequence_parallel": 2}
        found |= {(*run, "shared"): _step(CASES[run[0]], run[1], *dirs, batch, **shared) for run in TOKENS_SHARED}
    process_group.leave()
    return found


def _step(case: Case, stage: int, model_dir: Path, reference_dir: Path, batch: Batch, **layout: int) -> dict[str, Any]:
    schedule = {
        "learning_rate": RATE,
        "weight_decay": DECAY,
        "adam_eps": EPSILON,
        "warmup_steps": 0,
        "decay": "constant",
    }
    split = {"zero_stage": stage, "zero3_keep_below": 0, "micro_batch_tokens": 32, "logit_chunk_tokens": 5}
    kl = {"kl": {**case.config["kl"], "reference": str(reference_dir)}} if "kl" in case.config else {}
    config = TrainerConfig.model_validate({**schedule, **split, **case.config, **case.updates, **kl, **layout})
    model = load_policy(model_dir, logit_chunk=config.logit_chunk_tokens)
    trainer = DeepSpeedTrainer(model, config, 1, model_path=model_dir)
    metrics = trainer.step(batch)
    source = WeightSource(trainer.policy.zero, model.lm, model_dir, min_bytes=1)
    gathered = source.gather([name for group in source.groups for name in group.names])
    weights = {name: tensor.numpy() for name, tensor in gathered.items()}
    return {"weights": weights, "loss": metrics.loss, "norm": metrics.grad_norm}
