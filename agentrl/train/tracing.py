"""What the loop says of its steps to whoever writes the traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.observe.step_trace import EpisodeTrace, GroupTrace, StepTrace
from agentrl.observe.timing import Phase
from agentrl.observe.traces import NoTraces, Traces
from agentrl.store.base import TRAINED, Settlement
from agentrl.train.batch import APART, PreparedBatch, ScoredGroup

MAX_GIVEN_UP = 1024
"""Groups that are remembered between two steps, for the trace of the later one; no more are waited with."""


class StepTracer:
    """Collects what a step's trace is made of. Costs the loop a few small objects for each episode."""

    def __init__(self, traces: Traces | None = None) -> None:
        self.traces = traces or NoTraces()
        self._given_up: list[GroupTrace] = []

    def given_up(self, scored: ScoredGroup, reason: str) -> None:
        """No step will train this group. It is in the trace of the next one."""
        if len(self._given_up) < MAX_GIVEN_UP:
            self._given_up.append(_group(scored, reason, {}, {}))

    def stepped(
        self, groups: Sequence[ScoredGroup], prepared: PreparedBatch, phases: Sequence[Phase], swap: Mapping[str, float]
    ) -> None:
        """After the step's books are made."""
        trained = [_trained_group(scored, prepared) for scored in groups]
        given_up, self._given_up = self._given_up, []
        self.traces.stepped(
            StepTrace(
                step=prepared.batch.version + 1,
                phases=list(phases),
                groups=[*trained, *given_up],
                numbers={
                    "rows": float(len(prepared.batch.rows)),
                    "trained_tokens": float(sum(prepared.lags.values())),
                    **{f"swap.{name}": value for name, value in swap.items()},
                },
            )
        )


def _trained_group(scored: ScoredGroup, prepared: PreparedBatch) -> GroupTrace:
    settlements = {each.session_id: each for each in prepared.settlements.get(scored.group.group_id, ())}
    lags = {
        session_id: max(of_session)
        for session_id in settlements
        if (of_session := prepared.session_lags.get(session_id))
    }
    outcomes = [each.outcome for each in settlements.values() if each.outcome not in APART]
    outcome = TRAINED if TRAINED in outcomes or not outcomes else outcomes[0]
    return _group(scored, outcome, settlements, lags)


def _group(
    scored: ScoredGroup, outcome: str, settlements: Mapping[str, Settlement], lags: Mapping[str, int]
) -> GroupTrace:
    group = scored.group
    attempts = [*((outcome, one) for one in scored.trajectories), *scored.set_apart]
    episodes = []
    for reason, trajectory in attempts:
        settled = settlements.get(trajectory.session_id)
        episodes.append(
            EpisodeTrace(
                trajectory=trajectory,
                outcome=settled.outcome if settled else reason,
                trained_tokens=settled.tokens if settled else 0,
                max_lag=lags.get(trajectory.session_id),
            )
        )
    return GroupTrace(
        group_id=group.group_id,
        task=group.task,
        outcome=outcome,
        episodes=episodes,
        admitted_at=group.admitted_at,
        played_at=group.played_at,
        scored_at=group.scored_at,
        admitted_at_version=group.admitted_at_version,
    )
