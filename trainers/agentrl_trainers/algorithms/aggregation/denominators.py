"""How many tokens and rows one update trains, over all ranks and micro-batches: what every mean is divided by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentrl.types import TrainRow


class Denominators(NamedTuple):
    tokens: int  # trained
    rows: int  # with at least one trained token


def denominators(rows: Sequence[TrainRow]) -> Denominators:
    """Of an update on `rows`, all ranks' together."""
    counts = [sum(row.loss_mask) for row in rows]
    return Denominators(tokens=sum(counts), rows=sum(count > 0 for count in counts))
