"""Invariant 4, first half: every sampled token carries one version, and rows carry the versions of their calls.

Calls that must not be trained are left out: what is wrong with them is named in their reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from agentrl.audit.finding import Finding, Subject, TrajectoryCheck, Verdict
from agentrl.audit.spans import NO_VERSION, spread
from agentrl.types import Row, VersionSpan

NAME = "versions"


def examine(subject: Subject) -> Verdict:
    trajectory, details = subject.trajectory, []
    calls = [call for call in trajectory.calls if call.untrainable is None]
    for call in calls:
        details += [f"call {call.call_id}: {detail}" for detail in _of_call(call.versions, len(call.token_ids))]
    for index, row in enumerate(trajectory.rows):
        details += [f"row {index}: {detail}" for detail in _of_row(row)]
    for piece in subject.attribution.pieces:
        call, row = trajectory.calls[piece.call], trajectory.rows[piece.row]
        ours = spread(row.versions, len(row.token_ids))[piece.start : piece.end]
        engine = spread(call.versions, len(call.token_ids))
        different = np.flatnonzero(ours != engine)
        if len(different):
            at = int(different[0])
            details.append(
                f"row {piece.row}: token {piece.start + at} has version {_name(ours[at])}, "
                f"call {call.call_id} recorded {_name(engine[at])}"
            )
    findings = [Finding(NAME, subject.session_id, detail) for detail in details]
    return Verdict(items=sum(len(call.token_ids) for call in calls), findings=findings)


def _of_call(spans: Sequence[VersionSpan], size: int) -> Iterator[str]:
    at, version = 0, 0
    for span in spans:
        if span.start != at or span.end <= span.start:
            yield f"span [{span.start}, {span.end}) follows on token {at}"
            return
        if span.version < version:
            yield f"version {span.version} at token {span.start} comes after version {version}"
        at, version = span.end, span.version
    if at != size:
        yield f"versions cover {at} of {size} tokens"


def _of_row(row: Row) -> Iterator[str]:
    size = len(row.token_ids)
    at = 0
    for span in row.versions:
        if span.start < at or span.end <= span.start or span.end > size:
            yield f"span [{span.start}, {span.end}) follows on token {at} of {size}"
            return
        at = span.end
    mask = np.array([*row.loss_mask, *[0] * size][:size])
    different = np.flatnonzero((spread(row.versions, size) != NO_VERSION) != (mask == 1))
    if len(different):
        index = int(different[0])
        yield f"token {index} has mask {mask[index]} and version {_name(spread(row.versions, size)[index])}"


def _name(version: np.int64) -> str:
    return "none" if version == NO_VERSION else str(version)


VERSIONS = TrajectoryCheck(name=NAME, invariant=4, unit="sampled tokens", examine=examine)
