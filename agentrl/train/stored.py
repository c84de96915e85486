"""From the store back to what the rollout said: episodes of stored trajectories, and whole groups of both."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from agentrl.env import registry
from agentrl.messages import conversation_of
from agentrl.store.base import TrajectoryStore
from agentrl.train.batch import ScoredGroup
from agentrl.types import Episode, Group, StopReason, Task, Trajectory


def ended_by_policy(trajectory: Trajectory) -> bool:
    return _stop_reason(trajectory).by_policy


def episode_of(trajectory: Trajectory) -> Episode:
    """As the rollout made it, as far as the store has it. Its reward is the environment's, before others scored it."""
    messages = conversation_of(trajectory)
    return Episode(
        session_id=trajectory.session_id,
        task=trajectory.task or Task(id=""),
        stop_reason=_stop_reason(trajectory),
        reward=trajectory.components.get("env", trajectory.reward),
        turns=sum(message.role == "assistant" for message in messages),
        messages=[dict(message) for message in messages],
        role=str(trajectory.metadata.get("role", "")),
    )


def finished_attempts(store: TrajectoryStore, group_id: str) -> dict[int, Episode]:
    """By their index, the attempts of a group that the policy ended and whose rewards its environment has given.

    An attempt of several roles counts when all of them are there. Of an index that was played again, the last one.
    """
    by_attempt: dict[tuple[int, int], list[Trajectory]] = {}
    for trajectory in store.iterate(group_id=group_id):
        if ended_by_policy(trajectory) and trajectory.components:
            place = (int(trajectory.metadata.get("index", 0)), int(trajectory.metadata.get("attempt", 0)))
            by_attempt.setdefault(place, []).append(trajectory)
    found = {index: _attempt(of_roles) for (index, _), of_roles in sorted(by_attempt.items())}
    return {index: episode for index, episode in found.items() if episode is not None}


def scored_group(store: TrajectoryStore, group: Group) -> ScoredGroup:
    """The group as a step trains it. Sessions of it that are no episode's were cut, or played again.

    The episode's reward is the last word: a failure that came after the environment's reward leaves none. Roles that
    are only sampled have evaluations' sessions, which are not taken here.
    """
    rewards = {episode.session_id: episode.reward for episode in group.episodes}
    scored = ScoredGroup(group, [])
    for trajectory in store.iterate(mode="train", group_id=group.group_id):
        trajectory.reward = rewards.get(trajectory.session_id)
        _part_of(scored, trajectory, rewards).append(trajectory)
    return scored


def _part_of(scored: ScoredGroup, trajectory: Trajectory, attempts: Container[str]) -> list[Trajectory]:
    if trajectory.session_id in attempts:
        return scored.trajectories
    failed = _stop_reason(trajectory) is not StopReason.CANCELLED and not ended_by_policy(trajectory)
    return scored.retried if failed or trajectory.metadata.get("index") not in scored.group.cut else scored.cut


def _attempt(trajectories: Sequence[Trajectory]) -> Episode | None:
    """None when a role's session is missing."""
    episodes = {str(one.metadata.get("role", "")): episode_of(one) for one in trajectories}
    task = trajectories[0].task
    roles = registry.roles_of(task.env_id) if task is not None and "" not in episodes else {}
    if not roles:
        return episodes.get("")
    if not all(name in episodes for name in roles):
        return None
    first, *others = (msgspec.structs.replace(episodes[name], trained=role.train) for name, role in roles.items())
    return msgspec.structs.replace(first, others=others)


def _stop_reason(trajectory: Trajectory) -> StopReason:
    try:
        return StopReason(trajectory.stop_reason or "")
    except ValueError:  # an agent of somebody's, with words of its own
        return StopReason.DONE
