"""PPO with a critic, by real trainer ranks and by a plain script that knows nothing of ranks, packing or ZeRO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from trainer_builders import mixed_batch, on_policy, plain_gradient, plain_logprobs
from trainer_ranks import LAYOUTS, SPLIT_EVERYTHING, join, reveal
from transformers import AutoModelForCausalLM

from agentrl.types import Batch
from agentrl_trainers.algorithms.mini_batches import mini_batches
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import process_group
from agentrl_trainers.deepspeed.trainer import DeepSpeedTrainer
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.model import load_policy

STEPS = 3
STAGES = (0, 2, 3)
WAYS: dict[str, dict[str, Any]] = {
    "two rows": LAYOUTS["two rows"],
    "packed": LAYOUTS["packed"],
    "tokens shared": LAYOUTS["packed"] | {"ranks": 2, "sequence_parallel": 2},
}
SETTINGS: dict[str, Any] = {
    "learning_rate": 3e-3,
    "adam_eps": 1e-3,  # rounding in gradients of almost 0 is then not blown up to a whole step
    "warmup_steps": 0,
    "decay": "constant",
    "mini_batches": 2,
    "epochs": 2,
    "critic": {
        "enabled": True,
        "learning_rate": 3e-3,
        "gamma": 0.9,
        "lam": 0.8,
        "value_clip": 0.05,
        "warmup_steps": 1,
        "whiten": True,
    },
    "kl": {"coefficient": 0.5, "where": "reward", "estimator": "k1", "target": 0.1, "horizon": 100},
}


def ppo_batch(model_dir: Path) -> Batch:
    """Sampled by the model itself, with a reward at the last trained token of each row, and one in the middle."""
    batch = on_policy(model_dir, mixed_batch())
    for index, row in enumerate(batch.rows):
        trained = [at for at, on in enumerate(row.loss_mask) if on]
        row.rewards = [0.0] * len(row.token_ids)
        row.rewards[trained[len(trained) // 2]] += 0.25
        row.rewards[trained[-1]] += float(index % 2)
    return batch


def ppo_runs(world_size: int) -> list[tuple[int, str]]:
    """ZeRO stage and way; tokens are shared by two ranks or not at all."""
    return [(stage, way) for stage in STAGES for way in WAYS if way != "tokens shared" or (world_size == 2 and stage)]


def by_ranks(rank: int, world_size: int, ports: Any, model_dir: Path, reference_dir: Path) -> dict[Any, Any]:
    """What STEPS steps make of both models, by ZeRO stage and way; and a teacher's gradient by stage.

    To be called by `run_ranks`.
    """
    torch.set_num_threads(1)
    join(rank, world_size, ports)
    runs = ppo_runs(world_size)
    found: dict[Any, Any] = {(stage, way): _train(stage, way, model_dir, reference_dir) for stage, way in runs}
    found["teacher"] = {stage: _gradient_by_a_teacher(stage, model_dir, reference_dir) for stage in STAGES}
    found["half skipped"] = _half_skipped(model_dir)
    process_group.leave()
    return found


def _half_skipped(model_dir: Path) -> Any:
    """The first batch of a run of 4 steps is that of version 2; the advantage of its first row is above all bounds.

    Two warm-up steps, two epochs of two updates.
    """
    values = {"mini_batches": 2, "epochs": 2, "skip_gradient_norm": 1e3, "learning_rate": 1e-3, "warmup_steps": 2}
    config = TrainerConfig.model_validate({**values, **LAYOUTS["packed"], "zero_stage": 0})
    model = load_policy(model_dir, logit_chunk=config.logit_chunk_tokens)
    batch = on_policy(model_dir, Batch(version=2, rows=mixed_batch().rows))
    batch.rows[0].advantages = [-1e6 * on for on in batch.rows[0].loss_mask]
    return DeepSpeedTrainer(model, config, 4, model_path=model_dir).step(batch)


def _gradient_by_a_teacher(stage: int, model_dir: Path, teacher_dir: Path) -> dict[str, Any]:
    """The gradient of one step, the teacher's opinion on top of the batch's advantages."""
    teacher = {"model": str(teacher_dir), "coefficient": 0.5, "replace": False}
    values = {"gradient_clip": "off", "teacher": teacher, "zero_stage": stage, **SPLIT_EVERYTHING, **LAYOUTS["packed"]}
    config = TrainerConfig.model_validate(values)
    model = load_policy(model_dir, logit_chunk=config.logit_chunk_tokens)
    trainer = DeepSpeedTrainer(model, config, 1, model_path=model_dir, optimizer=reveal)
    trainer.step(mixed_batch())
    source = WeightSource(trainer.policy.zero, model.lm, model_dir, min_bytes=1)
    gathered = source.gather([name for group in source.groups for name in group.names])
    return {name: tensor.numpy() for name, tensor in gathered.items()}


def gradient_with_a_teacher(model_dir: Path, teacher_dir: Path) -> dict[str, torch.Tensor]:
    """The same by the plain loss, with advantages in which the teacher's opinion is added up by hand."""
    teacher, batch = _load(teacher_dir), mixed_batch()
    for row in batch.rows:
        with torch.no_grad():
            opinion = [0.0, *plain_logprobs(teacher, row).tolist()]
        for at, on in enumerate(row.loss_mask):
            row.advantages[at] += on * 0.5 * (opinion[at] - row.logprobs[at])
    return plain_gradient(model_dir, batch)


