"""From finished groups to one batch of training rows: verdicts, advantages, masks, and the books of what is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from agentrl.store.base import TRAINED, Settlement
from agentrl.train.advantage import AdvantageEstimator, StepEstimator, judges_groups, over_a_step
from agentrl.train.config import AlgorithmConfig, StalenessConfig
from agentrl.train.draft import Draft, attempt_of, draft_of
from agentrl.train.staleness import fresh_mask, token_lags, worst_lag
from agentrl.types import Batch, Group, Trajectory

RETRIED = "retried"
"""The outcome of an attempt that a failure ended and that was played again; the trajectory's stop reason says which."""

CUT = "cut"
"""The outcome of an attempt that its group did not wait for."""

APART = (RETRIED, CUT)
"""Outcomes of what says nothing of its group."""

STEP_SKIPPED = "step_skipped"
"""The outcome of what was only in updates whose loss or gradient was not finite: no weight moved for it."""

CRITIC_WARMUP = "critic_warmup"
"""The outcome of what the critic alone was trained on: the policy's weights did not move."""

NO_SIGNAL = "no_signal"
"""The outcome of a group, or of a role in it, whose attempts are all worth the same."""


@dataclass(frozen=True)
class ScoredGroup:
    """A whole group with its final rewards, as the store holds it."""

    group: Group
    trajectories: list[Trajectory]
    retried: list[Trajectory] = field(default_factory=list)  # failed attempts that were played again: never trained
    cut: list[Trajectory] = field(default_factory=list)  # attempts that were not waited for: never trained

    @property
    def set_apart(self) -> list[tuple[str, Trajectory]]:
        """What is none of its attempts, with the outcome that says why."""
        return [*((RETRIED, one) for one in self.retried), *((CUT, one) for one in self.cut)]

    def by_role(self) -> dict[str, list[int]]:
        """The trajectories of each role by their index, for a baseline never mixes roles; "" without roles."""
        found: dict[str, list[int]] = {}
        for index, trajectory in enumerate(self.trajectories):
            found.setdefault(str(trajectory.metadata.get("role", "")), []).append(index)
        return found

    def successes(self, success_reward: float) -> list[bool]:
        """Of the first role's attempts that have a reward, whether each is a success."""
        of_role = next(iter(self.by_role().values()), [])
        rewards = (self.trajectories[index].reward for index in of_role)
        return [reward >= success_reward for reward in rewards if reward is not None]

    def size_of(self, role: str) -> int:
        """How many trajectories the role should have: some episodes die before they leave one."""
        played = sum(episode.trained and episode.role == role for episode in self.group.episodes)
        return max(played, len(self.by_role().get(role, ())))


@dataclass
class PreparedBatch:
    """One step's batch and its books: what becomes of every trajectory and every sampled token.

    Plain data, which the batch log keeps (`agentrl.train.batch_log`).
    """

    batch: Batch
    settlements: dict[str, list[Settlement]]  # group id -> its trajectories
    session_lags: dict[str, Counter[int]] = field(default_factory=dict)  # session id -> lag -> trained tokens
    dropped_tokens: Counter[str] = field(default_factory=Counter)  # reason -> sampled tokens without gradient
    no_signal_groups: int = 0
    multi_version_trajectories: int = 0
    rewards: list[float | None] = field(default_factory=list)  # of every trajectory; None is missing
    sampled_tokens: int = 0

    @property
    def lags(self) -> Counter[int]:
        """Lag in versions -> trained tokens."""
        return sum(self.session_lags.values(), Counter())

    def without_gradient(self, reason: str, sessions: Collection[str]) -> None:
        """These sessions of the batch were not trained after all: their books say so, under `reason`."""
        for group_id, of_group in self.settlements.items():
            self.settlements[group_id] = [
                msgspec.structs.replace(settlement, outcome=reason, tokens=0)
                if settlement.outcome == TRAINED and settlement.session_id in sessions
                else settlement
                for settlement in of_group
            ]
        for session_id in sessions:
            self.dropped_tokens[reason] += sum(self.session_lags.pop(session_id).values())


