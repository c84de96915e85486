"""What may be settled, decided without I/O, so that every store refuses the same things (invariant 7)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from agentrl.errors import StoreError
from agentrl.store.base import TRAINED, GroupRecord, Settlement
from agentrl.types import Mode


class Standing(Struct, frozen=True):
    """What a stored trajectory is, as far as settling it goes."""

    mode: Mode
    group_id: str | None


def refuse_settlement(
    group_id: str,
    group: GroupRecord | None,
    outcome: str,
    step: int | None,
    settlements: Sequence[Settlement],
    standings: Mapping[str, Standing],
    settled: Collection[str],
) -> None:
    """Raises StoreError unless this closes an open group once and each of its trajectories once.

    `standings` holds the stored trajectories among `settlements`, `settled` those that have a settlement already.
    """
    if group is None:
        raise StoreError(f"group {group_id!r} was never admitted; admit() it before it is settled")
    if group.outcome is not None:
        was, now = f"{group.outcome} at step {group.step}", f"{outcome} at step {step}"
        raise StoreError(f"group {group_id!r} is closed already: {was}; it cannot become {now}")
    if outcome == TRAINED and step is None:
        raise StoreError(f"group {group_id!r} is settled as trained without a step")
    seen = set(settled)
    for settlement in settlements:
        session_id = settlement.session_id
        if session_id in seen:
            raise StoreError(f"trajectory {session_id!r} of group {group_id!r} has a settlement already")
        seen.add(session_id)
        if settlement.outcome == TRAINED:
            _refuse_training(group_id, outcome, step, settlement, standings.get(session_id))


def refuse_call_rewards(session_id: str, rewards: Sequence[float | None]) -> None:
    """Raises StoreError for a reward that is not a finite number: it would be read back as missing."""
    for position, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise StoreError(f"the reward of call {position} of trajectory {session_id!r} is {reward}")


def refuse_another_number(session_id: str, rewards: Sequence[float | None], calls: int) -> None:
    if len(rewards) != calls:
        raise StoreError(f"{len(rewards)} rewards for the {calls} calls of trajectory {session_id!r}")


def _refuse_training(
    group_id: str, outcome: str, step: int | None, settlement: Settlement, standing: Standing | None
) -> None:
    what = f"trajectory {settlement.session_id!r} is settled as trained at step {settlement.step}"
    if standing is None:
        raise StoreError(f"{what} but is not in the store; save() comes first")
    if standing.mode != "train":
        raise StoreError(f"{what} but is of mode {standing.mode!r}")
    if standing.group_id != group_id:
        raise StoreError(f"{what} in group {group_id!r} but belongs to group {standing.group_id!r}")
    if outcome != TRAINED or step != settlement.step:
        raise StoreError(f"{what} but its group {group_id!r} is settled as {outcome} at step {step}")
