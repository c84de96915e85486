"""What one step looked like, as a record for whoever watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.observe.records import StepRecord
from agentrl.train.batch import PreparedBatch, ScoredGroup
from agentrl.train.producer import GroupProducer


def describe_step(
    groups: Sequence[ScoredGroup],
    prepared: PreparedBatch,
    *,
    metrics: Mapping[str, float],
    phases: Mapping[str, float],
    swap: Mapping[str, float],
    producer: GroupProducer,
    success_reward: float,
) -> StepRecord:
    """Rewards and success count each trajectory once; a missing reward is left out of both, never a zero."""
    trajectories = [trajectory for scored in groups for trajectory in scored.trajectories]
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    return StepRecord(
        step=prepared.batch.version + 1,
        reward=sum(rewards) / len(rewards),
        success=sum(reward >= success_reward for reward in rewards) / len(rewards),
        trajectories=len(trajectories),
        missing_rewards=len(trajectories) - len(rewards),
        multi_version_trajectories=prepared.multi_version_trajectories,
        no_signal_groups=prepared.no_signal_groups,
        rows=len(prepared.batch.rows),
        trained_tokens=prepared.batch.num_tokens,
        sampled_tokens=sum(len(call.token_ids) for trajectory in trajectories for call in trajectory.calls),
        staleness=dict(sorted(prepared.lags.items())),
        dropped_tokens={reason: count for reason, count in prepared.dropped_tokens.items() if count},
        dropped_groups=dict(producer.dropped_groups),
        groups_under_way=producer.under_way,
        phases=dict(phases),
        swap=dict(swap),
        trainer=dict(metrics),
    )