def _train(stage: int, way: str, model_dir: Path, reference_dir: Path) -> dict[str, Any]:
    kl = SETTINGS["kl"] | {"reference": str(reference_dir)}
    values = {**SETTINGS, "kl": kl, "zero_stage": stage, **SPLIT_EVERYTHING, **WAYS[way]}
    config = TrainerConfig.model_validate(values)
    model = load_policy(model_dir, logit_chunk=config.logit_chunk_tokens)
    trainer = DeepSpeedTrainer(model, config, STEPS, model_path=model_dir)
    source = WeightSource(trainer.policy.zero, model.lm, model_dir, min_bytes=1)
    metrics, policies = [], []
    for version in range(STEPS):
        metrics.append(trainer.step(Batch(version=version, rows=ppo_batch(model_dir).rows)))
        gathered = source.gather([name for group in source.groups for name in group.names])
        policies.append({name: tensor.clone().numpy() for name, tensor in gathered.items()})
    critic = {}
    for name, weight in trainer.critic.model.lm.named_parameters():
        with trainer.critic.zero.gathered([weight]):
            critic[name] = weight.detach().clone().numpy()
    state = trainer.state()
    trainer.close()
    return {"metrics": metrics, "policies": policies, "critic": critic, "state": state}


class PlainPpo:
    """Loops over rows and tokens, one row at a time, the formulas as they are published."""

    def __init__(self, model_dir: Path, reference_dir: Path) -> None:
        self.policy, self.reference, self.critic = (_load(path) for path in (model_dir, reference_dir, model_dir))
        self.head = torch.nn.Parameter(torch.zeros(1, self.critic.config.hidden_size))
        self.body = [weight for name, weight in self.critic.named_parameters() if not name.startswith("lm_head")]
        self.actor_optimizer = torch.optim.AdamW(self.policy.parameters(), 3e-3, (0.9, 0.95), 1e-3, 0.0)
        self.critic_optimizer = torch.optim.AdamW([*self.body, self.head], 3e-3, (0.9, 0.95), 1e-3, 0.0)
        self.beta = 0.5

    def values(self, row: Any) -> torch.Tensor:
        """`[T - 1]`: of the states before tokens 1.."""
        return (self.critic.model(input_ids=torch.tensor([row.token_ids])).last_hidden_state[0, :-1] @ self.head.T)[
            :, 0
        ]

    def step(self, batch: Batch, number: int) -> dict[str, float]:
        rows = batch.rows
        trained = [[at - 1 for at, on in enumerate(row.loss_mask) if on] for row in rows]
        count = sum(map(len, trained))
        with torch.no_grad():
            old = [self.values(row) for row in rows]
            reference = [plain_logprobs(self.reference, row) for row in rows]
        advantages, returns = [], []
        for row, at, value, target in zip(rows, trained, old, reference, strict=True):
            advantage, following, carried = {}, 0.0, 0.0
            for t in reversed(at):
                reward = row.rewards[t + 1] - self.beta * (row.logprobs[t + 1] - float(target[t]))
                carried = reward + 0.9 * following - float(value[t]) + 0.9 * 0.8 * carried
                advantage[t], following = carried, float(value[t])
            advantages.append(advantage)
            returns.append({t: advantage[t] + float(value[t]) for t in at})
        flat = torch.tensor([advantages[i][t] for i in range(len(rows)) for t in trained[i]], dtype=torch.float64)
        mean, std = float(flat.mean()), float(flat.std(correction=0))
        errors, goals, divergence, lost, clipped = [], [], 0.0, 0.0, 0
        for i in range(len(rows)):
            errors += [returns[i][t] - float(old[i][t]) for t in trained[i]]
            goals += [returns[i][t] for t in trained[i]]
        for part in mini_batches(rows, count=2, epochs=2, seed=number):
            size = sum(len(trained[i]) for i in part)
            actor_loss, critic_loss = torch.zeros(()), torch.zeros(())
            for i in part:
                logprobs, values = plain_logprobs(self.policy, rows[i]), self.values(rows[i])
                for t in trained[i]:
                    ratio = torch.exp(logprobs[t] - rows[i].logprobs[t + 1])
                    weight = (advantages[i][t] - mean) / std
                    actor_loss = actor_loss - min(ratio * weight, ratio.clamp(0.8, 1.2) * weight) / size
                    divergence += float(logprobs[t].detach() - reference[i][t])
                    near = old[i][t] + (values[t] - old[i][t]).clamp(-0.05, 0.05)
                    free, bounded = (values[t] - returns[i][t]) ** 2, (near - returns[i][t]) ** 2
                    critic_loss = critic_loss + 0.5 * max(free, bounded) / size
                    lost += 0.5 * float(max(free, bounded).detach())
                    clipped += bool(bounded > free and abs(values[t] - old[i][t]) > 0.05)
            if number:  # the first step warms the critic up
                self._descend(self.actor_optimizer, actor_loss, self.policy.parameters())
            self._descend(self.critic_optimizer, critic_loss, [*self.body, self.head])
        if number:
            error = min(max((divergence / (2 * count) - 0.1) / 0.1, -0.2), 0.2)
            self.beta *= 1 + error * min(1, count / 100)
        variance = torch.tensor(goals).double().var(correction=0)
        explained = 1 - float(torch.tensor(errors).double().var(correction=0) / variance)
        return {
            "value_loss": lost / (2 * count),
            "value_clip_fraction": clipped / (2 * count),
            "explained_variance": explained,
        }

    def _descend(self, optimizer: Any, loss: torch.Tensor, weights: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()


def _load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
