"""Invariant 1: a trained token is a token an engine sampled, after exactly the prompt that the engine was given."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.audit.attribution import Gap
from agentrl.audit.finding import Finding, Subject, TrajectoryCheck, Verdict
from agentrl.digest import digest_of
from agentrl.types import Call, Trajectory

NAME = "identity"


def examine(subject: Subject) -> Verdict:
    """`prompt_digest` was taken where the request left for the engine, so it vouches for the stored prompt."""
    trajectory, verdict = subject.trajectory, Verdict()
    for call in trajectory.calls:
        verdict.items += 1
        if (digest := digest_of(call.prompt_token_ids)) != call.prompt_digest:
            detail = f"call {call.call_id}: the prompt has digest {digest}, the engine was given {call.prompt_digest}"
            verdict.findings.append(Finding(NAME, subject.session_id, detail))
    verdict.items += len(subject.attribution.pieces)
    for gap in subject.attribution.gaps:
        if gap.claimed_by is None:
            verdict.items += 1
            verdict.findings.append(Finding(NAME, subject.session_id, _explain(trajectory, gap)))
    return verdict


def _explain(trajectory: Trajectory, gap: Gap) -> str:
    ids = trajectory.rows[gap.row].token_ids
    what = f"row {gap.row} trains tokens [{gap.start}, {gap.end})"
    starting = [call for call in trajectory.calls if len(call.prompt_token_ids) == gap.start and call.token_ids]
    if not starting:
        return f"{what}, but no call has a prompt of {gap.start} tokens"
    nearest = max(starting, key=lambda call: _agreement(_sequence(call), ids))
    sequence = _sequence(nearest)
    at = _agreement(sequence, ids)
    if at == len(sequence):
        return f"{what}, but call {nearest.call_id} sampled [{gap.start}, {len(sequence)})"
    there = ids[at] if at < len(ids) else "nothing"
    part = "was given" if at < gap.start else "sampled"
    return f"{what}, but at index {at} it has {there} where call {nearest.call_id} {part} {sequence[at]}"


def _sequence(call: Call) -> list[int]:
    return [*call.prompt_token_ids, *call.token_ids]


def _agreement(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


IDENTITY = TrajectoryCheck(name=NAME, invariant=1, unit="prompts and samples", examine=examine)
