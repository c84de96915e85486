"""The staleness policy (invariant 8) as pure functions, and the gate that keeps staleness low in the first place.

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


class AdmissionGate:
    """How many groups may be under way, so that groups trained in order never exceed the bound.

    At most (K + 1) * groups_per_step groups are outstanding. A group is outstanding from its admission until the
    weights that it helped to train are published, or until it is dropped. Deriving capacity from what is
    outstanding, not from counters since the start, keeps it right after a resume.
    """

    def __init__(self, *, max_lag: int, groups_per_step: int) -> None:
        self.limit = (max_lag + 1) * groups_per_step
        self._outstanding: set[str] = set()

    @property
    def capacity(self) -> int:
        return self.limit - len(self._outstanding)

    @property
    def outstanding(self) -> frozenset[str]:
        return frozenset(self._outstanding)

    def admit(self, group_id: str) -> None:
        if group_id in self._outstanding:
            raise ValueError(f"group {group_id} is already admitted")
        if self.capacity <= 0:
            raise ValueError(f"no capacity for group {group_id}: {len(self._outstanding)} of {self.limit} outstanding")
        self._outstanding.add(group_id)

    def settle(self, group_id: str) -> None:
        if group_id not in self._outstanding:
            raise ValueError(f"group {group_id} is not outstanding: settled twice, or never admitted")
        self._outstanding.remove(group_id)
