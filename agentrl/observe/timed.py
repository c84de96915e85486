"""The groups of a step with the time of each of their episodes split into its parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from agentrl.observe.episode_time import Part, Pauses, Slice, episode_slices, nanoseconds, totals
from agentrl.observe.step_trace import EpisodeTrace, GroupTrace
from agentrl.types import StopReason


class TimedEpisode(Struct, frozen=True, kw_only=True):
    """Unix nanoseconds. It is `start` to `end`, and then, after its siblings, as long as its reward took."""

    trace: EpisodeTrace
    start: int
    end: int
    slices: list[Slice]
    spent: Mapping[Part, int]


class TimedGroup(Struct, frozen=True, kw_only=True):
    """Unix nanoseconds: from its admission until it was scored."""

    trace: GroupTrace
    start: int
    end: int
    scoring: tuple[int, int] | None
    episodes: list[TimedEpisode]


def timed(group: GroupTrace, pauses: Pauses) -> TimedGroup:
    played, scored = group.played_at, group.scored_at
    scoring = None if played is None or scored is None else (nanoseconds(played), nanoseconds(scored))
    admitted = None if group.admitted_at is None else nanoseconds(group.admitted_at)
    episodes = [_timed(episode, pauses, admitted, scoring) for episode in group.episodes]
    starts, ends = [episode.start for episode in episodes], [episode.end for episode in episodes]
    if admitted is not None:
        starts.append(admitted)
    if scoring is not None:
        ends.append(scoring[1])
    start = min(starts, default=0)
    return TimedGroup(trace=group, start=start, end=max(ends, default=start), scoring=scoring, episodes=episodes)


def _timed(
    episode: EpisodeTrace, pauses: Pauses, admitted: int | None, scoring: tuple[int, int] | None
) -> TimedEpisode:
    """One that a failure ended is not scored."""
    trajectory = episode.trajectory
    begun = nanoseconds(trajectory.created_at)
    ended = max(begun, nanoseconds(trajectory.finished_at))
    reason = trajectory.stop_reason
    scored = reason in list(StopReason) and StopReason(str(reason)).by_policy and episode.outcome != "retried"
    slices = episode_slices(
        trajectory.calls,
        pauses,
        admitted=admitted,
        begun=begun,
        ended=ended,
        scoring=scoring if scored else None,
    )
    start = begun if admitted is None else min(admitted, begun)
    return TimedEpisode(trace=episode, start=start, end=ended, slices=slices, spent=totals(slices))
