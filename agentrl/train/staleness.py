"""The staleness policy (invariant 8) as pure functions. What keeps staleness low in the first place is the schedule.

The lag of a token is the version being trained from minus the version that sampled it. On-policy tokens have lag 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from agentrl.types import Row, VersionSpan


def token_lags(spans: Iterable[VersionSpan], version: int) -> Counter[int]:
    """How many tokens have which lag when training from `version`."""
    lags: Counter[int] = Counter()
    for span in spans:
        lags[version - span.version] += span.end - span.start
    return lags


def fresh_mask(row: Row, version: int, max_lag: int) -> list[int]:
    """The row's loss mask [T] with every token masked whose lag exceeds `max_lag`."""
    mask = list(row.loss_mask)
    for span in row.versions:
        if version - span.version > max_lag:
            mask[span.start : span.end] = [0] * (span.end - span.start)
    return mask


def on_policy_mask(row: Row, version: int) -> list[int]:
    """[T], 1 on the tokens that `version` itself sampled: there engine and trainer must agree."""
    mask = [0] * len(row.token_ids)
    for span in row.versions:
        if span.version == version:
            mask[span.start : span.end] = [1] * (span.end - span.start)
    return mask


def worst_lag(rows: Sequence[Row], version: int) -> int:
    """The largest lag of any trained token; 0 when there is none."""
    return max((version - span.version for row in rows for span in row.versions), default=0)
