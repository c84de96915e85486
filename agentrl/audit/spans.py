"""Version spans as one version per token, and by the engine that sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from agentrl.types import Call, VersionSpan

NO_VERSION = int(np.iinfo(np.int64).min)


def spread(spans: Sequence[VersionSpan], size: int) -> np.ndarray:
    """The version of each token, [size], NO_VERSION where no span is. Of overlapping spans the last counts."""
    versions = np.full(size, NO_VERSION, np.int64)
    for span in spans:
        versions[max(span.start, 0) : max(span.end, 0)] = span.version
    return versions


def by_engine(call: Call) -> Iterator[tuple[str, VersionSpan]]:
    """The call's version spans, cut where an engine gave way to the next, each with the engine that it lies in.

    What lies in no segment is left out (`swap_log` reports it).
    """
    if not call.segments:
        yield from ((call.engine_id, span) for span in call.versions)
        return
    for span in call.versions:
        for segment in call.segments:
            start, end = max(span.start, segment.start), min(span.end, segment.end)
            if start < end:
                yield segment.engine_id, VersionSpan(span.version, start, end)


def untiled(call: Call) -> str | None:
    """Where the call's segments leave a gap, overlap or run over; None when each token has one engine."""
    if not call.segments:
        return None
    borders = [0, *(segment.end for segment in call.segments)]
    joined = [segment.start for segment in call.segments] == borders[:-1] and borders == sorted(borders)
    if joined and borders[-1] == len(call.token_ids):
        return None
    parts = ", ".join(f"{part.engine_id} [{part.start}, {part.end})" for part in call.segments)
    return f"{len(call.token_ids)} tokens came from {parts}, which do not follow one another from first to last"
