"""Invariant 2: every sampled token is trained in exactly one row, or counted in `dropped` under a reason."""

from __future__ import annotations

from collections import Counter

from agentrl.audit.finding import Finding, Subject, TrajectoryCheck, Verdict

NAME = "once"


def examine(subject: Subject) -> Verdict:
    trajectory, attribution = subject.trajectory, subject.attribution
    details = []
    for gap in attribution.gaps:
        if gap.claimed_by is not None:
            call_id = trajectory.calls[gap.claimed_by.call].call_id
            again = f"tokens [{gap.start}, {gap.end}) of row {gap.row} are the sample of call {call_id}"
            details.append(f"{again}, which row {gap.claimed_by.row} trains already")
    trained = {piece.call for piece in attribution.pieces}
    named: Counter[str] = Counter()
    untrained = 0
    for index, call in enumerate(trajectory.calls):
        if index not in trained:
            untrained += len(call.token_ids)
        elif call.untrainable is not None:
            details.append(f"call {call.call_id} must not be trained ({call.untrainable}) but is")
        if call.untrainable is not None:
            named[call.untrainable] += len(call.token_ids)
    for reason in sorted(set(named) | set(trajectory.dropped)):
        counted = trajectory.dropped.get(reason, 0)
        if counted < named[reason]:
            details.append(f"{named[reason]} tokens are untrainable ({reason}), dropped counts {counted}")
    counted = sum(trajectory.dropped.values())
    if counted != untrained:
        details.append(f"{untrained} sampled tokens are in no row, dropped counts {counted}: {trajectory.dropped}")
    items = sum(len(call.token_ids) for call in trajectory.calls)
    return Verdict(items=items, findings=[Finding(NAME, subject.session_id, detail) for detail in details])


ONCE = TrajectoryCheck(name=NAME, invariant=2, unit="sampled tokens", examine=examine)
