"""From finished groups to one batch of training rows: verdicts, advantages, masks, and the books of what is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from agentrl.store.base import TRAINED, Settlement
from agentrl.train.config import AlgorithmConfig, StalenessConfig
from agentrl.train.staleness import fresh_mask, on_policy_mask, token_lags, worst_lag
from agentrl.types import Batch, Group, Row, TrainRow, Trajectory

STEP_SKIPPED = "step_skipped"
"""The outcome of what was in a batch whose loss or gradient was not finite: the weights did not move."""

AdvantageEstimator = Callable[[Sequence[float | None]], list[float | None]]
"""rewards_G -> advantages_G, None where the reward is None."""


@dataclass(frozen=True)
class ScoredGroup:
    """A whole group with its final rewards, as the store holds it."""

    group: Group
    trajectories: list[Trajectory]

    @property
    def rewards(self) -> list[float | None]:  # [G]
        return [trajectory.reward for trajectory in self.trajectories]


@dataclass
class PreparedBatch:
    """One step's batch and its books: what becomes of every trajectory and every sampled token."""

    batch: Batch
    settlements: dict[str, list[Settlement]]  # group id -> its trajectories
    lags: Counter[int] = field(default_factory=Counter)  # lag -> trained tokens
    dropped_tokens: Counter[str] = field(default_factory=Counter)  # reason -> sampled tokens without gradient
    no_signal_groups: int = 0
    multi_version_trajectories: int = 0

    def without_gradient(self, reason: str) -> None:
        """Nothing of the batch was trained after all: its books say so, under `reason`."""
        for group_id, of_group in self.settlements.items():
            self.settlements[group_id] = [
                msgspec.structs.replace(settlement, outcome=reason, tokens=0)
                if settlement.outcome == TRAINED
                else settlement
                for settlement in of_group
            ]
        self.dropped_tokens[reason] += sum(self.lags.values())
        self.lags.clear()


def rejection(scored: ScoredGroup, *, version: int, staleness: StalenessConfig) -> str | None:
    """The named reason why a group cannot be trained from `version`; None when it can."""
    needed = min(2, max(len(scored.group.episodes), len(scored.trajectories)))
    rewarded = [trajectory for trajectory in scored.trajectories if trajectory.reward is not None]
    if len(rewarded) < max(1, needed):
        return "too_few_rewards"
    rows = [row for trajectory in rewarded for row in trajectory.rows if any(row.loss_mask)]
    if not rows:
        return "no_trainable_tokens"
    if staleness.policy != "mask" and worst_lag(rows, version) > staleness.max_lag:
        return "stale"
    if not any(any(fresh_mask(row, version, staleness.max_lag)) for row in rows):
        return "stale"
    return None


def prepare_batch(
    groups: Sequence[ScoredGroup],
    *,
    version: int,
    staleness: StalenessConfig,
    algorithm: AlgorithmConfig,
    estimate: AdvantageEstimator,
) -> PreparedBatch:
    """The batch that trains from `version`. Groups were accepted by `rejection`; rows keep the order of the groups."""
    prepared = PreparedBatch(Batch(version=version, rows=[]), settlements={})
    for scored in groups:
        advantages = estimate(scored.rewards)
        if len(advantages) != len(scored.trajectories):
            raise ValueError(
                f"the advantage estimator gave {len(advantages)} values for {len(scored.trajectories)} rewards"
            )
        no_signal = all(advantage in (None, 0.0) for advantage in advantages)
        prepared.no_signal_groups += no_signal
        skip = "no_signal" if no_signal and algorithm.zero_variance == "drop" else None
        prepared.settlements[scored.group.group_id] = [
            _settle(prepared, trajectory, advantage, skip, staleness)
            for trajectory, advantage in zip(scored.trajectories, advantages, strict=True)
        ]
    return prepared


def _settle(
    prepared: PreparedBatch,
    trajectory: Trajectory,
    advantage: float | None,
    skip: str | None,
    staleness: StalenessConfig,
) -> Settlement:
    """Adds the trajectory's rows to the batch, and says what became of it."""
    version = prepared.batch.version
    sampled = sum(sum(row.loss_mask) for row in trajectory.rows)
    prepared.dropped_tokens.update(trajectory.dropped)
    temperature = _temperature(trajectory)
    reason = (
        skip
        or ("missing_reward" if advantage is None else None)
        or ("mixed_temperature" if temperature is None and sampled else None)
        or ("no_trainable_tokens" if not sampled else None)
    )
    trained = 0
    if reason is None:
        assert advantage is not None
        assert temperature is not None
        for row in trajectory.rows:
            train_row = _train_row(trajectory.session_id, row, version, staleness.max_lag, advantage, temperature)
            count = sum(train_row.loss_mask)
            if stale := sum(row.loss_mask) - count:
                prepared.dropped_tokens["stale"] += stale
            if count:
                trained += count
                prepared.batch.rows.append(train_row)
                lags = token_lags(row.versions, version)
                prepared.lags.update({lag: n for lag, n in lags.items() if lag <= staleness.max_lag})
        reason = None if trained else "stale"
        versions = {span.version for row in trajectory.rows for span in row.versions}
        prepared.multi_version_trajectories += len(versions) > 1
    else:
        prepared.dropped_tokens[reason] += sampled
    return Settlement(session_id=trajectory.session_id, outcome=reason or TRAINED, step=version + 1, tokens=trained)


def _train_row(session_id: str, row: Row, version: int, max_lag: int, advantage: float, temperature: float) -> TrainRow:
    mask = fresh_mask(row, version, max_lag)
    return TrainRow(
        session_id=session_id,
        token_ids=row.token_ids,
        loss_mask=mask,
        logprobs=[value if kept and value is not None else 0.0 for value, kept in zip(row.logprobs, mask, strict=True)],
        advantages=[advantage * kept for kept in mask],
        on_policy=on_policy_mask(row, version),
        temperature=temperature,
    )


def _temperature(trajectory: Trajectory) -> float | None:
    """The one temperature of all trained calls; None when they differ (the loss models one per row)."""
    temperatures = {call.sampling.temperature for call in trajectory.calls if call.untrainable is None}
    return temperatures.pop() if len(temperatures) == 1 else None
