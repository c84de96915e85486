"""One step of a run that learns from data, and its loss on data that it does not learn from."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentrl.errors import TrainerError
from agentrl.types import Batch, TrainRow
from agentrl_trainers.algorithms.aggregation.denominators import Denominators, denominators
from agentrl_trainers.collate import MicroBatch, check_batch
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.deepspeed.policy import DeepSpeedPolicy
from agentrl_trainers.optimizers import OptimizerFactory, by_config
from agentrl_trainers.schedule import learning_rate
from agentrl_trainers.step_tokens import StepTokens, batch_tokens
from agentrl_trainers.supervised.config import SupervisedTrainerConfig
from agentrl_trainers.supervised.objectives import Share, SupervisedObjective


class SupervisedTrainer:
    """One rank's part. All ranks call every method together, with the same arguments.

    `model` is what `objective` asks: a PolicyModel or a ValueModel.
    """

    def __init__(
        self,
        model: Any,
        config: SupervisedTrainerConfig,
        total_steps: int,
        objective: SupervisedObjective,
        *,
        model_path: str | Path,
        optimizer: OptimizerFactory = by_config,
    ) -> None:
        self.config, self.total_steps, self.objective = config, total_steps, objective
        self.model_path = Path(model_path)
        self.steps, self.skipped_steps = 0, 0
        self.policy = DeepSpeedPolicy(model, config, optimizer=optimizer)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of a run besides the engine: JSON, the same on every rank."""
        return {"steps": self.steps, "skipped_steps": self.skipped_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state()` was taken. Raises TrainerError when a key is missing."""
        if missing := self.state().keys() - state.keys():
            raise TrainerError(f"the trainer's state has no {sorted(missing)}; it is of another version of agentrl")
        self.steps, self.skipped_steps = int(state["steps"]), int(state["skipped_steps"])

    def engines(self) -> dict[str, ZeroEngine]:
        """Every model that is trained, by name: what a checkpoint saves."""
        return {"policy": self.policy.zero}

    def close(self) -> None:
        for engine in self.engines().values():
            engine.close()

    def step(self, batch: Batch) -> dict[str, float]:
        """One update on the whole `batch`, of which this rank takes its share; metrics, the same on every rank.

        An update that is not finite leaves the weights as they are and is counted. Raises TrainerError for a batch
        that cannot be trained.
        """
        started = time.monotonic()
        tokens, of = self._checked(batch)
        rate = learning_rate(self.config, self.steps, self.total_steps)
        shares: list[Share] = []

        def loss_of(micro_batch: MicroBatch, model: Any) -> torch.Tensor:
            shares.append(self.objective.share(model, micro_batch, of))
            return shares[-1].loss

        micro_batches = [self.policy.layout.collate(tokens, indices) for indices in self._plan(batch.rows)]
        update = self.policy.zero.update([partial(loss_of, micro_batch) for micro_batch in micro_batches], rate)
        self.steps += 1
        self.skipped_steps += update.skipped
        return self._metrics(shares, of) | {
            "grad_norm": update.grad_norm,
            "learning_rate": rate,
            "skipped": float(update.skipped),
            "skipped_steps": float(self.skipped_steps),
            "rows": float(len(batch.rows)),
            "trained_tokens": float(of.tokens),
            "row_tokens": float(sum(len(row.token_ids) for row in batch.rows)),
            "micro_batches": float(len(shares)),
            "step_s": time.monotonic() - started,
        }

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Loss and metrics of rows that are not trained on, under the weights as they are."""
        tokens, of = self._checked(batch)
        with torch.no_grad():
            shares = [
                self.objective.share(self.policy.zero.engine, self.policy.layout.collate(tokens, indices), of)
                for indices in self._plan(batch.rows)
            ]
        return self._metrics(shares, of)

    def _checked(self, batch: Batch) -> tuple[StepTokens, Denominators]:
        check_batch(batch, self.policy.model_config.vocab_size)
        if len(batch.rows) % self.objective.rows_per_item:
            raise TrainerError(f"a batch of pairs has {len(batch.rows)} rows; give a chosen and a rejected row each")
        if self.objective.rows_per_item > 1 and not all(any(row.loss_mask) for row in batch.rows):
            raise TrainerError("a row of a pair has no trained token; leave out such pairs")
        return batch_tokens(batch.rows), denominators(batch.rows)

    def _plan(self, rows: Sequence[TrainRow]) -> list[list[int]]:
        """This rank's micro-batches: indices into `rows`, those of an item side by side."""
        each = self.objective.rows_per_item
        lengths = [sum(len(row.token_ids) for row in rows[at : at + each]) for at in range(0, len(rows), each)]
        plan = self.policy.layout.plan_items(lengths, rows_each=each)
        return [[each * item + row for item in items for row in range(each)] for items in plan]

    def _metrics(self, shares: Sequence[Share], of: Denominators) -> dict[str, float]:
        loss = torch.stack([share.loss.detach().double() for share in shares]).sum()
        sums = torch.cat([loss[None], torch.stack([share.sums for share in shares]).sum(0)])
        self.policy.layout.total(sums)
        loss_sum, *others = sums.tolist()
        count = self.objective.count(of)
        return {"loss": loss_sum} | {
            name: value / count for name, value in zip(self.objective.names, others, strict=True)
        }
