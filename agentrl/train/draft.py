"""One trajectory on its way into a batch: why it is left out, or its rows with masks, advantages and rewards."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrl.train.advantage import Attempt
from agentrl.train.config import AlgorithmConfig, StalenessConfig
from agentrl.train.credit import (
    Sample,
    earned_by_calls,
    locate_samples,
    number_calls,
    place_rewards,
    spread_over_calls,
)
from agentrl.train.overlong import overlong_reason
from agentrl.train.staleness import fresh_mask, on_policy_mask
from agentrl.types import TrainRow, Trajectory

UNATTRIBUTED = "unattributed"
"""The outcome of a trajectory whose rows are not exactly what its calls sampled: whose credit is whose is unknown."""


@dataclass
class Draft:
    """Made before advantages are known, which depend on what all drafts of a step leave to be trained."""

    trajectory: Trajectory
    skip: str | None = None  # the reason why none of it is trained
    temperature: float = 1.0
    samples: list[list[Sample]] = field(default_factory=list)  # of each row
    masks: list[list[int]] = field(default_factory=list)  # of each row [T]: what the staleness bound leaves of it
    advantages_C: list[float] | None = None

    def attempt(self) -> Attempt:
        """As an estimator sees it, with the tokens that are trained."""
        tokens_C = [0] * len(self.trajectory.calls)
        for samples, mask in zip(self.samples, self.masks, strict=True):
            for sample in samples:
                if sample.trained and self.skip is None:
                    tokens_C[sample.call] = sum(mask[sample.start : sample.end])
        return Attempt(self.trajectory.reward, earned_by_calls(self.trajectory), tokens_C)

    def train_rows(self, version: int) -> list[TrainRow]:
        """Each of its rows, also those of which the staleness bound leaves nothing."""
        trajectory = self.trajectory
        assert self.advantages_C is not None
        assert trajectory.reward is not None
        earned_C = earned_by_calls(trajectory)
        located = {sample.call for samples in self.samples for sample in samples}
        return [
            TrainRow(
                session_id=trajectory.session_id,
                token_ids=row.token_ids,
                loss_mask=mask,
                logprobs=[
                    value if on and value is not None else 0.0 for value, on in zip(row.logprobs, mask, strict=True)
                ],
                advantages=spread_over_calls(self.advantages_C, samples, mask),
                on_policy=on_policy_mask(row, version),
                rewards=place_rewards(trajectory.reward, earned_C, samples, located, mask),
                calls=number_calls(samples, mask),
                temperature=self.temperature,
            )
            for row, samples, mask in zip(trajectory.rows, self.samples, self.masks, strict=True)
        ]


def draft_of(trajectory: Trajectory, version: int, staleness: StalenessConfig, algorithm: AlgorithmConfig) -> Draft:
    temperature, samples = _temperature(trajectory), locate_samples(trajectory)
    skip = None
    if trajectory.reward is None:
        skip = "missing_reward"
    elif not any(any(row.loss_mask) for row in trajectory.rows):
        skip = "no_trainable_tokens"
    elif temperature is None:
        skip = "mixed_temperature"
    elif samples is None:
        skip = UNATTRIBUTED
    elif algorithm.overlong == "mask":
        skip = overlong_reason(trajectory)
    return Draft(
        trajectory,
        skip=skip,
        temperature=temperature or 1.0,
        samples=samples or [],
        masks=[fresh_mask(row, version, staleness.max_lag) for row in trajectory.rows] if samples else [],
    )


def attempt_of(trajectory: Trajectory) -> Attempt:
    """As an estimator sees it, if all that it sampled were trained."""
    tokens_C = [len(call.token_ids) for call in trajectory.calls]
    return Attempt(trajectory.reward, earned_by_calls(trajectory), tokens_C)


def _temperature(trajectory: Trajectory) -> float | None:
    """The one temperature of all trained calls; None when they differ (the loss models one per row)."""
    temperatures = {call.sampling.temperature for call in trajectory.calls if call.untrainable is None}
    return temperatures.pop() if len(temperatures) == 1 else None
