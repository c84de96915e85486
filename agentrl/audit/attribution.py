"""Which call sampled each trained token of each row: the question behind most checks, answered once.

A call sampled the tokens [P, P + S) of a row when the row starts with its P prompt ids and its S sampled ids and trains
exactly those S. Each call is used once, so a second row that trains the same sample finds no call left. Two calls may
have sampled the same ids after the same prompt; then the one whose logprobs and versions the row has is taken.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agentrl.audit.spans import spread
from agentrl.types import Call, Row, Trajectory


@dataclass(frozen=True)
class Piece:
    """Tokens [start, end) of row `row` are the whole sample of call `call`."""

    call: int
    row: int
    start: int
    end: int


@dataclass(frozen=True)
class Gap:
    """Tokens [start, end) of row `row` have mask 1, and no call that is left sampled them after that prefix."""

    row: int
    start: int
    end: int
    claimed_by: Piece | None  # the row that trains this sample already, when that is why


@dataclass
class Attribution:
    pieces: list[Piece] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


def attribute(trajectory: Trajectory) -> Attribution:
    result = Attribution()
    calls = _Calls(trajectory.calls)
    claimed: dict[int, Piece] = {}
    for index, row in enumerate(trajectory.rows):
        target = _Target(row)
        for start, end in _runs(row.loss_mask):
            while start < end:
                fitting = calls.that_fit(target, start)
                free = [call for call in fitting if call not in claimed]
                if free:
                    call = free[0]
                    if len(free) > 1:
                        call = max(free, key=lambda each: (target.agrees(trajectory.calls[each]), calls.size(each)))
                    piece = Piece(call, index, start, start + calls.size(call))
                    claimed[call] = piece
                    result.pieces.append(piece)
                    start = piece.end
                else:
                    stop = start + max(map(calls.size, fitting), default=1)
                    _add_gap(result, Gap(index, start, stop, claimed[fitting[0]] if fitting else None))
                    start = stop
    return result


class _Target:
    """A row in the form that makes comparing cheap."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.ids = array("q", row.token_ids).tobytes()
        self.mask = np.array(row.loss_mask)

    def trains(self, start: int, end: int) -> bool:
        return end <= len(self.mask) and bool((self.mask[start:end] == 1).all())

    def agrees(self, call: Call) -> bool:
        start, size = len(call.prompt_token_ids), len(call.token_ids)
        same_logprobs = self.row.logprobs[start : start + size] == call.logprobs
        ours = spread(self.row.versions, len(self.row.token_ids))[start : start + size]
        return same_logprobs and np.array_equal(ours, spread(call.versions, size))


class _Calls:
    """Calls by where their samples start."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._sizes = [len(call.token_ids) for call in calls]
        self._ids = [array("q", [*call.prompt_token_ids, *call.token_ids]).tobytes() for call in calls]
        self._at: dict[int, list[int]] = defaultdict(list)
        for index, call in enumerate(calls):
            if call.token_ids:
                self._at[len(call.prompt_token_ids)].append(index)

    def size(self, call: int) -> int:
        return self._sizes[call]

    def that_fit(self, target: _Target, start: int) -> list[int]:
        return [
            call
            for call in self._at.get(start, ())
            if target.trains(start, start + self._sizes[call]) and target.ids.startswith(self._ids[call])
        ]


def _runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """The maximal half-open runs of ones."""
    ones = np.concatenate([[0], (np.array(mask) == 1).astype(np.int8), [0]])
    edges = np.flatnonzero(np.diff(ones))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _add_gap(result: Attribution, gap: Gap) -> None:
    """Joined to the gap before when both are unexplained and touch."""
    last = result.gaps[-1] if result.gaps else None
    if last and gap.claimed_by is None and last.claimed_by is None and (last.row, last.end) == (gap.row, gap.start):
        result.gaps[-1] = Gap(gap.row, last.start, gap.end, None)
    else:
        result.gaps.append(gap)
