"""One step of the trainer: what the models say of the batch, advantages, updates, the numbers that describe it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentrl.errors import TrainerError
from agentrl.types import Batch
from agentrl_trainers import peak_memory
from agentrl_trainers.algorithms.kl.controller import KlController
from agentrl_trainers.algorithms.mini_batches import mini_batches, untrained_sessions
from agentrl_trainers.collate import check_batch, check_rewards
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.critic import critic_metrics, load_critic
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.deepspeed.frozen import FrozenModel
from agentrl_trainers.deepspeed.layout import StepLayout
from agentrl_trainers.deepspeed.policy import DeepSpeedPolicy, PolicyUpdate
from agentrl_trainers.metrics import StepMetrics
from agentrl_trainers.model import PolicyModel
from agentrl_trainers.optimizers import OptimizerFactory, by_config
from agentrl_trainers.policy_loss import step_metrics
from agentrl_trainers.schedule import learning_rate
from agentrl_trainers.step_advantages import step_advantages
from agentrl_trainers.step_tokens import StepTokens, batch_tokens


class DeepSpeedTrainer:
    """One rank's part of all models of a run. All ranks call every method together, with the same arguments."""

    def __init__(
        self,
        model: PolicyModel,
        config: TrainerConfig,
        total_steps: int,
        *,
        model_path: str | Path,
        optimizer: OptimizerFactory = by_config,
    ) -> None:
        self.config, self.total_steps, self.model_path = config, total_steps, Path(model_path)
        self.skipped_steps = 0
        self.kl = KlController(config.kl.coefficient, config.kl.target, config.kl.horizon)
        self.policy = DeepSpeedPolicy(model, config, optimizer=optimizer)
        self.critic = load_critic(model_path, config, optimizer) if config.critic.enabled else None
        self._frozen: dict[str, FrozenModel] = {}
        if config.kl.coefficient:
            reference = model_path if config.kl.reference == "initial" else config.kl.reference
            self._frozen["reference"] = self._load_frozen(reference)
        if config.teacher.model is not None:
            self._frozen["teacher"] = self._load_frozen(config.teacher.model)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of a run besides the engines and its version: JSON, the same on every rank."""
        return {"skipped_steps": self.skipped_steps, "kl_coefficient": self.kl.coefficient}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state()` was taken. Raises TrainerError when a key is missing."""
        if missing := self.state().keys() - state.keys():
            raise TrainerError(f"the trainer's state has no {sorted(missing)}; it is of another version of agentrl")
        self.skipped_steps = int(state["skipped_steps"])
        self.kl = self.kl.restored(float(state["kl_coefficient"]))

    def engines(self) -> dict[str, ZeroEngine]:
        """Every model that is trained, by name: what a checkpoint saves."""
        engines = {"policy": self.policy.zero}
        return engines if self.critic is None else engines | {"critic": self.critic.zero}

    def close(self) -> None:
        for engine in self.engines().values():
            engine.close()

    def step(self, batch: Batch) -> StepMetrics:
        """`epochs * mini_batches` updates on the whole `batch`, of which this rank takes its share.

        An update that is not finite leaves the weights as they are and is counted. The batch's version is where the
        run stands: learning rate, the critic's warm-up and the mini-batches' shuffle go by it, whether versions before
        it had a batch or none. Raises TrainerError for a batch that cannot be trained.
        """
        started = time.monotonic()
        peak_memory.reset()
        check_batch(batch, self.policy.model_config.vocab_size)
        version, config = batch.version, self.config
        parts = mini_batches(batch.rows, count=config.mini_batches, epochs=config.epochs, seed=config.seed + version)
        tokens = self._known(batch, updates=len(parts))
        warmup = self.critic is not None and version < config.critic.warmup_steps
        rate = 0.0 if warmup else self._policy_rate(version)
        updates = self._update_policy(tokens, parts, rate, warmup=warmup)
        skipped = [done.update.skipped for done in updates]
        num_trained = batch.num_tokens * config.epochs
        means = self._update_critic(tokens, parts, version, num_trained)
        means |= _metrics(updates, num_trained, self.policy.layout)
        kl_coefficient = self.kl.coefficient
        if not warmup:
            self.kl = self.kl.after(means["reference_kl"], batch.num_tokens)
        self.skipped_steps += all(skipped)
        return StepMetrics(
            version=version + 1,
            grad_norm=max(done.update.grad_norm for done in updates),
            learning_rate=rate,
            skipped=all(skipped),
            skipped_steps=self.skipped_steps,
            updates=0 if warmup else len(updates),
            skipped_updates=sum(skipped),
            num_rows=len(batch.rows),
            num_tokens=batch.num_tokens,
            row_tokens=sum(len(row.token_ids) for row in batch.rows),
            micro_batches=sum(len(done.shares) for done in updates),
            step_s=time.monotonic() - started,
            kl_coefficient=kl_coefficient,
            untrained_sessions=untrained_sessions(batch.rows, parts, [not (warmup or gone) for gone in skipped]),
            critic_warmup=warmup,
            **means,
        )

    def _known(self, batch: Batch, *, updates: int) -> StepTokens:
        """The batch's trained tokens with what the models say of them before the updates, and their advantages."""
        tokens = batch_tokens(batch.rows)
        if updates > 1:
            tokens.vectors["proximal"] = self.policy.token_logprobs(tokens)
        for name, model in self._frozen.items():
            tokens.vectors[name] = model.logprobs(tokens)
        if self.critic is not None:
            check_rewards(batch)
            tokens.vectors["values"] = self.critic.values(tokens)
        tokens.vectors |= step_advantages(tokens, self.config, self.kl.coefficient)
        return tokens

    def _policy_rate(self, version: int) -> float:
        """The policy's schedule begins when it is first trained."""
        waited = self.config.critic.warmup_steps if self.critic is not None else 0
        return learning_rate(self.config, version - waited, self.total_steps - waited)

    def _update_policy(
        self, tokens: StepTokens, parts: Sequence[Sequence[int]], rate: float, *, warmup: bool
    ) -> list[PolicyUpdate]:
        """While the critic warms up, the policy is only measured."""
        if warmup:
            return [self.policy.measure(tokens, part, kl_coefficient=self.kl.coefficient) for part in parts]
        return [self.policy.update(tokens, part, rate, kl_coefficient=self.kl.coefficient) for part in parts]

    def _update_critic(
        self, tokens: StepTokens, parts: Sequence[Sequence[int]], version: int, num_trained: int
    ) -> dict[str, Any]:
        if self.critic is None:
            return {}
        updates = [self.critic.update(tokens, part, version, self.total_steps) for part in parts]
        return critic_metrics(updates, tokens, num_trained, self.critic.layout)

    def _load_frozen(self, path: str | Path) -> FrozenModel:
        return FrozenModel(path, self.config, self.policy.layout, vocab_size=self.policy.model_config.vocab_size)


def _metrics(updates: Sequence[PolicyUpdate], num_tokens: int, layout: StepLayout) -> dict[str, Any]:
    shares = [share for done in updates for share in done.shares]
    sums = torch.stack([share.sums for share in shares]).sum(0)
    largest = torch.stack([share.largest for share in shares]).amax(0)
    value = torch.stack([share.value for share in shares]).sum() / len(updates)
    layout.total(sums)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    layout.total(value)
    peak = torch.tensor(peak_memory.read(), dtype=torch.long, device=layout.device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return step_metrics(sums, largest, num_tokens) | {"loss": float(value), "peak_memory_bytes": int(peak)}