def rejection(scored: ScoredGroup, *, version: int, staleness: StalenessConfig) -> str | None:
    """The named reason why a group cannot be trained from `version`; None when it can."""
    roles = scored.by_role()
    known = {role: [i for i in of_role if scored.trajectories[i].reward is not None] for role, of_role in roles.items()}
    sampled = [row for trajectory in scored.trajectories for row in trajectory.rows if any(row.loss_mask)]
    if sampled and not any(any(fresh_mask(row, version, staleness.max_lag)) for row in sampled):
        return "stale"  # first: its rewards may be missing because nobody waited for them any more
    if not any(len(of_role) >= min(2, scored.size_of(role)) and of_role for role, of_role in known.items()):
        return "too_few_rewards"
    rewarded = [scored.trajectories[index] for of_role in known.values() for index in of_role]
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
    """The batch that trains from `version`. Groups were accepted by `rejection`; rows keep the order of the groups.

    Raises TrainerError when the estimator breaks its contract (`agentrl.train.advantage`).
    """
    trajectories = [trajectory for scored in groups for trajectory in scored.trajectories]
    prepared = PreparedBatch(
        Batch(version=version, rows=[]),
        settlements={},
        rewards=[trajectory.reward for trajectory in trajectories],
        sampled_tokens=sum(len(call.token_ids) for trajectory in trajectories for call in trajectory.calls),
    )
    estimator = over_a_step(estimate)
    drafts = [[draft_of(one, version, staleness, algorithm) for one in scored.trajectories] for scored in groups]
    hidden: list[set[int]] = []
    for scored, of_group in zip(groups, drafts, strict=True):
        flat = flat_trajectories(scored, estimator)
        prepared.no_signal_groups += len(flat) == len(of_group)
        hidden.append(flat if algorithm.zero_variance != "keep" else set())
        for index in hidden[-1]:
            of_group[index].skip = of_group[index].skip or NO_SIGNAL
    _estimate(groups, drafts, hidden, estimator)
    for scored, of_group in zip(groups, drafts, strict=True):
        prepared.settlements[scored.group.group_id] = [
            *(_settle(prepared, draft, staleness) for draft in of_group),
            *(_settle(prepared, Draft(one, skip=reason), staleness) for reason, one in scored.set_apart),
        ]
    return prepared


def flat_trajectories(scored: ScoredGroup, estimate: AdvantageEstimator) -> set[int]:
    """The trajectories of roles without any signal: given that role's attempts alone, the estimator finds 0 for all."""
    if not judges_groups(estimate):
        return set()
    estimator = over_a_step(estimate)
    flat: set[int] = set()
    for of_role in scored.by_role().values():
        [found] = estimator([[attempt_of(scored.trajectories[index]) for index in of_role]])
        if not any(any(advantages_C or ()) for advantages_C in found):
            flat.update(of_role)
    return flat


def has_signal(scored: ScoredGroup, estimate: AdvantageEstimator) -> bool:
    """Whether any of its roles has something to learn from."""
    return len(flat_trajectories(scored, estimate)) < len(scored.trajectories)


def _estimate(
    groups: Sequence[ScoredGroup],
    drafts: Sequence[Sequence[Draft]],
    hidden: Sequence[set[int]],
    estimator: StepEstimator,
) -> None:
    """Fills in the advantages, for each role by itself. hidden: of each group, what the estimator is not shown."""
    by_role: dict[str, list[list[Draft]]] = {}
    for scored, of_group, unseen in zip(groups, drafts, hidden, strict=True):
        for role, of_role in scored.by_role().items():
            shown = [of_group[index] for index in of_role if index not in unseen]
            if shown:
                by_role.setdefault(role, []).append(shown)
    for of_role_by_group in by_role.values():
        found = estimator([[one.attempt() for one in some] for some in of_role_by_group])
        for some, advantages in zip(of_role_by_group, found, strict=True):
            for draft, advantages_C in zip(some, advantages, strict=True):
                draft.advantages_C = advantages_C
                if advantages_C is None and draft.skip is None:
                    draft.skip = "missing_reward"


def _settle(prepared: PreparedBatch, draft: Draft, staleness: StalenessConfig) -> Settlement:
    """Adds the trajectory's rows to the batch, and says what became of it."""
    version, trajectory, reason = prepared.batch.version, draft.trajectory, draft.skip
    prepared.dropped_tokens.update(trajectory.dropped)
    trained = 0
    if reason is None:
        for row, train_row in zip(trajectory.rows, draft.train_rows(version), strict=True):
            count = sum(train_row.loss_mask)
            if stale := sum(row.loss_mask) - count:
                prepared.dropped_tokens["stale"] += stale
            if count:
                trained += count
                prepared.batch.rows.append(train_row)
                lags = token_lags(row.versions, version)
                of_session = prepared.session_lags.setdefault(trajectory.session_id, Counter())
                of_session.update({lag: n for lag, n in lags.items() if lag <= staleness.max_lag})
        reason = None if trained else "stale"
        versions = {span.version for row in trajectory.rows for span in row.versions}
        prepared.multi_version_trajectories += len(versions) > 1
    else:
        prepared.dropped_tokens[reason] += sum(sum(row.loss_mask) for row in trajectory.rows)
    return Settlement(session_id=trajectory.session_id, outcome=reason or TRAINED, step=version + 1, tokens=trained)
