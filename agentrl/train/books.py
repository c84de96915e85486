"""What the books say of a group: its outcome, and what becomes of its trajectories when no step trains it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from agentrl.store.base import TRAINED, Settlement
from agentrl.train.batch import APART, ScoredGroup
from agentrl.types import Group, Trajectory


def outcome_of(settlements: Sequence[Settlement]) -> str:
    """A group of which nothing was trained is named after what became of most of its attempts."""
    outcomes = Counter(settlement.outcome for settlement in settlements if settlement.outcome not in APART)
    return TRAINED if TRAINED in outcomes else min(outcomes, key=lambda name: (-outcomes[name], name))


def dropped(scored: ScoredGroup, reason: str, step: int) -> list[Settlement]:
    of_attempts = [(reason, trajectory) for trajectory in scored.trajectories]
    return [
        Settlement(session_id=trajectory.session_id, outcome=outcome, step=step)
        for outcome, trajectory in (*of_attempts, *scored.set_apart)
    ]


def run_ended(trajectories: Iterable[Trajectory], step: int) -> list[Settlement]:
    return [Settlement(session_id=one.session_id, outcome="run_ended", step=step) for one in trajectories]


def why_nothing_works(group: Group, reason: str, failed_in_a_row: int) -> str:
    """One sentence for whoever started the run, and what to do; `group` is the last one that failed."""
    errors = [episode.error for episode in group.episodes if episode.error]
    because = (
        f"; the last group's first error: {errors[0]}. The tracebacks are in logs/rollout.log"
        if errors
        else "; no episode failed: the environment's `score` gives no reward, or a reward service is missing"
    )
    return (
        f"{failed_in_a_row} groups in a row could not be trained ({reason}){because}. "
        "Run `agentrl env play` to see one episode"
    )
