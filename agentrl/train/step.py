"""One batch through the trainer, and what its books say afterwards."""

from __future__ import annotations

from agentrl.train.batch import CRITIC_WARMUP, STEP_SKIPPED, PreparedBatch
from agentrl.train.ports import Stepper, StepResult


async def train_on(trainer: Stepper, prepared: PreparedBatch) -> dict[str, float]:
    """The step's metrics. What gave the policy no gradient is named so in the books of `prepared`.

    An empty batch (nothing had a signal) makes a version too, of the same weights; the trainer is not asked.
    """
    empty = StepResult({"skipped": 1.0})
    step = await trainer.step(prepared.batch) if prepared.batch.rows else empty
    reason = CRITIC_WARMUP if step.metrics.get("critic_warmup") else STEP_SKIPPED
    prepared.without_gradient(reason, step.untrained_sessions)
    return step.metrics
