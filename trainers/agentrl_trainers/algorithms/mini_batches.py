"""Which rows each update of a step trains on: every epoch all rows, cut into parts of whole trajectories."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentrl.types import TrainRow


def mini_batches(rows: Sequence[TrainRow], *, count: int, epochs: int, seed: int) -> list[list[int]]:
    """Row indices of each update, in the order of the updates; every row is in exactly one part of each epoch.

    Rows of one session stay together, and parts are balanced by trained tokens. With one part the order is the rows'
    own; otherwise each epoch shuffles anew by `seed`. Every part has a trained token, so that fewer sessions with any
    than `count` give fewer parts.
    """
    if count == 1:
        return [list(range(len(rows)))] * epochs
    sessions: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        sessions.setdefault(row.session_id, []).append(index)
    load = {name: sum(sum(rows[index].loss_mask) for index in indices) for name, indices in sessions.items()}
    trained = sum(tokens > 0 for tokens in load.values())
    parts: list[list[int]] = []
    for epoch in range(epochs):
        order = list(sessions)
        random.Random(f"{seed}-{epoch}").shuffle(order)
        shares = balanced([load[name] for name in order], min(count, max(1, trained)))
        parts += [sorted(index for at in share for index in sessions[order[at]]) for share in shares]
    return parts


def untrained_sessions(
    rows: Sequence[TrainRow], parts: Sequence[Sequence[int]], made: Sequence[bool]
) -> tuple[str, ...]:
    """Sessions that are in none of the parts whose update was made, in the order of the rows."""
    trained = {rows[index].session_id for part, done in zip(parts, made, strict=True) if done for index in part}
    return tuple(dict.fromkeys(row.session_id for row in rows if row.session_id not in trained))


def balanced(loads: Sequence[int], count: int) -> list[list[int]]:
    """Indices of `loads` in `count` parts, each in turn to the part with the least so far.

    No part is left with a load of 0 where `count` loads are above it.
    """
    total = [0] * count
    parts: list[list[int]] = [[] for _ in range(count)]
    for index, load in enumerate(loads):
        part = min(range(count), key=lambda part: (total[part], part))
        parts[part].append(index)
        total[part] += load
    return parts
