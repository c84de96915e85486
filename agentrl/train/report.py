"""What one step looked like, as a record for whoever watches."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.observe.records import StepRecord
from agentrl.train.batch import PreparedBatch
from agentrl.train.producer import GroupProducer


def describe_step(
    prepared: PreparedBatch,
    *,
    metrics: Mapping[str, float],
    swap: Mapping[str, float],
    producer: GroupProducer,
    success_reward: float,
) -> StepRecord:
    """Without what is known at its end only: `phases` and `checkpoint`.

    Rewards and success count each trajectory once; a missing reward is left out of both, never a zero.
    """
    rewards = [reward for reward in prepared.rewards if reward is not None]
    return StepRecord(
        step=prepared.batch.version + 1,
        reward=sum(rewards) / len(rewards),
        success=sum(reward >= success_reward for reward in rewards) / len(rewards),
        trajectories=len(prepared.rewards),
        missing_rewards=len(prepared.rewards) - len(rewards),
        multi_version_trajectories=prepared.multi_version_trajectories,
        no_signal_groups=prepared.no_signal_groups,
        rows=len(prepared.batch.rows),
        trained_tokens=sum(prepared.lags.values()),
        sampled_tokens=prepared.sampled_tokens,
        staleness=dict(sorted(prepared.lags.items())),
        dropped_tokens={reason: count for reason, count in prepared.dropped_tokens.items() if count},
        dropped_groups=dict(producer.dropped_groups),
        failed_episodes=dict(producer.failed_episodes),
        retried_episodes=dict(producer.retried_episodes),
        refilled_groups=producer.refilled_groups,
        cut_groups=producer.cut_groups,
        cut_episodes=producer.cut_episodes,
        incomplete_groups=dict(producer.incomplete_groups),
        task_sources=producer.task_stats(),
        concurrency=dict(producer.concurrency),
        groups_under_way=producer.under_way,
        reward_parts=producer.reward_stats(),
        phases={},
        swap=dict(swap),
        trainer=dict(metrics),
    )
