"""Invariant 3: a logprob stands exactly where a token is trained, is one, and is the one that the engine reported."""

from __future__ import annotations

import math
from collections.abc import Iterator

from agentrl.audit.attribution import Piece
from agentrl.audit.finding import Finding, Subject, TrajectoryCheck, Verdict
from agentrl.types import Row, Trajectory

NAME = "logprobs"
EPSILON = 1e-6
"""How far above 0 rounding may put the logprob of a certain token."""


def examine(subject: Subject) -> Verdict:
    """At most one finding per row and question: the first token that is wrong."""
    trajectory = subject.trajectory
    details = [f"row {i}: {detail}" for i, row in enumerate(trajectory.rows) for detail in _of_row(row)]
    details += [detail for piece in subject.attribution.pieces for detail in _of_piece(trajectory, piece)]
    items = sum(len(row.token_ids) for row in trajectory.rows)
    return Verdict(items=items, findings=[Finding(NAME, subject.session_id, detail) for detail in details])


def _of_row(row: Row) -> Iterator[str]:
    sizes = {len(row.token_ids), len(row.loss_mask), len(row.logprobs)}
    if len(sizes) > 1:
        yield f"{len(row.token_ids)} ids, {len(row.loss_mask)} mask entries and {len(row.logprobs)} logprobs"
    for index, (mask, value) in enumerate(zip(row.loss_mask, row.logprobs, strict=False)):
        detail = _of_token(mask, value)
        if detail is not None:
            yield f"token {index} {detail}"
            return


def _of_token(mask: int, value: float | None) -> str | None:
    if mask not in (0, 1):
        return f"has mask {mask}"
    if value is None:
        return "is trained without a logprob" if mask else None
    if not mask:
        return f"is not trained but has logprob {value}"
    if not math.isfinite(value) or value > EPSILON:
        return f"has logprob {value}"
    return None


def _of_piece(trajectory: Trajectory, piece: Piece) -> Iterator[str]:
    call = trajectory.calls[piece.call]
    where = f"row {piece.row}: call {call.call_id}"
    if call.logprobs is None or len(call.logprobs) != len(call.token_ids):
        size = "no" if call.logprobs is None else len(call.logprobs)
        yield f"{where} is trained with {size} logprobs for {len(call.token_ids)} tokens"
        return
    recorded = trajectory.rows[piece.row].logprobs[piece.start : piece.end]
    for offset, (ours, engine) in enumerate(zip(recorded, call.logprobs, strict=False)):
        if ours is not None and ours != engine:
            yield f"{where} recorded {engine} for token {piece.start + offset}, the row has {ours}"
            return


LOGPROBS = TrajectoryCheck(name=NAME, invariant=3, unit="row tokens", examine=examine)
